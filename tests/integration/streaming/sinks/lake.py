"""Runs of a sink into a table of a lake, without Spark, and what the tests of each kind of table ask of theirs."""

from __future__ import annotations

import datetime
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.streaming.sinks.delta.schema import arrow_columns
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink, SinkAttempt, SinkCommitter, SinkContext, SinkEntry
from airflow_provider_exactlyonce.tables.table_log import TableLog
from tests.waiting import eventually

PIPELINE: Final = "shop"
COLUMNS: Final = T.StructType().add("id", T.LongType()).add("k", T.StringType())
EVERY_TYPE: Final = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("byte", T.ByteType()),
        T.StructField("short", T.ShortType()),
        T.StructField("int", T.IntegerType()),
        T.StructField("float", T.FloatType()),
        T.StructField("double", T.DoubleType()),
        T.StructField("bool", T.BooleanType()),
        T.StructField("text", T.StringType()),
        T.StructField("bytes", T.BinaryType()),
        T.StructField("date", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
        T.StructField("amount", T.DecimalType(12, 2)),
        T.StructField("big", T.DecimalType(38, 10)),
        T.StructField("list", T.ArrayType(T.StringType())),
        T.StructField("map", T.MapType(T.StringType(), T.LongType())),
        T.StructField("nested", T.StructType().add("a", T.LongType()).add("l", T.ArrayType(T.DoubleType()))),
    ]
)
UTC: Final = datetime.UTC
VALUES: Final[list[dict[str, Any]]] = [
    {
        "id": 1,
        "byte": -128,
        "short": 32767,
        "int": -(2**31),
        "float": 0.5,
        "double": float("inf"),
        "bool": True,
        "text": "ü" * 100,
        "bytes": b"\x00\xff",
        "date": datetime.date(1582, 10, 15),
        "at": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999, UTC),
        "local": datetime.datetime(1900, 1, 1, 0, 0, 0, 1),
        "amount": Decimal("-9999999999.99"),
        "big": Decimal("1234567890123456789012345678.0123456789"),
        "list": ["a", None, ""],
        "map": [("a", 1), ("b", None)],
        "nested": {"a": 1, "l": [0.5, None]},
    },
    {**dict.fromkeys(EVERY_TYPE.names), "id": 2},
    {**dict.fromkeys(EVERY_TYPE.names), "id": 3, "list": [], "map": [], "nested": {"a": None, "l": []}, "text": ""},
]
#: Times of which Python has none, and some of the same columns that it has; in days, or microseconds.
FAR_TIMES: Final = T.StructType(
    [
        T.StructField("id", T.LongType()),
        T.StructField("date", T.DateType()),
        T.StructField("at", T.TimestampType()),
        T.StructField("local", T.TimestampNTZType()),
    ]
)
FAR_VALUES: Final = [
    {"id": number, "date": days, "at": days * 86_400_000_000, "local": days * 86_400_000_000}
    for number, days in enumerate([0, 2_932_897, -719_163, 19_000, -800_000])  # 10000-01-01 and 0000-12-31
]
#: Texts of a partition that a URL, a directory or a reader may take for another.
ODD: Final = ["..", "a/b=ü\n", "50%", "x%2Fy", "a b", "null", "a'b\"c", "😀", "a#b?c&d+e", "\t", "\\", None]


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "k": f"k{number % 3}"} for number in range(first, first + count)]


class Lake(ABC):
    """One table that sinks and others write to."""

    #: The method that asks a store or a catalog for the next version, and the error of one who asks too late.
    WRITER: ClassVar[tuple[type, str]]
    REFUSAL: ClassVar[type[Exception]]
    #: What a user's delete ends with when somebody else has changed the same files meanwhile.
    CONFLICTS: ClassVar[tuple[type[Exception], ...]]

    @abstractmethod
    def handle(self) -> Any:
        """Return what the method is of, as the table is now."""

    @abstractmethod
    def sink(self, **changed: Any) -> Sink: ...

    @abstractmethod
    def read(self) -> list[dict[str, Any]]:
        """Return all rows as a reader has them that shares no code with the sink."""

    @abstractmethod
    def read_by_library(self) -> list[dict[str, Any]]:
        """Return all rows as the library has them that the sink is built on."""

    @abstractmethod
    def files(self) -> list[Path]:
        """Return the sink's data files that are there, whoever refers to them."""

    @abstractmethod
    def named_files(self) -> set[Path]:
        """Return the files that a version of the table names."""

    @abstractmethod
    def current_files(self) -> set[Path]:
        """Return the files that the newest version of the table names."""

    def numbers(self) -> list[dict[str, Any]]:
        """Return all rows as they are in the newest version's files, with times as numbers."""
        kinds = {pa.date32(): pa.int32(), pa.timestamp("us"): pa.int64(), pa.timestamp("us", "UTC"): pa.int64()}
        rows: list[dict[str, Any]] = []
        for file in self.current_files():
            read = pq.ParquetFile(file).read()
            columns = [column.cast(kinds.get(column.type, column.type)) for column in read.columns]
            rows += pa.table(columns, names=read.column_names).to_pylist()
        return sorted(rows, key=lambda row: row["id"])

    @abstractmethod
    def notes(self) -> list[Path]:
        """Return the notes of attempts."""

    @abstractmethod
    def insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows as any other writer does; a column that they lack is null."""

    @abstractmethod
    def versions(self) -> int:
        """Return how many versions of the table there are."""

    @abstractmethod
    def newest_version(self) -> str:
        """Return what readers call the newest version."""

    @abstractmethod
    def widen(self) -> None:
        """Add a column ``more``, as another writer."""

    @abstractmethod
    def compact(self) -> None:
        """Write all files together, as another writer."""

    @abstractmethod
    def delete(self, condition: str) -> None:
        """Delete rows, as another writer."""

    @abstractmethod
    def expire(self) -> None:
        """Leave nothing of the table's history but the newest version, as retention does."""

    @abstractmethod
    def maintain(self) -> None:
        """Do what users do to a table every day, beside its writers."""

    @abstractmethod
    def keep(self) -> Callable[[], object]:
        """Return what sets the table back to how it is now."""

    @abstractmethod
    def log(self) -> TableLog:
        """Return the table as it is read as a source."""

    @abstractmethod
    def claim_as_in_0_1_0(self, run: int) -> None:
        """Claim the table for a run of :data:`PIPELINE`, without a number of the claim's own."""

    def write(self, first: int, count: int) -> None:
        """Append :func:`rows` as any other writer does."""
        self.insert(rows(first, count))

    def insist(self, change: Callable[[], object]) -> None:
        """Change the table as another writer does who tries again when somebody else was faster."""

        def is_done() -> bool:
            with suppress(*self.CONFLICTS):
                change()
                return True
            return False

        eventually(is_done, "another writer's change is made")

    def at_next_write(self, monkeypatch: pytest.MonkeyPatch, happen: Callable[[Callable[[], None]], None]) -> None:
        """Let something happen in the place of the next write, which it is given to carry out, late or never."""
        kind, name = self.WRITER
        real = getattr(kind, name)

        def write(_: object, *given: Any, **named: Any) -> None:
            monkeypatch.setattr(kind, name, real)
            handle = self.handle()
            happen(lambda: real(handle, *given, **named))

        monkeypatch.setattr(kind, name, write)

    def rows(self) -> list[dict[str, Any]]:
        return sorted(self.read(), key=lambda row: (row["id"] is None, row["id"]))

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def library_rows(self) -> list[dict[str, Any]]:
        return sorted(self.read_by_library(), key=lambda row: row["id"])


class Live:
    """A run of a sink; each :meth:`commit` gives it some tasks' rows."""

    def __init__(
        self, sink: Sink, home: Path, run: int = 1, columns: T.StructType = COLUMNS, pipeline: str = PIPELINE
    ) -> None:
        self.home = home
        self.sink, self.run, self.pipeline, self.columns = sink, run, pipeline, arrow_columns(columns)
        sink.check_columns(columns)
        self.committer: SinkCommitter = sink.open(SinkContext(pipeline=pipeline, home=home))
        self.committer.expect_columns(columns)
        self.open_writer = self.committer.open_writer()
        claimed = self.committer.claim(run)
        self.number = claimed.commit if claimed else 0

    def begin(self) -> SinkAttempt:
        attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=self.pipeline, commit=self.number + 1, run=self.run)
        self.committer.begin(attempt)
        return attempt

    def write(self, attempt: SinkAttempt, task: int, *batches: Sequence[dict[str, Any]]) -> Mapping[str, Any]:
        """Write a task's rows; returns what the driver is told of them."""
        with closing(self.open_writer(attempt, task)) as writer:
            for batch in batches:
                writer.write(pa.RecordBatch.from_pylist(list(batch), self.columns))
            return writer.finish()

    def stage(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        attempt = self.begin()
        self.committer.pre_commit([self.write(attempt, task, batch) for task, batch in enumerate(tasks)])
        return self.entry(sum(len(batch) for batch in tasks))

    def entry(self, count: int) -> SinkEntry:
        """Return that of the next commit, with so many rows."""
        return SinkEntry(
            commit=self.number + 1,
            run=self.run,
            lineage="l",
            batch=self.number,
            source={"events": {0: (self.number, self.number + 1)}},
            rows=count,
            digest=count,
        )

    def decide(self, entry: SinkEntry) -> None:
        self.put(entry)
        self.committer.settled(self.number)

    def put(self, entry: SinkEntry) -> None:
        """Commit what is staged, and no more: nothing is settled or written together."""
        self.committer.commit(entry)
        self.number += 1

    def commit(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        entry = self.stage(*tasks)
        self.decide(entry)
        return entry

    def audit(self, entries: Sequence[SinkEntry]) -> list[str]:
        return list(self.committer.audit(entries))

    def audit_with_checksums(self, entries: Sequence[SinkEntry]) -> list[str]:
        context = SinkContext(pipeline=self.pipeline, home=self.home, verifies_checksums=True)
        with closing(self.sink.open(context)) as committer:
            return list(committer.audit(entries))

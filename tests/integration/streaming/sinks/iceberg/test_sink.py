"""Iceberg tables: values, columns, partitions, other writers, zombies, retention and the audit, as readers see them."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, IntegerType, LongType, NestedField, StringType, TimestamptzType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.committer import IcebergCommitter
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.iceberg_reader import newest_metadata, read_iceberg

PIPELINE: Final = "shop"
COLUMNS: Final = T.StructType().add("id", T.LongType()).add("k", T.StringType())
NAME: Final = "shop.events"


class Lake:
    """A SQL catalog, with one table that sinks and others write to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
        }

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", **self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(NAME)

    def sink(self, **more: Any) -> IcebergSink:
        return IcebergSink(**{"table": f"lake.{NAME}", "name": "lake", "catalog_properties": self.properties, **more})

    def create(self, *fields: NestedField, **more: Any) -> Table:
        self.catalog.create_namespace_if_not_exists("shop")
        return self.catalog.create_table(NAME, Schema(*fields), **more)

    def rows(self) -> list[dict[str, Any]]:
        """Return all rows as a reader has them that shares no code with the sink."""
        return sorted(
            read_iceberg(newest_metadata(self.folder / "catalog.db", NAME)),
            key=lambda row: (row["id"] is None, row["id"]),
        )

    def ids(self) -> list[int]:
        return [row["id"] for row in self.rows()]

    def files(self) -> list[Path]:
        """Return the data files that are there, whoever refers to them."""
        return sorted((self.folder / "warehouse").rglob("*.parquet"))

    def notes(self) -> list[Path]:
        return sorted((self.folder / "warehouse").rglob("_exactlyonce/*/*/*.json"))

    def foreign(self, first: int, count: int) -> None:
        """Append as any other writer does."""
        table = self.table
        self.table.append(pa.Table.from_pylist(rows(first, count), table.schema().select("id", "k").as_arrow()))

    def expire(self) -> None:
        """Leave no snapshot but the newest."""
        self.table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()


class Live:
    """A run of a sink; each :meth:`commit` gives it some tasks' rows."""

    def __init__(
        self, sink: IcebergSink, home: Path, run: int = 1, columns: T.StructType = COLUMNS, pipeline: str = PIPELINE
    ) -> None:
        self.sink, self.run, self.pipeline = sink, run, pipeline
        sink.check_columns(columns)
        committer = sink.open(SinkContext(pipeline=pipeline, home=home))
        assert isinstance(committer, IcebergCommitter)
        self.committer = committer
        committer.expect_columns(columns)
        self.open_writer = committer.open_writer()
        claimed = committer.claim(run)
        self.number = claimed.commit if claimed else 0
        from pyspark.sql.pandas.types import to_arrow_schema

        self.columns = to_arrow_schema(columns, timezone="UTC")

    def stage(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=self.pipeline, commit=self.number + 1, run=self.run)
        self.committer.begin(attempt)
        written = []
        for task, given in enumerate(tasks):
            with closing(self.open_writer(attempt, task)) as writer:
                writer.write(pa.RecordBatch.from_pylist(list(given), self.columns))
                written.append(writer.finish())
        self.committer.pre_commit(written)
        count = sum(len(given) for given in tasks)
        return SinkEntry(
            commit=self.number + 1,
            run=self.run,
            lineage="l",
            batch=self.number,
            source={"events": {0: (self.number, self.number + 1)}},
            rows=count,
            digest=count,
        )

    def commit(self, *tasks: Sequence[dict[str, Any]]) -> SinkEntry:
        entry = self.stage(*tasks)
        self.decide(entry)
        return entry

    def decide(self, entry: SinkEntry) -> None:
        self.committer.commit(entry)
        self.number += 1
        self.committer.settled(self.number)

    def audit(self, entries: Sequence[SinkEntry]) -> list[str]:
        return list(self.committer.audit(entries))


def rows(first: int, count: int) -> list[dict[str, Any]]:
    return [{"id": number, "k": f"k{number % 3}"} for number in range(first, first + count)]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    (tmp_path / "lake").mkdir()
    return Lake(tmp_path / "lake")


LONG: Final = NestedField(1, "id", LongType(), required=False)
TEXT: Final = NestedField(2, "k", StringType(), required=False)

# Values

EVERY_TYPE = T.StructType(
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
UTC = datetime.UTC
VALUES: list[dict[str, Any]] = [
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


def by_pyiceberg(lake: Lake, **scan: Any) -> list[dict[str, Any]]:
    return sorted(lake.table.scan(**scan).to_arrow().to_pylist(), key=lambda row: row["id"])


def test_every_type_comes_back_as_it_was_by_two_readers(lake: Lake, tmp_path: Path) -> None:
    Live(lake.sink(), tmp_path, columns=EVERY_TYPE).commit(VALUES[:1], VALUES[1:])
    assert lake.rows() == VALUES
    assert by_pyiceberg(lake) == VALUES


def test_files_have_the_ids_of_the_table(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 3))
    with lake.table.update_schema() as update:
        update.rename_column("k", "key")
    assert by_pyiceberg(lake) == [{"id": row["id"], "key": row["k"]} for row in rows(0, 3)]
    assert lake.rows() == by_pyiceberg(lake)


def files_of(lake: Lake) -> list[DataFile]:
    table = IcebergTable(f"lake.{NAME}", lake.properties)
    assert table.open()
    return list(table.current_files())


def test_statistics_leave_out_files_and_no_row(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path, columns=EVERY_TYPE)
    empty = dict.fromkeys(EVERY_TYPE.names)
    other = {**empty, "id": 10, "double": float("nan"), "float": 1.5, "text": "z", "amount": Decimal("5.25")}
    live.commit(VALUES, [other])
    first, second = sorted(files_of(lake), key=lambda file: -file.record_count)
    ids = {field.name: field.field_id for field in lake.table.schema().fields}
    assert (first.record_count, second.record_count) == (3, 1)
    assert first.null_value_counts[ids["text"]] == 1
    assert ids["double"] in first.upper_bounds and ids["double"] not in second.upper_bounds, "NaN is greater than all"
    assert ids["float"] in second.lower_bounds
    for condition, expected in (
        (EqualTo(term=Reference("text"), value=literal("ü" * 100)), [1]),
        ("amount > 5.00", [10]),
        ("at >= '2024-02-29T23:59:59.999999+00:00'", [1]),
        ("local <= '1900-01-01T00:00:00.000001'", [1]),
        ("date < '1600-01-01'", [1]),
        ("big > 1", [1]),
        ("id < 3", [1, 2]),
        ("int = -2147483648", [1]),
        ("bool = true", [1]),
    ):
        assert [row["id"] for row in by_pyiceberg(lake, row_filter=condition)] == expected, condition


@pytest.mark.slow
def test_a_row_group_whose_values_have_no_bounds_leaves_the_file_without(lake: Lake, tmp_path: Path) -> None:
    """Parquet has no bounds of texts that are long: those of the other row groups must not stand for them."""
    live = Live(lake.sink(compression="none"), tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.open_writer(attempt, 0)) as writer:
        writer.write(
            pa.RecordBatch.from_pylist([{"id": number, "k": "m" * 1000} for number in range(34_000)], live.columns)
        )
        writer.write(pa.RecordBatch.from_pylist([{"id": -1, "k": "z" * 10_000}], live.columns))
        task = writer.finish()
    assert pq.read_metadata(task["files"][0]["path"].removeprefix("file://")).num_row_groups == 2
    key = str(lake.table.schema().find_field("k").field_id)
    assert key not in task["files"][0]["statistics"]["upper_bounds"]


ODD = [
    *("", "__HIVE_DEFAULT_PARTITION__", "..", "a/b=ü\n", "50%", "x%2Fy", "a b", "null", "a'b\"c", "😀"),
    *("a#b?c&d+e", "\t", "\\", "x" * 300),
    None,
]


def test_odd_values_of_partitions_come_back_as_they_were(lake: Lake, tmp_path: Path) -> None:
    given = [{"id": number, "k": value} for number, value in enumerate(ODD)]
    Live(lake.sink(partition_by="k"), tmp_path).commit(given)
    assert lake.rows() == given
    assert by_pyiceberg(lake) == given
    for row in given:
        if row["k"] is not None:
            assert by_pyiceberg(lake, row_filter=EqualTo(term=Reference("k"), value=literal(str(row["k"])))) == [row]
    assert len(lake.files()) == len(ODD)


def test_partitions_of_other_types_are_read_as_such(lake: Lake, tmp_path: Path) -> None:
    kinds: dict[str, T.DataType] = {
        "day": T.DateType(),
        "flag": T.BooleanType(),
        "n": T.ShortType(),
        "amount": T.DecimalType(8, 2),
    }
    columns = T.StructType([T.StructField("id", T.LongType()), *(T.StructField(*column) for column in kinds.items())])
    given: list[dict[str, Any]] = [
        {"id": 1, "day": datetime.date(1969, 12, 31), "flag": False, "n": -3, "amount": Decimal("-0.01")},
        {"id": 2, **dict.fromkeys(kinds)},
        {"id": 3, "day": datetime.date(2024, 2, 29), "flag": True, "n": 7, "amount": Decimal("123456.78")},
    ]
    Live(lake.sink(partition_by=list(kinds)), tmp_path, columns=columns).commit(given)
    assert by_pyiceberg(lake) == given
    assert lake.rows() == given
    assert [row["id"] for row in by_pyiceberg(lake, row_filter="amount < 0 and day < '1970-01-01'")] == [1]


INSTANTS = [
    *(datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC)),
    *(datetime.datetime(1583, 2, 28, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, 23, 59, 59, 1, UTC)),
    datetime.datetime(1969, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize(
    "transform", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("year", "month", "day")), "hour"]
)
def test_times_are_partitioned_as_iceberg_has_it(lake: Lake, tmp_path: Path, transform: str) -> None:
    columns = T.StructType().add("id", T.LongType()).add("at", T.TimestampType())
    given: list[dict[str, Any]] = [{"id": number, "at": at} for number, at in enumerate(INSTANTS)]
    Live(lake.sink(partition_by=f"{transform}(at)"), tmp_path, columns=columns).commit([*given, {"id": 99, "at": None}])
    expected = parse_transform(transform).transform(TimestamptzType())
    micros = [(at - datetime.datetime(1970, 1, 1, tzinfo=UTC)) // datetime.timedelta(microseconds=1) for at in INSTANTS]
    values = {file.partition[0] for file in files_of(lake)}
    assert values == {expected(moment) for moment in micros} | {None}
    assert lake.rows() == [*given, {"id": 99, "at": None}]
    for row in given:
        assert by_pyiceberg(lake, row_filter=f"at = '{row['at'].isoformat()}'") == [row]


def test_days_of_dates_are_partitioned_as_iceberg_has_it(lake: Lake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("d", T.DateType())
    days = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(1583, 2, 28)]
    given: list[dict[str, Any]] = [{"id": number, "d": day} for number, day in enumerate(days)]
    for transform in ("year", "month", "day"):
        transformed = partitions._TRANSFORMS[transform](pa.array(days, pa.date32())).to_pylist()
        expected = parse_transform(transform).transform(DateType())
        assert transformed == [expected((day - datetime.date(1970, 1, 1)).days) for day in days]
    Live(lake.sink(partition_by="month(d)"), tmp_path, columns=columns).commit(given)
    assert lake.rows() == given


@pytest.mark.slow
def test_a_file_that_has_its_size_is_closed_and_another_begun(lake: Lake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("b", T.BinaryType())
    live = Live(lake.sink(compression="none", max_file_bytes=2**20), tmp_path, columns=columns)
    live.commit([{"id": number, "b": os.urandom(33 * 2**20)} for number in range(1)], [{"id": 1, "b": b"x"}])
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=2, run=1)
    live.committer.begin(attempt)
    with closing(live.open_writer(attempt, 0)) as writer:
        for number in range(2):
            writer.write(pa.RecordBatch.from_pylist([{"id": number, "b": os.urandom(33 * 2**20)}], live.columns))
        files = writer.finish()["files"]
    assert [file["rows"] for file in files] == [1, 1]


# Columns


def test_a_table_is_made_when_the_tasks_need_it_and_not_before(lake: Lake, tmp_path: Path) -> None:
    sink = lake.sink(partition_by=["k"])
    sink.check_columns(COLUMNS)
    committer = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    assert committer.tail() is None
    assert not (lake.folder / "warehouse").exists()
    Live(sink, tmp_path)
    assert lake.rows() == []
    assert [(field.name, field.field_type, field.required) for field in lake.table.schema().fields] == [
        ("id", LongType(), False),
        ("k", StringType(), False),
    ]
    assert [(field.name, str(field.transform)) for field in lake.table.spec().fields] == [("k", "identity")]


@pytest.mark.parametrize(
    ("has", "more", "said"),
    [
        ([LONG], {}, r"has no column 'k', which the rows have as string.*IcebergSink\(schema='evolve'\)"),
        ([LONG, NestedField(2, "K", StringType())], {}, "has the column 'K', and the rows 'k': rename it"),
        (
            [LONG, NestedField(2, "k", IntegerType())],
            {},
            "column 'k' of .* is int, and the rows have it as string",
        ),
        (
            [LONG, TEXT, NestedField(3, "must", LongType(), required=True)],
            {},
            "column 'must' of table .* is required, and the rows lack it",
        ),
        (
            [LONG, TEXT],
            {"partition_spec": PartitionSpec(PartitionField(2, 1000, parse_transform("identity"), "k"))},
            r"is partitioned by \['k'\], and the sink declares partition_by=\[\]",
        ),
        (
            [LONG, TEXT],
            {"partition_spec": PartitionSpec(PartitionField(1, 1000, parse_transform("bucket[16]"), "b"))},
            r"is partitioned by \['bucket\[16\]\(id\)'\], and the sink declares",
        ),
        (
            [LONG, TEXT],
            {"properties": {"format-version": "1"}},
            "format version 1; this sink writes version 2: ALTER",
        ),
        ([LONG, TEXT], {"properties": {"encryption.key-id": "x"}}, "has encryption.key-id='x', and this sink does not"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name_before_anything_starts(
    lake: Lake, has: list[NestedField], more: dict[str, Any], said: str
) -> None:
    table = lake.create(*has, **more)
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)
    assert lake.table.metadata_location == table.metadata_location


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        (T.StructType(), (), "no columns"),
        (T.StructType().add("id", T.LongType()).add("ID", T.LongType()), (), "differ in case only"),
        (T.StructType().add("v", T.VariantType()), (), "column 'v' has the type variant"),
        (T.StructType().add("id", T.LongType()), ("day",), "partition_by names 'day'; the columns are id"),
        (T.StructType().add("id", T.LongType()), ("bucket[16](id)",), "partition_by names 'bucket"),
        (T.StructType().add("id", T.LongType()), ("truncate(id)",), "truncate is not computed by this sink"),
        (T.StructType().add("at", T.TimestampType()), ("at",), "column 'at' is timestamp; accepted are string"),
        (T.StructType().add("d", T.DateType()), ("hour(d)",), "column 'd' is date; accepted are timestamp"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    lake: Lake, columns: T.StructType, by: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        lake.sink(partition_by=by).check_columns(columns)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A b"}, "name='A b'"),
        ({"table": "events"}, r"IcebergSink\('events'\): name catalog, namespace and table"),
        ({"table": "lake..events"}, "name catalog, namespace and table"),
        ({"schema": "any"}, "schema='any'"),
        ({"compression": "brotli"}, "compression='brotli'"),
        ({"max_file_bytes": 10}, "at least 1 MiB"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(lake: Lake, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        lake.sink(**changed)


def test_the_extra_that_is_missing_is_named(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.io.pyarrow", None)
    with pytest.raises(RefusedError, match=r"pip install 'airflow-provider-exactlyonce\[iceberg\]'"):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize("given", [{}, {"type": "unheard-of"}, {"type": "rest"}])
def test_a_catalog_that_cannot_be_opened_is_refused_and_shows_no_secret(lake: Lake, given: dict[str, str]) -> None:
    sink = lake.sink(catalog_properties={"s3.secret-access-key": "hunter2", **given})
    with pytest.raises(RefusedError, match=r"'lake' can't be opened .* which has s3\.secret-access-key") as refused:
        sink.check_columns(COLUMNS)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_catalog_of_the_environment_is_used(lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg import catalog as pyiceberg_catalog
    from pyiceberg.utils.config import Config

    for name, value in lake.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())  # it is read once
    Live(lake.sink(catalog_properties={}), tmp_path).commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_columns_that_the_table_lacks_are_added_where_that_is_declared(lake: Lake, tmp_path: Path) -> None:
    sink = lake.sink(schema="evolve")
    Live(sink, tmp_path).commit(rows(0, 2))
    nested = T.StructType().add("a", T.ArrayType(T.LongType()))
    wider = T.StructType([*COLUMNS.fields, T.StructField("at", T.TimestampNTZType()), T.StructField("n", nested)])
    at = datetime.datetime(2024, 1, 1)
    newer = Live(sink, tmp_path, run=2, columns=wider)
    newer.commit([{"id": 2, "k": "k2", "at": at, "n": {"a": [1, None]}}])
    older = Live(sink, tmp_path, run=3)
    older.commit(rows(3, 1))
    assert {row["id"]: (row["at"], row["n"]) for row in lake.rows()} == {
        0: (None, None),
        1: (None, None),
        2: (at, {"a": [1, None]}),
        3: (None, None),
    }
    assert lake.rows() == by_pyiceberg(lake)


def test_a_null_in_a_column_that_is_required_in_the_table_is_refused(lake: Lake, tmp_path: Path) -> None:
    lake.create(LONG, NestedField(2, "k", StringType(), required=True))
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 3))
    with pytest.raises(RecordRefusedError) as refused:
        live.stage([{"id": 1, "k": None}])
    assert "column 'k' is required in the table, and null in 1 rows" in str(typed_errors.find(str(refused.value)))
    assert lake.ids() == [0, 1, 2]


# Other writers


def widened(lake: Lake) -> None:
    with lake.table.update_schema() as update:
        update.add_column("more", StringType())


def rewritten(lake: Lake) -> None:
    """Write all files together, as a compaction does."""
    table = lake.table
    table.overwrite(table.scan().to_arrow())


def test_whatever_others_write_meanwhile_a_commit_follows_it(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 5))
    live.commit(rows(5, 5))
    changes: list[Callable[[], object]] = [
        lambda: lake.foreign(1000, 3),
        lambda: rewritten(lake),
        lambda: widened(lake),
        lambda: lake.table.transaction().set_properties({"owner": "me"}).commit_transaction(),
        lambda: lake.table.delete("id >= 1000"),
        lambda: lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "t").commit(),  # type: ignore[union-attr]
        lambda: lake.expire(),
        lambda: lake.foreign(2000, 1),
    ]
    for number, others_change in enumerate(changes):
        entry = live.stage(rows(100 * (number + 1), 2))
        others_change()
        live.decide(entry)
    expected = [*range(10), *(100 * (number + 1) + offset for number in range(8) for offset in range(2)), 2000]
    assert lake.ids() == sorted(expected)
    assert Live(lake.sink(), tmp_path, run=2).number == 10


def test_a_change_between_look_and_write_is_followed(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    real = IcebergTable.append
    for number, others_change in enumerate((lambda: lake.foreign(1000, 2), lambda: widened(lake))):
        entry = live.stage(rows(10 * (number + 1), 2))

        def append(table: IcebergTable, *given: Any, change: Callable[[], object] = others_change) -> None:
            monkeypatch.setattr(IcebergTable, "append", real)
            change()
            real(table, *given)

        monkeypatch.setattr(IcebergTable, "append", append)
        live.decide(entry)
    assert lake.ids() == [0, 1, 10, 11, 20, 21, 1000, 1001]


@pytest.mark.parametrize("change", ["rename", "replace", "partition"])
def test_a_table_that_is_changed_so_that_the_files_do_not_fit_stops_the_pipeline(
    lake: Lake, tmp_path: Path, change: str
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    entry = live.stage(rows(2, 2))
    if change == "rename":
        with lake.table.update_schema() as update:
            update.rename_column("k", "key")
    elif change == "replace":
        with lake.table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("k")
        with lake.table.update_schema() as update:
            update.add_column("k", StringType())
    else:
        with lake.table.update_spec() as spec:
            spec.add_identity("k")
    said = {
        "rename": "has no column 'k'",
        "replace": "has other columns or partitions than at the start",
        "partition": r"is partitioned by \['k'\], and the sink declares partition_by=\[\]",
    }
    with pytest.raises(RefusedError, match=said[change]):
        live.committer.commit(entry)
    assert len(lake.ids()) == 2


def test_two_pipelines_write_to_one_table(lake: Lake, tmp_path: Path) -> None:
    ours, theirs = Live(lake.sink(), tmp_path), Live(lake.sink(), tmp_path, pipeline="other")
    entries: list[list[SinkEntry]] = [[], []]
    for number in range(5):
        first, second = ours.stage(rows(number * 10, 5)), theirs.stage(rows(number * 10 + 5, 5))
        for live, entry, noted in ((ours, first, entries[0]), (theirs, second, entries[1])):
            live.decide(entry)
            noted.append(entry)
    assert lake.ids() == list(range(50))
    assert ours.audit(entries[0]) == theirs.audit(entries[1]) == []
    assert Live(lake.sink(), tmp_path, run=2).number == 5


def test_pipelines_and_others_that_write_at_the_same_time_neither_lose_nor_double(lake: Lake, tmp_path: Path) -> None:
    lives = [Live(lake.sink(), tmp_path, pipeline=f"p{number}") for number in range(3)]
    commits, failures = 6, []

    def write(number: int) -> None:
        live = lives[number]
        for batch in range(commits):
            entry = live.stage(rows(1000 * number + 10 * batch, 10))
            while live.number == batch:
                try:
                    live.decide(entry)
                except CommitUnknownError:  # SQLite was busy for too long: a claim tells
                    claimed = live.committer.claim(1)
                    live.number = claimed.commit if claimed else 0
                    entry = entry if live.number > batch else live.stage(rows(1000 * number + 10 * batch, 10))
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(lives))]
    for thread in threads:
        thread.start()
    for number in range(3):
        lake.foreign(9000 + number, 1)
    for thread in threads:
        thread.join()
    assert failures == []
    ours = [1000 * number + offset for number in range(len(lives)) for offset in range(10 * commits)]
    assert lake.ids() == [*ours, 9000, 9001, 9002]


# Zombies


def test_a_zombie_with_an_older_or_a_fresh_handle_commits_nothing(lake: Lake, tmp_path: Path) -> None:
    old = Live(lake.sink(), tmp_path)
    entry = old.stage(rows(0, 2))
    successor = Live(lake.sink(), tmp_path, run=2)
    with pytest.raises(FencedError, match="run 1 of pipeline shop is superseded by run 2"):
        old.committer.commit(entry)
    again = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    again.expect_columns(COLUMNS)
    with pytest.raises(FencedError):
        again.claim(1)
    successor.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_what_pyiceberg_itself_would_take(lake: Lake, tmp_path: Path) -> None:
    """What the sink rests on: its own commit is refused behind a claim, and pyiceberg's is put on top of it."""
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 1))
    stale = IcebergTable(f"lake.{NAME}", lake.properties)
    assert stale.open()
    zombie = lake.table
    Live(lake.sink(), tmp_path, run=2)
    with pytest.raises(CommitFailedException, match="branch main has changed"):
        stale.append([], {}, lambda snapshot, sequence: {})
    zombie.append(pa.Table.from_pylist(rows(7, 1), zombie.schema().as_arrow()))
    assert lake.ids() == [0, 7], "a retry has put it on top of the claim"


def test_a_property_alone_does_not_fence(lake: Lake, tmp_path: Path) -> None:
    """Why a claim is a snapshot: no requirement of a write says what a property has to be."""
    Live(lake.sink(), tmp_path).commit(rows(0, 1))
    stale = IcebergTable(f"lake.{NAME}", lake.properties)
    assert stale.open()
    lake.table.transaction().set_properties({"claimed-by": "run 2"}).commit_transaction()
    stale.append([], {}, lambda snapshot, sequence: {"claimed-by": "run 1"})
    assert lake.table.properties["claimed-by"] == "run 1"


# Unknown outcomes


def lose_answers(monkeypatch: pytest.MonkeyPatch, error: Exception, *, before: bool) -> None:
    """Lose an answer of the catalog's, once."""
    real = Table._do_commit

    def commit(table: Table, **given: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", real)
        if not before:
            real(table, **given)
        raise error

    monkeypatch.setattr(Table, "_do_commit", commit)


@pytest.mark.parametrize("error", [ConnectionError("the answer was lost"), CommitFailedException("409, repeated")])
def test_a_commit_whose_answer_is_lost_is_found(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    live = Live(lake.sink(), tmp_path)
    lose_answers(monkeypatch, error, before=False)
    live.commit(rows(0, 2))
    live.commit(rows(2, 2))
    assert lake.ids() == [0, 1, 2, 3]
    assert len(lake.files()) == 2


def test_a_commit_whose_request_is_lost_is_in_doubt_until_a_claim(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    lose_answers(monkeypatch, ConnectionError("the request was lost"), before=True)
    with pytest.raises(CommitUnknownError, match=r"a snapshot of table .* after \d+ may be written or not"):
        live.committer.commit(entry)
    assert len(lake.files()) == 1, "they may be committed"
    assert live.committer.claim(1) is None
    assert lake.files() == []
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_that_is_refused_while_nobody_else_wrote_is_tried_again(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    lose_answers(monkeypatch, CommitFailedException("busy"), before=True)
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_that_was_refused_and_no_longer_fits_keeps_its_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    real = Table._do_commit

    def commit(table: Table, **_: Any) -> None:
        monkeypatch.setattr(Table, "_do_commit", real)
        with lake.table.update_spec() as spec:
            spec.add_identity("k")
        raise CommitFailedException("a second request was refused, and the first one may be carried out")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(CommitUnknownError, match=r"commit 1 is in doubt, and can't .*: .* is partitioned by"):
        live.committer.commit(entry)
    assert len(lake.files()) == 1


def test_a_request_that_arrives_after_the_claim_that_decided_is_refused(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    late: list[Callable[[], None]] = []
    real = Table._do_commit

    def delay(table: Table, **given: Any) -> None:
        on_its_way = lake.table
        late.append(lambda: real(on_its_way, **given))
        raise ConnectionError("no answer yet")

    with monkeypatch.context() as patched:
        patched.setattr(Table, "_do_commit", delay)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    with pytest.raises(CommitFailedException):
        late[0]()
    live.commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_commit_whose_answer_is_lost_until_a_successor_has_committed_keeps_its_files(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    real = Table._do_commit

    def commit(table: Table, **given: Any) -> None:
        real(table, **given)
        monkeypatch.setattr(Table, "_do_commit", real)
        successor = Live(lake.sink(), tmp_path, run=2)
        assert successor.number == 1
        successor.commit(rows(2, 2))
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(Table, "_do_commit", commit)
    with pytest.raises(CommitUnknownError, match="has commit 2 by another attempt than the one at 1"):
        live.committer.commit(entry)
    with pytest.raises(FencedError):
        live.committer.claim(1)
    assert lake.ids() == [0, 1, 2, 3]


# Retention, and tables that were set back


def test_the_newest_commit_is_known_when_its_snapshot_has_expired(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(0, 2)), live.commit(rows(2, 2))]
    lake.foreign(100, 1)
    rewritten(lake)
    lake.expire()
    assert len(lake.table.snapshots()) == 1
    assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[-1]
    newer = Live(lake.sink(), tmp_path, run=2)
    assert newer.number == 2
    entries.append(newer.commit(rows(4, 2)))
    assert lake.ids() == [0, 1, 2, 3, 4, 5, 100]
    assert newer.audit(entries) == []
    with pytest.raises(FencedError):
        live.committer.claim(1)


@pytest.mark.slow
@pytest.mark.parametrize("superseded", [False, True])
def test_a_run_that_was_frozen_for_longer_than_snapshots_are_kept_sees_what_happened(
    lake: Lake, tmp_path: Path, superseded: bool
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    entry = live.stage(rows(2, 2))
    if superseded:
        Live(lake.sink(), tmp_path, run=2).commit(rows(2, 2))
    for _ in range(3):
        lake.foreign(100, 1)
    lake.expire()
    if superseded:
        with pytest.raises(FencedError):
            live.committer.commit(entry)
    else:
        live.committer.commit(entry)
    assert lake.ids() == [0, 1, 2, 3, 100, 100, 100]


def snapshot_of(lake: Lake, commit: int) -> int:
    (snapshot_id,) = (
        snapshot.snapshot_id
        for snapshot in lake.table.snapshots()
        if snapshot.summary is not None
        and snapshot.summary.additional_properties.get("exactlyonce.commit") == str(commit)
    )
    return snapshot_id


def test_a_table_that_was_set_back_says_what_it_has_and_what_was_after_stays(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(4)]
    forward = lake.table.current_snapshot()
    assert forward is not None
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot_of(lake, 2)).commit()
    assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[1]
    with pytest.raises(CommitUnknownError, match=r"has commit 2 .* would write commit 5: it was set back"):
        live.committer.commit(live.stage(rows(8, 2)))
    newer = Live(lake.sink(), tmp_path, run=2)
    assert newer.number == 2
    again = [newer.commit(rows(number * 2, 2)) for number in (2, 3)]
    assert lake.ids() == list(range(8))
    assert newer.audit([*entries[:2], *again]) == []
    Live(lake.sink(), tmp_path, run=3)
    assert lake.table.scan(snapshot_id=forward.snapshot_id).to_arrow().num_rows == 8, "who looks there finds all files"
    with pytest.raises(FencedError):
        live.committer.claim(1)


def test_a_table_that_was_set_back_behind_all_commits_is_refused_by_name(lake: Lake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT)
    lake.foreign(100, 2)
    start = lake.table.current_snapshot()
    assert start is not None
    Live(lake.sink(), tmp_path).commit(rows(0, 2))
    lake.table.manage_snapshots().rollback_to_snapshot(start.snapshot_id).commit()
    with pytest.raises(RefusedError, match="was set back behind its commit 1, to where no snapshot says"):
        lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()
    lake.expire()
    with pytest.raises(RefusedError, match="was set back behind its commit 1"):
        lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def test_a_commit_that_a_tag_keeps_beside_main_is_in_doubt_until_the_tag_is_dropped(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.commit(rows(0, 2))
    lake.table.manage_snapshots().create_tag(snapshot_of(lake, 1), "kept").commit()
    for number in range(2):
        lake.foreign(100 + number, 1)
    lake.expire()
    committer = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    with pytest.raises(RefusedError, match=r"has commit 1 in snapshot \d+, and main does not lead there any more"):
        committer.tail()
    lake.table.manage_snapshots().remove_tag("kept").commit()
    lake.expire()
    assert committer.tail() == entry


def test_a_table_that_was_made_anew_has_nothing(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    entry = live.stage(rows(2, 2))
    lake.catalog.drop_table(NAME)
    lake.create(LONG, TEXT)
    with pytest.raises(CommitUnknownError, match="has commit 0 and the claim of run 0, and run 1 would write commit 2"):
        live.committer.commit(entry)
    assert len(lake.files()) == 2
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert lake.ids() == []
    assert len(lake.files()) == 2, "who registers the table of before finds its files"
    assert lake.notes() == []


def test_what_a_task_that_ran_twice_has_left_goes_when_the_commit_is_settled(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    (kept,) = lake.files()
    shutil.copy(kept, kept.with_name("00000-twice.parquet"))
    live.committer.commit(entry)
    assert len(lake.files()) == 2
    live.committer.settled(1)
    assert lake.files() == [kept]
    assert lake.notes() == []


def test_a_claim_removes_nothing_that_may_be_committed(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    for first in (0, 2):  # and dies before they are settled
        live.committer.commit(live.stage(rows(first, 2)))
        live.number += 1
    snapshot = snapshot_of(lake, 2)
    assert len(lake.notes()) == 2
    rewritten(lake)
    before = lake.files()
    Live(lake.sink(), tmp_path, run=2)
    assert lake.files() == before, "older snapshots have them"
    assert lake.table.scan(snapshot_id=snapshot).to_arrow().num_rows == 4
    assert lake.notes() == []


def test_a_run_that_was_frozen_since_its_claim_leaves_a_successors_attempt_alone(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = IcebergCommitter._sweep

    def sweep(committer: IcebergCommitter) -> None:
        monkeypatch.setattr(IcebergCommitter, "_sweep", real)
        successor = Live(lake.sink(), tmp_path, run=2)
        entry = successor.stage(rows(0, 2))
        real(committer)
        successor.decide(entry)

    monkeypatch.setattr(IcebergCommitter, "_sweep", sweep)
    Live(lake.sink(), tmp_path, run=1)
    assert lake.ids() == [0, 1]


def test_files_that_the_driver_does_not_see_are_not_committed(lake: Lake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.open_writer(attempt, 0)) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows(0, 2), live.columns))
        task = writer.finish()
    lake.files()[0].unlink()
    with pytest.raises(BatchFailedError, match="is not there for the driver: both have to see the same table"):
        live.committer.pre_commit([task])


def test_manifests_are_merged_when_there_are_many(lake: Lake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT, properties={"commit.manifest.min-count-to-merge": "5"})
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(12)]
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(lake.table.io)) < 6
    assert lake.ids() == list(range(24))
    assert live.audit(entries) == []


# The audit


@pytest.fixture
def audited(lake: Lake, tmp_path: Path) -> tuple[Live, list[SinkEntry]]:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 10, 10)) for number in range(3)]
    assert live.audit(entries) == []
    return live, entries


def test_the_audit_names_files_that_are_gone_or_cut(audited: tuple[Live, list[SinkEntry]], lake: Lake) -> None:
    live, entries = audited
    first, second, _ = lake.files()
    first.unlink()
    second.write_bytes(second.read_bytes()[:-1])
    findings = sorted(live.audit(entries))
    assert len(findings) == 2
    assert any(f"{first}: a file of the table with 10 rows is missing" in text for text in findings)
    assert any(str(second) in text and "bytes, and the table says" in text for text in findings)


def test_the_audit_names_rows_that_others_have_removed(audited: tuple[Live, list[SinkEntry]], lake: Lake) -> None:
    live, entries = audited
    lake.table.delete("id = 15")
    findings = live.audit(entries)
    assert (
        len(findings) == 1
        and findings[0].startswith("commit 2: snapshot ")
        and "has changed or removed rows" in findings[0]
    )


def test_the_audit_names_commits_behind_which_the_table_was_set_back(
    audited: tuple[Live, list[SinkEntry]], lake: Lake
) -> None:
    live, entries = audited
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot_of(lake, 1)).commit()
    findings = live.audit(entries)
    assert sorted(text.partition(":")[0] for text in findings) == ["commit 2", "commit 3"]


def test_the_audit_names_a_commit_that_the_ledger_lacks(audited: tuple[Live, list[SinkEntry]]) -> None:
    live, entries = audited
    assert live.audit(entries[:2]) == [], "the next one may be under way"
    findings = live.audit(entries[:1])
    assert (
        len(findings) == 1 and findings[0].startswith("commit 3: table ") and "the pipeline's ledger not" in findings[0]
    )


def test_the_audit_says_that_there_is_no_table(lake: Lake, tmp_path: Path) -> None:
    entry = SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=1, digest=1)
    findings = list(lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).audit([entry]))
    assert len(findings) == 1 and findings[0].startswith("commit 1: there is no table ")

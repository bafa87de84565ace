"""Independent readers of the topics and tables, each with its judge: nothing here is the writers' code."""

from __future__ import annotations

import json
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import KafkaException
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError
from psycopg import Error as PostgresError

from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, ledger_topic
from tests.crash_matrix.observer import Observer
from tests.postgres import PostgresServer
from tests.soak import names
from tests.soak.journal import Journal
from tests.soak.judge import Finding, Judge
from tests.soak.script import ACCOUNT, COLUMNS, ID, Rows, Script

_NO_CENTS = -(10**15)
_STEP = 500_000  # bookings that are read from a table at once
_SILENT_SECONDS = 60.0
#: What a table's server, or its store, does not answer with while it is away.
AWAY = (PostgresError, DeltaError, pa.ArrowException, OSError)

Tell = Callable[[Iterable[Finding]], None]


def cents(value: Decimal) -> int:
    """Return an amount in cents; of one that has parts of a cent, what no amount is."""
    scaled = value * 100
    return int(scaled) if scaled == int(scaled) else _NO_CENTS


def rows_of(values: Iterable[bytes]) -> Rows:
    """Return records of the topic between the pipelines as rows."""
    rows = []
    for value in values:
        row = json.loads(value, parse_float=Decimal)
        money = (cents(Decimal(row[name])) for name in ("amount", "balance"))
        rows.append((row["id"], int(row["account"]), row["number"], *money))
    return np.array(rows, np.int64).reshape(-1, len(COLUMNS))


def source_rows_of(values: Iterable[bytes], script: Script) -> Rows:
    """Return records of the source as rows; what they don't have is taken from the script."""
    read = [json.loads(value, parse_float=Decimal) for value in values]
    rows = script.rows(np.array([row["id"] for row in read], np.int64))
    for row, body in zip(rows, read, strict=True):
        row[ACCOUNT], row[3] = int(body["account"]), cents(Decimal(body["amount"]))
    return rows


class Tiling:
    """Checks one pipeline's ledger: commits have no gap, and their source ranges neither gaps nor overlaps."""

    def __init__(self, pipeline: str, source: str) -> None:
        self._where, self._source = f"ledger of {pipeline}", source
        self.commit = 0
        self._ends: dict[int, int] = {}

    def add(self, record: CommitRecord) -> list[Finding]:
        """Judge the next commit."""
        notes = []
        if record.commit != self.commit + 1:
            notes.append(f"commit {record.commit} follows commit {self.commit}")
        for partition, (start, end) in record.source.get(self._source, {}).items():
            if start != self._ends.get(partition, 0):
                notes.append(
                    f"commit {record.commit} takes partition {partition} from {start}, not {self._ends.get(partition)}"
                )
            self._ends[partition] = end
        self.commit = record.commit
        return [Finding(self._where, "torn", 1, note) for note in notes]


class TopicReader:
    """Reads one topic and one ledger on and on; both judged.

    :param rows_of: makes rows of the topic's records
    :ivar commits: when each commit's batch began and when it was committed, seconds since the epoch
    :ivar version: which the newest commit is of
    :ivar records: how many the ledger has
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        topic: str,
        pipeline: str,
        source: str,
        rows_of: Callable[[Iterable[bytes]], Rows],
        judge: Judge,
        journal: Journal,
        tell: Tell,
    ) -> None:
        self.judge = judge
        self.pipeline = pipeline
        self.commits: list[tuple[float, float]] = []
        self.version = ""
        self.records = 0
        self._rows_of, self._journal, self._tell = rows_of, journal, tell
        self._tiling = Tiling(pipeline, source)
        self._observer = Observer(config, topic, ledger_topic(pipeline))
        self._heard = time.monotonic()

    def poll(self) -> None:
        """Take in what has come; connect anew when nothing came for long, as after a broker's end."""
        observer = self._observer
        observer.poll()
        if observer.rows or observer.commits:
            self._heard = time.monotonic()
        elif time.monotonic() - self._heard > _SILENT_SECONDS:
            self._heard = time.monotonic()
            observer.reconnect()
        rows = self._rows_of(list(observer.rows.values()))
        observer.rows.clear()
        self._tell(self.judge.read_on(rows))
        for commit in observer.commits:
            self._tell(self._tiling.add(commit))
            self.commits.append((commit.started / 1000, commit.committed / 1000))
            self.version = commit.version
            self._journal.note(
                "commit",
                pipeline=self.pipeline,
                commit=commit.commit,
                run=commit.run,
                committed=commit.committed / 1000,
                seconds=(commit.committed - commit.started) / 1000,
                rows=commit.rows,
                version=commit.version,
            )
        for claim in observer.runs:
            if isinstance(claim, ClaimRecord):
                self._journal.note("claim", pipeline=self.pipeline, run=claim.run, claimed=claim.claimed / 1000)
        self.records += len(observer.commits) + len(observer.runs)
        observer.commits.clear()
        observer.runs.clear()

    def recovered(self, since: float) -> float | None:
        """Return how long after a moment the first batch was committed that began after it, None for none yet."""
        place = bisect_left(self.commits, (since, 0.0))
        return self.commits[place][1] - since if place < len(self.commits) else None

    def close(self) -> None:
        self._observer.close()


class TableReader(ABC):
    """Looks at a table again and again.

    :param judge: of all looks
    """

    def __init__(self, judge: Judge, script: Script, tell: Tell) -> None:
        self.judge = judge
        self._script, self._tell = script, tell
        self._lock = threading.Lock()

    def look(self) -> int:
        """Judge what is new; returns the booking before which all were there at this moment.

        :raises Exception: one of :data:`AWAY`, when the table can't be read now
        """
        with self._lock:
            since = self.judge.floor
            self._tell(self.judge.look_again(self.rows(since, None), since))
            return self.judge.floor

    def read_all(self, sent: int) -> int:
        """Judge the whole table at the end, from its beginning; returns its rows."""
        judge = Judge(f"{self.judge.where}, all of it", self._script)
        for start in range(0, max(sent, self.judge.rows) + 1, _STEP):
            rows = self.rows(start, start + _STEP)
            self._tell(judge.read_on(rows[np.argsort(rows[:, ID], kind="stable")]))
        self._tell(judge.complete(sent))
        return judge.rows

    @abstractmethod
    def rows(self, since: int, before: int | None) -> Rows:
        """Return the rows of these bookings as the table has them at one moment."""

    @abstractmethod
    def facts(self) -> dict[str, int]:
        """Return what is measured of it."""


class PostgresReader(TableReader):
    """Asks in SQL."""

    def __init__(self, parameters: Mapping[str, str], judge: Judge, script: Script, tell: Tell) -> None:
        super().__init__(judge, script, tell)
        self._parameters = parameters

    def rows(self, since: int, before: int | None) -> Rows:
        query = (
            "SELECT id, account::bigint, number, (amount * 100)::bigint, (balance * 100)::bigint "
            f"FROM {names.POSTGRES_TABLE} WHERE id >= %s AND (%s::bigint IS NULL OR id < %s::bigint)"
        )
        return _array(self._ask(query, since, before, before))

    def facts(self) -> dict[str, int]:
        [(size,)] = self._ask("SELECT pg_database_size(current_database())")
        return {"PostgreSQL, bytes": int(size)}

    def _ask(self, query: str, *values: object) -> Sequence[Sequence[Any]]:
        # A server that is frozen answers nothing; the next look may find another.
        with PostgresServer.connect({**self._parameters, "connect_timeout": 5}) as connection:
            return connection.execute(query, values).fetchall()


class DeltaReader(TableReader):
    """Reads the newest version with delta-rs."""

    def __init__(self, options: Mapping[str, str], judge: Judge, script: Script, tell: Tell) -> None:
        super().__init__(judge, script, tell)
        self._options = dict(options)

    def rows(self, since: int, before: int | None) -> Rows:
        try:
            table = self._table()
        except TableNotFoundError:
            if self.judge.rows:  # it was there
                raise
            return _array(())
        wanted = pc.field("id") >= since
        if before is not None:
            wanted = wanted & (pc.field("id") < before)
        return delta_rows(table.to_pyarrow_dataset().to_table(columns=list(COLUMNS), filter=wanted))

    def facts(self) -> dict[str, int]:
        table = self._table()
        files = table.get_add_actions(flatten=True)
        return {"Delta, versions": table.version(), "Delta, files of the newest version": files.num_rows}

    def _table(self) -> DeltaTable:
        return DeltaTable(names.DELTA_TABLE, storage_options=self._options)


def delta_rows(table: pa.Table) -> Rows:
    """Return what a Delta table gave as rows; a part of a cent is an error of Arrow's."""
    hundred = pa.scalar(Decimal(100), pa.decimal128(3, 0))
    columns = [
        pc.cast(pc.multiply(column, hundred) if pa.types.is_decimal(column.type) else column, pa.int64())
        for column in table.columns
    ]
    return np.stack([column.to_numpy() for column in columns], axis=1).reshape(-1, len(COLUMNS))


def _array(rows: Sequence[Sequence[Any]]) -> Rows:
    return np.array(rows, np.int64).reshape(-1, len(COLUMNS))


def follow(readers: Iterable[TopicReader], ended: threading.Event) -> None:
    """Read topics until it is over. A broker that does not answer is none of the readers' errors."""
    while not ended.wait(0.1):
        for reader in readers:
            try:
                reader.poll()
            except KafkaException:
                continue

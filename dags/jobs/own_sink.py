"""A sink of one's own: rows go into a table of an SQLite file, exactly once, on one machine."""

import json
import os
import shutil
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.exceptions import FencedError, RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, Sink, pipeline
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    TWO_PHASE_COMMIT,
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
    SinkWriter,
)

LEDGER = "CREATE TABLE IF NOT EXISTS ledger (pipeline TEXT, sink TEXT, number INT, entry TEXT)"
RUNS = "CREATE TABLE IF NOT EXISTS runs (pipeline TEXT, sink TEXT, run INT, PRIMARY KEY (pipeline, sink))"


@dataclass(frozen=True, kw_only=True)
class SqliteSink(Sink):
    """Where the rows go: a table that exists."""

    path: Path
    table: str

    guarantee = TWO_PHASE_COMMIT

    @property
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"table": (str(self.path), self.table)}

    def check_columns(self, columns: Any) -> None:
        with closing(sqlite3.connect(self.path)) as database:
            known = [row[1] for row in database.execute(f"PRAGMA table_info({self.table})")]
        if unknown := [name for name in columns.names if name not in known]:
            raise RefusedError(f"table {self.table} of {self.path} has no column {unknown[0]}; it has {known}")

    def open(self, context: SinkContext) -> SinkCommitter:
        return SqliteCommitter(self, context)


class SqliteWriter(SinkWriter):
    """Stages a task's rows in a file, which nobody reads before the commit."""

    def __init__(self, folder: Path, task: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{task}-{uuid.uuid4()}"
        self.file = self.path.open("w")

    def write(self, rows: Any) -> None:
        self.file.writelines(json.dumps(row) + "\n" for row in rows.to_pylist())

    def finish(self) -> Mapping[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        return {"file": str(self.path)}

    def close(self) -> None:
        self.file.close()


class SqliteCommitter(SinkCommitter):
    """Moves staged rows into the table, and notes the commit, in one transaction."""

    def __init__(self, sink: SqliteSink, context: SinkContext) -> None:
        self.table, self.key = sink.table, (context.pipeline, sink.name)
        self.staging = sink.path.with_name(f"{sink.path.name}.{context.pipeline}.{sink.name}")
        self.database = sqlite3.connect(sink.path, isolation_level=None, check_same_thread=False)
        self.files: list[str] = []
        self.run = 0

    def tail(self) -> SinkEntry | None:
        if not self.database.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone():
            return None
        newest = "SELECT entry FROM ledger WHERE (pipeline, sink) = (?, ?) ORDER BY number DESC LIMIT 1"
        found = self.database.execute(newest, self.key).fetchone()
        return None if found is None else SinkEntry.from_json(found[0])

    def claim(self, run: int) -> SinkEntry | None:
        for statement in (LEDGER, RUNS, "BEGIN IMMEDIATE"):
            self.database.execute(statement)
        try:
            self._check_run(run)
            self.database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (*self.key, run))
            self.database.execute("COMMIT")
        finally:
            self._roll_back()
        self.run = run
        shutil.rmtree(self.staging, ignore_errors=True)
        return self.tail()

    def open_writer(self) -> OpenWriter:
        staging = self.staging
        return lambda attempt, task: SqliteWriter(staging / attempt.name, task)

    def begin(self, attempt: SinkAttempt) -> None:
        self.files = []

    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self.files = [told["file"] for told in written]

    def commit(self, entry: SinkEntry) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        try:
            self._check_run(self.run)
            for file in self.files:
                for line in Path(file).read_text().splitlines():
                    row = json.loads(line)
                    marks = ", ".join("?" * len(row))
                    statement = f"INSERT INTO {self.table} ({', '.join(row)}) VALUES ({marks})"
                    self.database.execute(statement, list(row.values()))
            self.database.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", (*self.key, entry.commit, entry.to_json()))
            self.database.execute("COMMIT")
        finally:
            self._roll_back()

    def abort(self) -> None:
        self.files = []

    def settled(self, commit: int) -> None:
        shutil.rmtree(self.staging, ignore_errors=True)

    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        entry_of = "SELECT entry FROM ledger WHERE (pipeline, sink, number) = (?, ?, ?)"
        for commit in commits:
            found = self.database.execute(entry_of, (*self.key, commit.commit)).fetchone()
            if found is None or not SinkEntry.from_json(found[0]).is_same_output(commit):
                yield f"commit {commit.commit}: the table's ledger has {found}"

    def close(self) -> None:
        self.database.close()

    def _check_run(self, run: int) -> None:
        found = self.database.execute("SELECT run FROM runs WHERE (pipeline, sink) = (?, ?)", self.key).fetchone()
        if found is not None and found[0] > run:
            raise FencedError(f"run {run} of {self.key[0]} is superseded by run {found[0]} in {self.key[1]}")

    def _roll_back(self) -> None:
        if self.database.in_transaction:
            self.database.execute("ROLLBACK")


@pipeline(
    name=os.environ.get("OWN_SINK_PIPELINE", "own-sink"),
    source=KafkaSource(
        os.environ.get("OWN_SINK_SOURCE", "payments"),
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ.get("OWN_SINK_BATCH", "100000")),
    ),
    sink=[
        SqliteSink(name="table", path=Path(os.environ.get("OWN_SINK_FILE", "payments.db")), table="payments"),
        KafkaSink(os.environ.get("OWN_SINK_TOPIC", "payments-seen"), key="k"),
    ],
)
def own_sink(payments: DataFrame) -> DataFrame:
    return payments.selectExpr("id", "k", "CAST(v AS DOUBLE) AS v")


if __name__ == "__main__":
    own_sink.main()

"""The same rows into four sinks, one of each kind, in tables of one SQLite file; from Kafka, or from a socket."""

import json
import os
import signal
import sqlite3
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_exactlyonce.streaming import KafkaSource, Sink, pipeline
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    IDEMPOTENT,
    NEITHER,
    TWO_PHASE_COMMIT,
    WRITE_AHEAD_LOG,
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
    SinkWriter,
)

SOCKET = os.environ.get("TEST_SOCKET")
#: The log delivers a batch with this record, and the driver dies before it has noted that.
DIES_AT = int(os.environ.get("TEST_DIES_AT", "-1"))


@dataclass(frozen=True, kw_only=True)
class TableSink(Sink):
    """A table of the sink's name."""

    path: Path
    writes: str

    @property
    def guarantee(self) -> str:
        return self.writes

    @property
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"path": (str(self.path),)}

    def check_columns(self, columns: Any) -> None:
        pass

    def open(self, context: SinkContext) -> SinkCommitter:
        return {
            NEITHER: Appending,
            IDEMPOTENT: Upserting,
            WRITE_AHEAD_LOG: Logging,
            TWO_PHASE_COMMIT: Committing,
        }[self.writes](self)


class Writer(SinkWriter):
    def __init__(self, file: Path) -> None:
        self.path, self.file = file, file.open("w")

    def write(self, rows: Any) -> None:
        self.file.writelines(f"{row['id']}\n" for row in rows.to_pylist())

    def finish(self) -> Mapping[str, Any]:
        self.file.flush()
        return {"file": str(self.path)}

    def close(self) -> None:
        self.file.close()


class Appending(SinkCommitter):
    """Any sink: rows are appended, and which commit they were of is noted later."""

    column = "id INT"

    def __init__(self, sink: TableSink) -> None:
        self.name, self.folder = sink.name, sink.path.parent
        self.database = sqlite3.connect(sink.path, isolation_level=None, check_same_thread=False, timeout=30)
        self.database.execute(f"CREATE TABLE IF NOT EXISTS {self.name} ({self.column})")
        self.database.execute("CREATE TABLE IF NOT EXISTS notes (sink TEXT PRIMARY KEY, entry TEXT)")
        self.ids: list[int] = []
        self.entry: SinkEntry | None = None

    def tail(self) -> SinkEntry | None:
        row = self.database.execute("SELECT entry FROM notes WHERE sink = ?", (self.name,)).fetchone()
        return None if row is None else SinkEntry.from_json(row[0])

    def claim(self, run: int) -> SinkEntry | None:
        return self.tail()

    def open_writer(self) -> OpenWriter:
        folder = self.folder
        return lambda attempt, task: Writer(folder / f"{attempt.name}-{task}-{uuid.uuid4()}")

    def begin(self, attempt: SinkAttempt) -> None:
        self.ids = []

    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self.ids = [int(line) for task in written for line in Path(task["file"]).read_text().splitlines()]

    def commit(self, entry: SinkEntry) -> None:
        self.entry = entry
        self.deliver(self.ids)

    def deliver(self, ids: Sequence[int]) -> None:
        self.database.executemany(f"INSERT OR REPLACE INTO {self.name} VALUES (?)", [(number,) for number in ids])

    def note(self) -> None:
        if self.entry is not None:
            noted = (self.name, self.entry.to_json())
            self.database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?)", noted)

    def abort(self) -> None:
        self.ids = []

    def settled(self, commit: int) -> None:
        self.note()

    def audit(self, commits: Iterable[SinkEntry]) -> Iterable[str]:
        return ()

    def close(self) -> None:
        self.database.close()


class Upserting(Appending):
    """An idempotent sink: a row that is there already is replaced."""

    column = "id INT PRIMARY KEY"


class Committing(Appending):
    """Rows and note in one transaction."""

    def commit(self, entry: SinkEntry) -> None:
        self.database.execute("BEGIN IMMEDIATE")
        super().commit(entry)
        self.note()
        self.database.execute("COMMIT")


class Logging(Appending):
    """Rows and note go to a log; what the log has is delivered after the commit, and then taken off it."""

    def __init__(self, sink: TableSink) -> None:
        super().__init__(sink)
        self.database.execute("CREATE TABLE IF NOT EXISTS log (number INT, ids TEXT)")

    def claim(self, run: int) -> SinkEntry | None:
        self.settled(0)
        return self.tail()

    def commit(self, entry: SinkEntry) -> None:
        self.entry = entry
        self.database.execute("BEGIN IMMEDIATE")
        self.database.execute("INSERT INTO log VALUES (?, ?)", (entry.commit, json.dumps(self.ids)))
        self.note()
        self.database.execute("COMMIT")

    def settled(self, commit: int) -> None:
        for number, ids in self.database.execute("SELECT number, ids FROM log").fetchall():
            self.deliver(json.loads(ids))
            if DIES_AT in json.loads(ids):
                os.killpg(0, signal.SIGKILL)
            self.database.execute("DELETE FROM log WHERE number = ?", (number,))


def sinks() -> list[TableSink]:
    path = Path(os.environ["TEST_DATABASE"])
    kinds = {"logged": WRITE_AHEAD_LOG, "appended": NEITHER, "upserted": IDEMPOTENT, "committed": TWO_PHASE_COMMIT}
    return [TableSink(name=name, path=path, writes=writes) for name, writes in kinds.items()]


def from_socket() -> DataFrame:
    lines = SparkSession.active().readStream.format("socket").option("host", "127.0.0.1").option("port", SOCKET).load()
    return lines.selectExpr("CAST(value AS INT) AS id")


def from_kafka(events: DataFrame) -> DataFrame:
    return events.selectExpr("CAST(id AS INT) AS id")


table = pipeline(
    name=os.environ["TEST_PIPELINE"],
    source={}
    if SOCKET
    else KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=100,
    ),
    sink=sinks(),
    allow_weaker=True,
)(from_socket if SOCKET else from_kafka)


if __name__ == "__main__":
    table.main()

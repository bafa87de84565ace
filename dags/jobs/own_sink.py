"""A sink of one's own: rows go into a table of an SQLite file, exactly once."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, Sink, pipeline
from airflow_provider_exactlyonce.streaming.sinks.spi import TWO_PHASE_COMMIT, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.staged import StagedCommitter


# [START own_sink]
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

    def open(self, context: SinkContext) -> StagedCommitter:
        return SqliteCommitter(self, context)


class SqliteCommitter(StagedCommitter):
    """Moves staged rows into the table, and notes the commit, in one transaction."""

    def __init__(self, sink: SqliteSink, context: SinkContext) -> None:
        super().__init__(sink, context)
        self.table = sink.table
        self.database = sqlite3.connect(sink.path, isolation_level=None, check_same_thread=False)

    def entry_of(self, commit: int | None) -> SinkEntry | None:
        if not self.database.execute("SELECT 1 FROM sqlite_master WHERE name = 'ledger'").fetchone():
            return None
        which = "AND number = ?" if commit is not None else "AND ? IS NULL ORDER BY number DESC LIMIT 1"
        query = f"SELECT entry FROM ledger WHERE pipeline = ? AND sink = ? {which}"
        found = self.database.execute(query, (*self.key, commit)).fetchone()
        return None if found is None else SinkEntry.from_json(found[0])

    def take_over(self, run: int) -> None:
        columns = "pipeline, sink, number, entry, PRIMARY KEY (pipeline, sink, number)"
        self.database.execute(f"CREATE TABLE IF NOT EXISTS ledger ({columns})")
        self.database.execute("CREATE TABLE IF NOT EXISTS runs (pipeline, sink, run, PRIMARY KEY (pipeline, sink))")
        with self.transaction(run):
            self.database.execute("INSERT OR REPLACE INTO runs VALUES (?, ?, ?)", (*self.key, run))

    def publish(self, entry: SinkEntry, rows: Iterator[Any]) -> None:
        with self.transaction(entry.run):
            for batch in rows:
                marks = ", ".join("?" * batch.num_columns)
                insert = f"INSERT INTO {self.table} ({', '.join(batch.schema.names)}) VALUES ({marks})"
                self.database.executemany(insert, [tuple(row.values()) for row in batch.to_pylist()])
            self.database.execute("INSERT INTO ledger VALUES (?, ?, ?, ?)", (*self.key, entry.commit, entry.to_json()))

    def close(self) -> None:
        self.database.close()

    @contextmanager
    def transaction(self, run: int) -> Iterator[None]:
        self.database.execute("BEGIN IMMEDIATE")  # one writer at a time: who waits here sees what the other has done
        try:
            owner = self.database.execute("SELECT max(run) FROM runs WHERE (pipeline, sink) = (?, ?)", self.key)
            if (by := owner.fetchone()[0] or 0) > run:
                raise self.superseded(run, by)
            yield
            self.database.execute("COMMIT")
        finally:
            if self.database.in_transaction:
                self.database.execute("ROLLBACK")


# [END own_sink]


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

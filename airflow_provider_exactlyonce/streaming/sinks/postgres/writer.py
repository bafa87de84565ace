"""The executor's half of the PostgreSQL sinks: COPY of a task's rows into the attempt's staging table."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow as pa
from psycopg import sql

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.postgres import csv_rows
from airflow_provider_exactlyonce.streaming.sinks.postgres.connection import (
    BEGIN,
    Parameters,
    connect,
    translated_errors,
)
from airflow_provider_exactlyonce.streaming.sinks.postgres.staging import SCHEMA, WRITER_COLUMN
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkWriter
from airflow_provider_exactlyonce.streaming.spark.typed_errors import marking


@dataclass(frozen=True)
class OpenPostgresWriter:
    """Opens the writer of a task; pickled.

    :param table: for messages
    :param stage_of: the staging table of an attempt
    :param json_columns: those that hold JSON
    """

    parameters: Parameters
    application: str
    table: str
    stage_of: Callable[[SinkAttempt], str]
    json_columns: frozenset[str]

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Return the writer of a task."""
        return PostgresWriter(self, attempt)


class PostgresWriter(SinkWriter):
    """Stages one task's rows, in a transaction of its own; a task without rows connects to nothing."""

    def __init__(self, opened: OpenPostgresWriter, attempt: SinkAttempt) -> None:
        self._opened: Final = opened
        self._action: Final = f"staging commit {attempt.commit}"
        self._stage: Final = sql.Identifier(SCHEMA, opened.stage_of(attempt))
        self._writer: Final = secrets.randbits(31)  # of a task that Spark runs twice, one is counted
        self._closing: Final = ExitStack()
        self._copy: psycopg.Copy | None = None
        self._columns: list[str] = []
        self._rows = 0

    def write(self, rows: pa.RecordBatch) -> None:
        """Stage some rows."""
        with self._marked():
            copy = self._copy or self._start(rows.schema.names)
            copy.write(csv_rows.encode(self._writer, rows, self._opened.json_columns))
        self._rows += rows.num_rows

    def finish(self) -> Mapping[str, Any]:
        """Commit the staged rows."""
        with self._marked():
            self._closing.close()
        return {"writer": self._writer, "rows": self._rows, "columns": self._columns}

    def close(self) -> None:
        """Close the connection; uncommitted rows are gone."""
        with suppress(psycopg.Error, _AbandonedError):
            self._closing.__exit__(_AbandonedError, _AbandonedError(), None)

    def _start(self, columns: list[str]) -> psycopg.Copy:
        self._columns = columns
        connection = connect(self._opened.parameters, self._opened.application)
        self._closing.enter_context(connection)  # which commits or rolls back, and closes
        # Nothing of an unlogged table outlives a crash anyway. LOCAL: a pooler gives the session to others afterwards.
        connection.execute(f"{BEGIN}; SET LOCAL synchronous_commit = off")
        column_list = sql.SQL(", ").join(map(sql.Identifier, (WRITER_COLUMN, *columns)))
        statement = sql.SQL("COPY {} ({}) FROM STDIN (FORMAT csv)").format(self._stage, column_list)
        self._copy = self._closing.enter_context(connection.cursor().copy(statement))
        return self._copy

    @contextmanager
    def _marked(self) -> Iterator[None]:
        with marking(RecordRefusedError), translated_errors(self._action, self._opened.table):
            yield


class _AbandonedError(Exception):
    """Ends a COPY so that the server forgets it."""

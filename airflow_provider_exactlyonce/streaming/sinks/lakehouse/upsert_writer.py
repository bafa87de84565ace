"""The executor's half of an upsert: of each key the task's last row, as a file of the table or as a key to delete."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns, find_null, numbers, shown
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import refused
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkWriter


class OpenTableWriter(Protocol):
    """Opens the writer of a task's rows; it is sent to the executors."""

    @property
    def folder(self) -> str:
        """The directory of the sink's attempts."""

    @property
    def row_columns(self) -> pa.Schema:
        """The columns of the rows."""

    def files(self) -> TableFiles:
        """Open the table's files."""

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""


@dataclass(frozen=True, kw_only=True)
class OpenUpsertWriter:
    """Opens a task's writer; it is sent to the executors.

    :param rows: opens the writer of the rows that stay
    """

    rows: OpenTableWriter
    columns: KeyColumns

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""
        deletions = f"{self.rows.folder}/{attempt.name}/{task:05d}-{uuid.uuid4().hex}.deletions.parquet"
        deleted = [] if self.columns.deleted is None else [pa.field(self.columns.deleted, pa.bool_())]
        schema = pa.schema([*self.rows.row_columns, *deleted])
        return UpsertWriter(self.rows(attempt, task), self.rows.files(), deletions, schema, self.columns)


class UpsertWriter(SinkWriter):
    """Keeps a task's rows in a temporary file until it knows which are the last of their keys.

    :param rows: writes those that stay
    :param deletions: the name of the file for the keys to delete
    :param schema: of the rows
    """

    def __init__(
        self, rows: SinkWriter, files: TableFiles, deletions: str, schema: pa.Schema, columns: KeyColumns
    ) -> None:
        self._rows: Final = rows
        self._files: Final = files
        self._deletions: Final = deletions
        self._schema: Final = schema
        self._columns: Final = columns
        self._waiting: Final = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self._stream: Final = pa.ipc.new_stream(self._waiting, schema)
        self._compared: Final[list[pa.RecordBatch]] = []

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        arrays = [rows[field.name].cast(field.type) for field in self._schema]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        compared = rows.select([*self._columns.compared, *self._flag])
        if (key := find_null(pa.Table.from_batches([compared]).select(self._columns.key))) is not None:
            raise refused(f"a row has a null in its key, which replaces none: {shown(key)}")
        self._stream.write_batch(rows)
        self._compared.append(compared)

    @override
    def finish(self) -> Mapping[str, Any]:
        self._stream.close()
        if not self._compared:
            return {"rows": 0, "files": [], "deletions": []}
        compared = pa.Table.from_batches(self._compared)
        last, ambiguous = self._columns.last_of_each(compared, numbers(compared.num_rows))
        if ambiguous is not None:
            raise refused(
                f"several rows of {shown(ambiguous)} have its greatest {self._columns.order}: let that column tell "
                "them apart"
            )
        deleted = pa.repeat(False, compared.num_rows)
        if self._columns.deleted is not None:
            deleted = pc.fill_null(compared[self._columns.deleted].combine_chunks(), False)
        self._write_rows(pc.and_not(last, deleted))
        deletions = self._keep_deletions(compared.filter(pc.and_(last, deleted)).select(self._columns.compared))
        return {"rows": compared.num_rows, "files": self._rows.finish()["files"], "deletions": deletions}

    @override
    def close(self) -> None:
        with suppress(pa.ArrowException, ValueError):  # of a stream that is closed
            self._stream.close()
        self._waiting.close()
        self._rows.close()

    @property
    def _flag(self) -> list[str]:
        return [] if self._columns.deleted is None else [self._columns.deleted]

    def _write_rows(self, kept: pa.Array) -> None:
        """Write those rows of the temporary file that are kept."""
        self._waiting.seek(0)
        rows_read = 0
        for rows in pa.ipc.open_stream(self._waiting):
            mask = kept.slice(rows_read, rows.num_rows)
            rows_read += rows.num_rows
            if mask.true_count:
                self._rows.write(rows.filter(mask))

    def _keep_deletions(self, keys: pa.Table) -> list[dict[str, Any]]:
        """Write the keys to delete where the driver finds them."""
        if not keys.num_rows:
            return []
        with self._files.open_new(self._deletions) as file:
            pq.write_table(keys, file)
        self._files.keep(self._deletions)
        return [{"path": self._deletions, "size": self._files.size(self._deletions), "rows": keys.num_rows}]

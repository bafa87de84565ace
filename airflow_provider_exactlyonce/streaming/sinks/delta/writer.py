"""The executor's half: a task's rows become Parquet files of a Delta table that no version of its log names yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.delta import statistics
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import TableFiles, open_files
from airflow_provider_exactlyonce.streaming.sinks.parquet_files import (
    NULL,
    ParquetFile,
    PartitionedFiles,
    refused,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkWriter


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How files are written.

    :param columns: of the rows
    :param partition_by: the columns whose values are in the log, and not in the files
    :param required: the columns that must not be null
    :param compression: Parquet's codec
    :param max_file_bytes: a file that has reached this size is closed, and another begun
    """

    columns: pa.Schema
    partition_by: tuple[str, ...]
    required: tuple[str, ...]
    compression: str
    max_file_bytes: int


@dataclass(frozen=True, kw_only=True)
class OpenDeltaWriter:
    """Opens a task's writer; it is sent to the executors.

    :param folder: the directory of the sink's attempts, relative to the table
    """

    path: str
    storage_options: Mapping[str, str] = field(repr=False)
    folder: str
    format: TableFormat

    def __call__(self, attempt: SinkAttempt, task: int) -> DeltaWriter:
        """Open the writer of a task."""
        return DeltaWriter(self.files(), f"{self.folder}/{attempt.name}", task, self.format)

    def files(self) -> TableFiles:
        """Open the table's directory."""
        return open_files(self.path, self.storage_options)


class DeltaWriter(SinkWriter):
    """Writes a task's rows below the directory of its attempt.

    :param folder: that directory, relative to the table
    """

    def __init__(self, files: TableFiles, folder: str, task: int, format_: TableFormat) -> None:
        self._format: Final = format_
        self._files: Final = _Files(files, folder, task, format_)

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        rows = self._checked(rows)
        in_files = [name for name in rows.schema.names if name not in self._format.partition_by]
        self._files.write(rows, rows.select(in_files))

    @override
    def finish(self) -> Mapping[str, Any]:
        files = self._files.finish()
        return {"rows": sum(file["rows"] for file in files), "files": files}

    @override
    def close(self) -> None:
        self._files.close()

    def _checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the table's types, in the order in which they were declared."""
        columns = self._format.columns
        arrays = [rows[field.name].cast(field.type) for field in columns]
        for name in self._format.required:
            if rows[name].null_count:
                raise refused(f"column {name!r} is NOT NULL in the table, and null in {rows[name].null_count} rows")
        return pa.RecordBatch.from_arrays(arrays, schema=columns)


class _Files(PartitionedFiles[dict[str, Any]]):
    def __init__(self, files: TableFiles, folder: str, task: int, format_: TableFormat) -> None:
        super().__init__(folder, task, format_.partition_by, format_.max_file_bytes)
        self._files: Final = files
        self._compression: Final = format_.compression

    @override
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile[dict[str, Any]]:
        return DeltaFile(self._files, name, schema, self._compression, partition)

    @override
    def _directory(self, column: str, value: str | None) -> str:
        if value in ("", NULL):
            raise refused(
                f"column {column!r} of partition_by is the text {value!r}, which readers of Delta take for null. "
                "Derive a column that has another value for it"
            )
        return super()._directory(column, value)


class DeltaFile(ParquetFile[dict[str, Any]]):
    """One file of the table that grows."""

    def __init__(
        self, files: TableFiles, name: str, schema: pa.Schema, compression: str, partition: Mapping[str, str | None]
    ) -> None:
        super().__init__(files, name, files.open_new(name), schema, compression)
        self._partition: Final = partition
        self._schema: Final = schema
        self._unordered: set[str] = set()

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        for column in rows.schema:
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(rows[column.name])).as_py():
                self._unordered.add(column.name)
        super().write(rows)

    @override
    def _describe(self, size: int, footer: pq.FileMetaData) -> dict[str, Any]:
        """Return what the file's place in the log says of it."""
        return {
            "path": self._name,
            "size": size,
            "partition": dict(self._partition),
            "rows": footer.num_rows,
            "statistics": statistics.describe(footer, self._schema, self._unordered),
        }

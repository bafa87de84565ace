"""The executor's half: a task's rows become Parquet files of a Delta table that no version of its log names yet."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.delta import statistics
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import (
    NULL,
    ParquetFile,
    PartitionedFiles,
    TableWriter,
    refused,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt


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

    @property
    def row_columns(self) -> pa.Schema:
        """The columns of the rows."""
        return self.format.columns

    def files(self) -> DeltaFiles:
        """Open the table's directory."""
        return DeltaFiles(self.path, self.storage_options)


class DeltaWriter(TableWriter):
    """Writes a task's rows below the directory of its attempt.

    :param folder: that directory, relative to the table
    """

    def __init__(self, files: DeltaFiles, folder: str, task: int, format_: TableFormat) -> None:
        super().__init__(_Files(files, folder, task, format_), format_.columns, format_.required)
        self._in_files: Final = [name for name in format_.columns.names if name not in format_.partition_by]

    @override
    def _parted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        return rows, rows.select(self._in_files)


class _Files(PartitionedFiles):
    def __init__(self, files: DeltaFiles, folder: str, task: int, format_: TableFormat) -> None:
        super().__init__(folder, task, format_.partition_by, format_.max_file_bytes)
        self._files: Final = files
        self._columns: Final = format_.columns
        self._compression: Final = format_.compression

    @override
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile:
        return DeltaFile(self._files, name, schema, self._compression, partition)

    @override
    def _directory(self, column: str, value: str | None) -> str:
        if value is not None and pa.types.is_date(self._columns.field(column).type) and not _is_readable_date(value):
            raise refused(
                f"column {column!r} of partition_by is the date {value}, and a Delta table with a partition of a "
                "year before 1 or after 9999 can't be read. Replace it by null or another date"
            )
        if value in ("", NULL):
            raise refused(
                f"column {column!r} of partition_by is the text {value!r}, which readers of Delta take for null. "
                "Derive a column that has another value for it"
            )
        return super()._directory(column, value)


def _is_readable_date(day: str) -> bool:
    with suppress(ValueError):
        datetime.date.fromisoformat(day)
        return True
    return False


class DeltaFile(ParquetFile):
    """One file of the table that grows."""

    @override
    def _statistics(self, footer: pq.FileMetaData) -> str:
        return statistics.describe(footer, self._schema, self.unordered)

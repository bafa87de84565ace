"""Reads and writes the files of a Delta table for an upsert: as the log has them, copied as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.delta.changes import check_here, check_removable
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog, LoggedFile, escaped
from airflow_provider_exactlyonce.streaming.sinks.delta.table_rows import with_columns
from airflow_provider_exactlyonce.streaming.sinks.delta.writer import DeltaFile, OpenDeltaWriter, TableFormat
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns, OrderedValues
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import ParquetFile, PartitionedFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.upserts import UpsertTarget
from airflow_provider_exactlyonce.tables.parquet_columns import columns_of, opened_parquet

_ROWS: Final = 2**16  # that are copied at a time


class DeltaUpsertTarget(UpsertTarget[LoggedFile]):
    """A table's log and directory.

    :param opens: opens the tasks' writers
    :param attempt: the attempt's name
    """

    def __init__(self, log: DeltaLog, opens: OpenDeltaWriter, key: KeyColumns, *, attempt: str, where: str) -> None:
        format_ = opens.format
        super().__init__(files=opens.files(), key=key, columns=format_.columns, sink="DeltaSink", where=where)
        self._log: Final = log
        self._folder: Final = f"{opens.folder}/{attempt}"
        self._format: Final = format_
        names = [name for name in key.key if name not in format_.partition_by]
        self._bounded: Final = [name for name in names if _has_exact_bounds(format_.columns.field(name).type)]
        self._in_partition: Final = [name for name in key.key if name in format_.partition_by]

    @override
    def written(self, file: Mapping[str, Any]) -> LoggedFile:
        return LoggedFile(
            path=file["path"],
            logged=escaped(file["path"]),
            size=file["size"],
            rows=file["rows"],
            partition=file["partition"],
            bounds={},
        )

    @override
    def current_files(self) -> Iterable[LoggedFile]:
        return self._log.files(bounds_of=self._bounded)

    @override
    def name(self, file: LoggedFile) -> str:
        return file.path

    @override
    def check_removable(self, file: LoggedFile) -> None:
        check_removable(file, self.where)

    @override
    def filter(self, keys: pa.Table) -> Callable[[LoggedFile], bool]:
        texts = {name: set(pc.cast(keys[name], pa.string()).to_pylist()) for name in self._in_partition}
        values = {name: OrderedValues(keys[name]) for name in self._bounded}

        def may_have(file: LoggedFile) -> bool:
            in_partition = all(file.partition[name] in key_texts for name, key_texts in texts.items())
            return in_partition and all(values[name].any_within(*bounds) for name, bounds in file.bounds.items())

        return may_have

    @override
    def read(self, file: LoggedFile, names: Sequence[str]) -> pa.Table:
        check_here(file, self.where)
        with self._files.open(file.path) as opened:
            parquet = opened_parquet(opened)
            file_columns = [name for name in names if name in parquet.schema_arrow.names]
            table = parquet.read(columns=file_columns) if file_columns else None
            count = parquet.metadata.num_rows
        return with_columns(table, pa.schema([self._columns.field(name) for name in names]), file.partition, count)

    @override
    def copy(self, file: LoggedFile, kept: pa.Array) -> list[Mapping[str, Any]]:
        rows_read = 0
        with self._files.open(file.path) as opened:
            parquet = opened_parquet(opened)
            schema = columns_of(parquet)
            with closing(_Copies(self._files, self._folder, self._format, file.partition)) as copies:
                for rows in parquet.iter_batches(batch_size=_ROWS):
                    copied = rows.cast(schema).filter(kept.slice(rows_read, rows.num_rows))
                    copies.write(copied, copied)
                    rows_read += rows.num_rows
                return list(copies.finish())


class _Copies(PartitionedFiles):
    """Files of one partition, with the columns of the copied file."""

    def __init__(
        self, files: TableFiles, folder: str, format_: TableFormat, partition: Mapping[str, str | None]
    ) -> None:
        super().__init__(folder, 0, (), format_.max_file_bytes)
        self._files: Final = files
        self._compression: Final = format_.compression
        self._partition: Final = partition

    @override
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile:
        return DeltaFile(self._files, name, schema, self._compression, self._partition)


def _has_exact_bounds(kind: pa.DataType) -> bool:
    """Tell whether all writers give bounds that hold: those of times are cut by some, and those of decimals rounded."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))

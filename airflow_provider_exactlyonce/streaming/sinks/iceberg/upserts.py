"""Reads and writes the files of an Iceberg table for an upsert: rows as readers get them, by the ids of the columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.typedef import Record
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.changes import check_whole_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.file_rows import rows_of
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.partitions import Partitioning, first_dropped
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import OpenIcebergWriter, data_file
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns, OrderedValues
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.upserts import UpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile


class IcebergUpsertTarget(UpsertTarget["DataFile"]):
    """A table, and the store of its files.

    :param opens: opens the tasks' writers
    :param opens_copy: returns what opens a writer of all columns that the table has now
    """

    def __init__(
        self,
        table: IcebergTable,
        opens: OpenIcebergWriter,
        opens_copy: Callable[[], OpenIcebergWriter],
        key: KeyColumns,
        *,
        attempt: SinkAttempt,
        where: str,
    ) -> None:
        super().__init__(files=opens.files(), key=key, columns=opens.row_columns, sink="IcebergSink", where=where)
        self._table: Final = table
        self._format: Final = opens.format
        self._opens_copy: Final = opens_copy
        self._attempt: Final = attempt

    @override
    def written(self, file: Mapping[str, Any]) -> DataFile:
        return data_file(file, self._format)

    @override
    def current_files(self) -> Iterator[DataFile]:
        check_whole_files(self._table, self.where)
        yield from current_files(self._table)

    @override
    def name(self, file: DataFile) -> str:
        return file.file_path

    @override
    def check_removable(self, file: DataFile) -> None:
        metadata = self._table.metadata
        if (part := first_dropped(metadata.specs()[file.spec_id], metadata.schema())) is not None:
            raise RefusedError(
                f"{self.where} has {file.file_path} in a partitioning by {part.name!r}, whose column was dropped, and "
                "this sink can't take it out: rewrite_data_files of Spark or Trino with rewrite-all rewrites it"
            )

    @override
    def filter(self, keys: pa.Table) -> Callable[[DataFile], bool]:
        columns = [self._format.columns.find_field(name) for name in self.key.key]
        values: dict[int, tuple[Any, OrderedValues]] = {
            column.field_id: (column.field_type, OrderedValues(keys[column.name])) for column in columns
        }
        positions, partitions = self._partitions(keys)

        def may_have(file: DataFile) -> bool:
            is_of_spec = file.spec_id == self._format.spec.spec_id
            if is_of_spec and Record(*(file.partition[position] for position in positions)) not in partitions:
                return False
            lower, upper = file.lower_bounds or {}, file.upper_bounds or {}
            return all(
                key_values.any_within(from_bytes(kind, lower[column]), from_bytes(kind, upper[column]))
                for column, (kind, key_values) in values.items()
                if column in lower and column in upper
            )

        return may_have

    @override
    def read(self, file: DataFile, names: Sequence[str]) -> pa.Table:
        columns = Schema(*(self._format.columns.find_field(name) for name in names))
        types = pa.schema([self._columns.field(name) for name in names])
        return pa.Table.from_batches(
            [pa.RecordBatch.from_arrays(rows.cast(types).columns, schema=types) for rows in self._rows(file, columns)],
            types,
        )

    @override
    def copy(self, file: DataFile, kept: pa.Array) -> list[Mapping[str, Any]]:
        opens, rows_read = self._opens_copy(), 0
        with closing(opens(self._attempt, 0)) as writer:
            for rows in self._rows(file, opens.format.columns):
                mask = kept.slice(rows_read, rows.num_rows)
                rows_read += rows.num_rows
                if mask.true_count:
                    writer.write(rows.filter(mask))
            written = writer.finish()
        if (rows_read, written["rows"]) != (len(kept), kept.true_count):
            raise BatchFailedError(
                f"{file.file_path} has {rows_read} rows, and had {len(kept)} a moment ago; {written['rows']} of "
                f"{kept.true_count} were copied"
            )
        return list(written["files"])

    def _rows(self, file: DataFile, columns: Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in some columns of the table."""
        if file.file_format != FileFormat.PARQUET:
            raise RefusedError(
                f"{self.where} has {file.file_path}, and this sink rewrites only files of Parquet: "
                "rewrite_data_files of Spark or Trino makes such of it"
            )
        return rows_of(self._table, file, columns)

    def _partitions(self, keys: pa.Table) -> tuple[list[int], set[Record]]:
        """Return the places of those partition values that follow from a key, and the keys' values there."""
        spec, columns = self._format.spec, self._format.columns
        ids = {columns.find_field(name).field_id for name in self.key.key}
        positions = [position for position, field in enumerate(spec.fields) if field.source_id in ids]
        partitioning = Partitioning(PartitionSpec(*(spec.fields[position] for position in positions)), columns)
        return positions, {record for rows in keys.to_batches() for record in partitioning.records(rows)}

"""The executor's half: a task's rows become Parquet files of an Iceberg table that no snapshot has yet."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, FloatType
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.partitions import Partitioning
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import shown
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import (
    ParquetFile,
    PartitionedFiles,
    TableWriter,
    refused,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkWriter

_BOUNDS: Final = ("lower_bounds", "upper_bounds")
_COLUMN_METRICS: Final = "write.metadata.metrics.column."
_COUNTS_ONLY: Final = {"write.metadata.metrics.default": "counts"}
_BY_COLUMN: Final = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts", *_BOUNDS)


@dataclass(frozen=True, kw_only=True)
class TableFormat:
    """How files are written.

    :param columns: of the rows, with the table's ids
    :param spec: what the table is partitioned by
    :param properties: which statistics the table wants
    :param compression: Parquet's codec
    :param max_file_bytes: a file that has reached this size is closed, and another begun
    """

    columns: Schema
    spec: PartitionSpec
    properties: Mapping[str, str]
    compression: str
    max_file_bytes: int


@dataclass(frozen=True, kw_only=True)
class OpenIcebergWriter:
    """Opens a task's writer; it is sent to the executors.

    :param io_properties: what a client of the store needs to know
    :param folder: the location of the sink's attempts
    """

    io_properties: Mapping[str, str] = field(repr=False)
    folder: str
    format: TableFormat

    @property
    def row_columns(self) -> pa.Schema:
        """The columns of the rows."""
        return schema_to_pyarrow(self.format.columns, include_field_ids=False)

    def files(self) -> IcebergFiles:
        """Open the table's store."""
        return IcebergFiles(self.io_properties)

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""
        return IcebergWriter(self.files(), f"{self.folder}/{attempt.name}", task, self.format)


class IcebergWriter(TableWriter):
    """Writes a task's rows below the location of its attempt.

    :param folder: that location
    """

    def __init__(self, files: IcebergFiles, folder: str, task: int, format_: TableFormat) -> None:
        self._partitioning: Final = Partitioning(format_.spec, format_.columns)
        required = [column.name for column in format_.columns.fields if column.required]
        partitioned = _Files(files, folder, task, format_, self._partitioning)
        super().__init__(partitioned, schema_to_pyarrow(format_.columns), required)

    @override
    def _parted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        try:
            return self._partitioning.values(rows) if self._partitioning.names else rows, rows
        except RecordRefusedError as error:
            raise refused(str(error)) from error


class _Files(PartitionedFiles):
    def __init__(
        self, files: IcebergFiles, folder: str, task: int, format_: TableFormat, partitioning: Partitioning
    ) -> None:
        super().__init__(folder, task, partitioning.names, format_.max_file_bytes)
        self._partitioning: Final = partitioning
        self._files: Final = files
        self._format: Final = format_

    @override
    def _begin(self, values: tuple[str | None, ...], schema: pa.Schema) -> ParquetFile:
        partition = dict(zip(self._partition_by, values, strict=True))
        try:  # what pyiceberg does for a snapshot's summary
            self._format.spec.partition_to_path(self._partitioning.record(partition), self._format.columns)
        except OverflowError:
            raise refused(
                f"a row's partition is {shown(partition)}, in days or hours since 1970, and pyiceberg knows no date of "
                "a year before 1 or after 9999: partition by month(…) or year(…), or replace the value by null"
            ) from None
        # No directories of values: readers of Iceberg don't look at them, and any value is possible so.
        name = f"{self._folder}/{self._task:05d}-{uuid.uuid4().hex}.parquet"
        return self._new(name, schema, partition)

    @override
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile:
        return _OpenFile(self._files, name, schema, partition, self._format)


class _OpenFile(ParquetFile):
    def __init__(
        self,
        files: IcebergFiles,
        name: str,
        schema: pa.Schema,
        partition: Mapping[str, str | None],
        format_: TableFormat,
    ) -> None:
        super().__init__(files, name, schema, format_.compression, partition)
        self._format: Final = format_

    @override
    def _statistics(self, footer: pq.FileMetaData) -> dict[str, Any]:
        statistics = describe(footer, self._format, self.unordered)
        for name in _BOUNDS:
            statistics[name] = {key: base64.b64encode(bound).decode() for key, bound in statistics[name].items()}
        return statistics


def describe(footer: pq.FileMetaData, format_: TableFormat, unordered: set[str]) -> dict[str, Any]:
    """Return the statistics of a file.

    :param unordered: columns with a NaN, which Spark takes for greater than all
    """
    columns = format_.columns
    ids = parquet_path_to_id_mapping(columns)
    # Of those pyiceberg must not be asked for bounds; some it can't make, and others must not stand for them.
    unbounded = _unbounded(footer, ids) | {key for key in ids.values() if _may_be_nan(columns, key, unordered)}
    overrides = {f"{_COLUMN_METRICS}{columns.find_column_name(key)}": "counts" for key in unbounded}

    def computed(properties: Mapping[str, str]) -> dict[str, Any]:
        return data_file_statistics_from_parquet_metadata(
            parquet_metadata=footer,
            stats_columns=compute_statistics_plan(columns, dict(properties)),
            parquet_column_mapping=ids,
        ).to_serialized_dict()

    try:
        return computed({**format_.properties, **overrides})
    except UnicodeEncodeError:  # pyiceberg cuts a text before U+D7FF, and what it takes for the next letter is none
        return computed(_COUNTS_ONLY)


def _unbounded(footer: pq.FileMetaData, ids: Mapping[str, int]) -> set[int]:
    """Return the columns with values but no bounds in a row group."""
    unbounded = set()
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for position in range(footer.num_columns):
            column = group.column(position)
            statistics = column.statistics
            if statistics is None or (statistics.num_values and not _has_bounds(statistics)):
                unbounded.add(ids[column.path_in_schema])
    return unbounded


def _has_bounds(statistics: pq.Statistics) -> bool:
    try:
        return None not in (statistics.min, statistics.max)
    except OverflowError:  # a year that Python has no date for, and so pyiceberg neither
        return False


def _may_be_nan(columns: Schema, key: int, unordered: set[str]) -> bool:
    """Tell whether a column may have a NaN: within others nobody has looked for one."""
    return isinstance(columns.find_type(key), FloatType | DoubleType) and (
        (name := columns.find_column_name(key)) in unordered or name not in [column.name for column in columns.fields]
    )


def data_file(file: Mapping[str, Any], format_: TableFormat) -> DataFile:
    """Return a file's entry in a manifest, from its task's description."""
    statistics = dict(file["statistics"])
    for name in _BOUNDS:
        statistics[name] = {key: base64.b64decode(bound) for key, bound in statistics[name].items()}
    for name in _BY_COLUMN:
        statistics[name] = {int(key): value for key, value in (statistics[name] or {}).items()}
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file["path"],
        file_format=FileFormat.PARQUET,
        partition=Partitioning(format_.spec, format_.columns).record(file["partition"]),
        file_size_in_bytes=file["size"],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        **statistics,
    )
    entry.spec_id = format_.spec.spec_id  # no field of a manifest's entry: a reader takes it from the manifest
    return entry

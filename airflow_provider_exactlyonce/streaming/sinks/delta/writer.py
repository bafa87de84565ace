"""The executor's half: a task's rows become Parquet files of a Delta table that no version of its log names yet."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta import statistics
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import TableFiles, open_files
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkWriter
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

_ROW_GROUP_BYTES: Final = 32 * 2**20  # of Arrow's memory
_OPEN_FILES: Final = 64
_NAME_BYTES: Final = 255
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # Hive's and Spark's name for the directory of nulls


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

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""
        files = open_files(self.path, self.storage_options)
        return DeltaWriter(files, f"{self.folder}/{attempt.name}", task, self.format)


class DeltaWriter(SinkWriter):
    """Writes a task's rows below the directory of its attempt.

    :param folder: that directory, relative to the table
    """

    def __init__(self, files: TableFiles, folder: str, task: int, format_: TableFormat) -> None:
        self._files: Final = files
        self._folder: Final = folder
        self._task: Final = task
        self._format: Final = format_
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._done: list[dict[str, Any]] = []

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        rows = self._checked(rows)
        for values, part in _parted(rows, self._format.partition_by):
            file = self._open.get(values)
            if file is None:
                if len(self._open) >= _OPEN_FILES:
                    self._finish(next(iter(self._open)))
                file = self._open[values] = self._begin(values, part.schema)
            file.write(part)
            if file.size >= self._format.max_file_bytes:
                self._finish(values)

    @override
    def finish(self) -> Mapping[str, Any]:
        for values in list(self._open):
            self._finish(values)
        return {"files": self._done}

    @override
    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].abandon()

    def _checked(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the table's types, in the order in which they were declared."""
        columns = self._format.columns
        arrays = [rows[field.name].cast(field.type) for field in columns]
        for name in self._format.required:
            if rows[name].null_count:
                raise _refused(f"column {name!r} is NOT NULL in the table, and null in {rows[name].null_count} rows")
        return pa.RecordBatch.from_arrays(arrays, schema=columns)

    def _begin(self, values: tuple[str | None, ...], schema: pa.Schema) -> _OpenFile:
        partition = dict(zip(self._format.partition_by, values, strict=True))
        folders = [_folder(column, value) for column, value in partition.items()]
        name = "/".join([self._folder, *folders, f"{self._task:05d}-{uuid.uuid4().hex}.parquet"])
        return _OpenFile(self._files, name, schema, self._format.compression, partition)

    def _finish(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values)
        try:
            self._done.append(file.finish())
        except BaseException:
            file.abandon()
            raise


class _OpenFile:
    """One file that grows. Rows gather until they make a row group of a good size."""

    def __init__(
        self, files: TableFiles, name: str, schema: pa.Schema, compression: str, partition: Mapping[str, str | None]
    ) -> None:
        self._files: Final = files
        self._name: Final = name
        self._partition: Final = partition
        self._schema: Final = schema
        self._file: Final[BinaryIO] = files.open_new(name)
        self._parquet: Final = pq.ParquetWriter(self._file, schema, compression=compression)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._unordered: set[str] = set()

    @property
    def size(self) -> int:
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        for column in rows.schema:
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(rows[column.name])).as_py():
                self._unordered.add(column.name)
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> dict[str, Any]:
        """Make it durable; returns what its place in the log says of it."""
        self._write_group()
        self._parquet.close()
        size = self.size
        self._file.close()
        self._files.keep(self._name)
        footer = self._parquet.writer.metadata
        return {
            "path": self._name,
            "size": size,
            "partition": dict(self._partition),
            "rows": footer.num_rows,
            "statistics": statistics.describe(footer, self._schema, self._unordered),
        }

    def abandon(self) -> None:
        with suppress(Exception):  # else Arrow closes it when it is collected, and complains of a closed file
            self._parquet.close()
        with suppress(Exception):
            self._file.close()
        self._files.remove(self._name)

    def _write_group(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0


def _refused(message: str) -> RecordRefusedError:
    return RecordRefusedError(mark(RecordRefusedError, message))


def _folder(column: str, value: str | None) -> str:
    """Return the directory of a value, in Hive's form, from which some readers take it.

    :raises RecordRefusedError: when it can't be kept
    """
    if value in ("", _NULL):
        raise _refused(
            f"column {column!r} of partition_by is the text {value!r}, which readers of Delta take for null. Derive a "
            "column that has another value for it"
        )
    name = f"{quote(column, safe='')}={quote(_NULL if value is None else value, safe='')}"
    if len(name) > _NAME_BYTES:
        raise _refused(
            f"column {column!r} of partition_by has the value {str(value)[:40]!r}…, which makes a directory's name of "
            f"{len(name)} bytes; at most {_NAME_BYTES} are possible. Derive a shorter column"
        )
    return name


def _parted(rows: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the rows of each partition without the columns that make it, and the values that do, as text."""
    if not by:
        yield (), rows
        return
    texts = [pc.cast(rows[name], pa.string()) for name in by]
    kept = rows.select([name for name in rows.schema.names if name not in by])
    table = pa.Table.from_arrays([*texts, pa.array(range(rows.num_rows), pa.int64())], [*by, ""])
    groups = table.group_by(list(by), use_threads=False).aggregate([("", "list")])
    for group in groups.to_pylist():
        yield tuple(group[name] for name in by), kept.take(pa.array(group["_list"], pa.int64()))

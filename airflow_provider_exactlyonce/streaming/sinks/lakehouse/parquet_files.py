"""The executor's half: rows of a task in Parquet files, one at a time for each partition."""

from __future__ import annotations

import bisect
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkWriter
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

#: Hive's and Spark's name for the directory of nulls.
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_BYTES: Final = 32 * 2**20  # of Arrow's memory
_TASK_BYTES: Final = 128 * 2**20  # that wait in all files of a task
_OPEN_FILES: Final = 64
_NAME_BYTES: Final = 255

_Values = tuple[str | None, ...]


class ParquetFile(ABC):
    """One file of a table that grows. Rows gather until they are written as a row group.

    :param partition: the values that its rows have in the columns of the partition, as text
    :ivar unordered: columns with a NaN, which some readers take for greater than all, and others for nothing
    :ivar waiting_bytes: of rows that are not in a row group yet
    """

    def __init__(
        self, files: TableFiles, name: str, schema: pa.Schema, compression: str, partition: Mapping[str, str | None]
    ) -> None:
        self._files: Final = files
        self._name: Final = name
        self._schema: Final = schema
        self._partition: Final = partition
        self._file: Final = files.open_new(name)
        self._parquet: Final = pq.ParquetWriter(self._file, schema, compression=compression, write_page_checksum=True)
        self.unordered: Final[set[str]] = set()
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_bytes = 0

    @property
    def size(self) -> int:
        """Bytes that are written so far."""
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        for column in rows.schema:
            if pa.types.is_floating(column.type) and pc.any(pc.is_nan(rows[column.name])).as_py():
                self.unordered.add(column.name)
        self._waiting.append(rows)
        self.waiting_bytes += rows.nbytes

    def write_group(self) -> None:
        """Write the rows that wait, as a row group."""
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self.waiting_bytes = [], 0

    def finish(self) -> dict[str, Any]:
        """Make the file durable; returns its description for the driver, as JSON values."""
        self.write_group()
        self._parquet.close()
        size, footer = self.size, self._parquet.writer.metadata
        self._file.close()
        self._files.keep(self._name)
        return {
            "path": self._name,
            "size": size,
            "partition": dict(self._partition),
            "rows": footer.num_rows,
            "statistics": self._statistics(footer),
        }

    def abandon(self) -> None:
        """Close and remove it; it is referred to nowhere."""
        with suppress(Exception):  # else Arrow closes it when it is collected, and complains of a closed file
            self._parquet.close()
        with suppress(Exception):
            self._file.close()
        self._files.remove(self._name)

    @abstractmethod
    def _statistics(self, footer: pq.FileMetaData) -> Any:
        """Return the statistics of the file for the table."""


class PartitionedFiles(ABC):
    """The files of one task, below a directory.

    :param folder: of the attempt
    :param max_file_bytes: a file that has reached this is closed, and another begun
    """

    def __init__(self, folder: str, task: int, partition_by: Sequence[str], max_file_bytes: int) -> None:
        self._folder: Final = folder
        self._task: Final = task
        self._partition_by: Final = partition_by
        self._max_file_bytes: Final = max_file_bytes
        self._group_bytes: Final = min(_ROW_GROUP_BYTES, max_file_bytes)  # what waits has no size yet
        self._open: dict[_Values, ParquetFile] = {}
        self._done: list[dict[str, Any]] = []

    def write(self, rows: pa.RecordBatch, kept: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions.

        :param kept: the columns of the rows that are written
        """
        for values, part in _split(rows, self._partition_by, kept):
            rows_appended = 0
            while rows_appended < part.num_rows:
                rows_appended += self._append(values, part.slice(rows_appended))

    def finish(self) -> list[dict[str, Any]]:
        """Close the files; returns their descriptions for the driver."""
        for values in list(self._open):
            self._finish(values)
        return self._done

    def close(self) -> None:
        """Abandon all open files; raises afterwards if a file can't be removed."""
        errors: list[Exception] = []
        while self._open:
            try:
                self._open.popitem()[1].abandon()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]

    @abstractmethod
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile:
        """Begin a file."""

    def _begin(self, values: _Values, schema: pa.Schema) -> ParquetFile:
        partition = dict(zip(self._partition_by, values, strict=True))
        folders = [self._directory(column, value) for column, value in partition.items()]
        name = "/".join([self._folder, *folders, f"{self._task:05d}-{uuid.uuid4().hex}.parquet"])
        return self._new(name, schema, partition)

    def _append(self, values: _Values, rows: pa.RecordBatch) -> int:
        """Append as many rows as fill a row group, or all; returns how many."""
        file = self._open.get(values)
        if file is None:
            if len(self._open) >= _OPEN_FILES:
                self._finish(next(iter(self._open)))
            file = self._open[values] = self._begin(values, rows.schema)
        count = _filling(rows, self._group_bytes - file.waiting_bytes)
        file.write(rows.slice(0, count))
        if file.waiting_bytes >= self._group_bytes:
            file.write_group()
        elif sum(file.waiting_bytes for file in self._open.values()) >= _TASK_BYTES:
            max(self._open.values(), key=lambda file: file.waiting_bytes).write_group()
        if file.size >= self._max_file_bytes:
            self._finish(values)
        return count

    def _finish(self, values: _Values) -> None:
        file = self._open.pop(values)
        try:
            self._done.append(file.finish())
        except BaseException:
            file.abandon()
            raise

    def _directory(self, column: str, value: str | None) -> str:
        """Return the directory of a value, in Hive's form.

        :raises RecordRefusedError: when it is too long for a name
        """
        name = f"{quote(column, safe='')}={quote(NULL if value is None else value, safe='')}"
        if len(name) > _NAME_BYTES:
            raise refused(
                f"column {column!r} of partition_by has the value {str(value)[:40]!r}…, which makes a directory's name "
                f"of {len(name)} bytes; at most {_NAME_BYTES} are possible. Derive a shorter column"
            )
        return name


class TableWriter(SinkWriter):
    """Writes a task's rows as files of a table that no version of it has yet.

    :param columns: of the rows, as the table has them
    :param required: the columns that must not be null
    """

    def __init__(self, files: PartitionedFiles, columns: pa.Schema, required: Collection[str]) -> None:
        self._files: Final = files
        self._columns: Final = columns
        self._required: Final = required

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        for name in self._required:
            if rows[name].null_count:
                raise refused(f"column {name!r} is NOT NULL in the table, and null in {rows[name].null_count} rows")
        arrays = [rows[field.name].cast(field.type) for field in self._columns]
        rows = pa.RecordBatch.from_arrays(arrays, schema=self._columns)
        self._files.write(*self._parted(rows))

    @override
    def finish(self) -> Mapping[str, Any]:
        files = self._files.finish()
        return {"rows": sum(file["rows"] for file in files), "files": files}

    @override
    def close(self) -> None:
        self._files.close()

    @abstractmethod
    def _parted(self, rows: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the columns that rows are partitioned by, and the columns to write."""


def refused(message: str) -> RecordRefusedError:
    """Return the error of a row that would be refused again, marked for the driver."""
    return RecordRefusedError(mark(RecordRefusedError, message))


def _filling(rows: pa.RecordBatch, size: int) -> int:
    """Return how many of the first rows have a size in memory, all when they have less."""
    if rows.nbytes <= size:
        return int(rows.num_rows)
    return bisect.bisect_left(range(1, rows.num_rows), size, key=lambda count: rows.slice(0, count).nbytes) + 1


def _split(
    rows: pa.RecordBatch, partition_by: Sequence[str], kept: pa.RecordBatch
) -> Iterator[tuple[_Values, pa.RecordBatch]]:
    """Yield the kept columns of each partition's rows, with the partition's values as text."""
    if not partition_by:
        yield (), kept
        return
    texts = [pc.cast(rows[name], pa.string()) for name in partition_by]
    names = [str(number) for number in range(len(partition_by))]  # the columns' own could be that of the list
    table = pa.Table.from_arrays([*texts, pa.array(range(rows.num_rows), pa.int64())], [*names, ""])
    groups = table.group_by(names, use_threads=False).aggregate([("", "list")])
    for group in groups.to_pylist():
        yield tuple(group[name] for name in names), kept.take(pa.array(group["_list"], pa.int64()))

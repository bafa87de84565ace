"""Rows of a task in Parquet files, one at a time for each partition: what all sinks that write such files share."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import BinaryIO, Final, Generic, Protocol, TypeVar
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

#: Hive's and Spark's name for the directory of nulls.
NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_ROW_GROUP_BYTES: Final = 32 * 2**20  # of Arrow's memory
_OPEN_FILES: Final = 64
_NAME_BYTES: Final = 255

_Values = tuple[str | None, ...]
#: What a sink has to know of a file that is finished.
_Finished = TypeVar("_Finished")


class Place(Protocol):
    """Where files are."""

    def keep(self, name: str) -> None:
        """Make a file that was written and closed outlive a loss of power."""

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""


class ParquetFile(ABC, Generic[_Finished]):
    """One file that grows. Rows gather until they make a row group of a good size.

    :param file: open to write, at the place and under the name
    """

    def __init__(self, place: Place, name: str, file: BinaryIO, schema: pa.Schema, compression: str) -> None:
        self._place: Final = place
        self._name: Final = name
        self._file: Final = file
        self._parquet: Final = pq.ParquetWriter(file, schema, compression=compression)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0

    @property
    def size(self) -> int:
        """Bytes that are written so far."""
        return int(self._file.tell())

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows."""
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> _Finished:
        """Make it durable; returns what the sink has to know of it."""
        self._write_group()
        self._parquet.close()
        size = self.size
        self._file.close()
        self._place.keep(self._name)
        return self._describe(size, self._parquet.writer.metadata)

    def abandon(self) -> None:
        """Close and remove it; nobody will refer to it."""
        with suppress(Exception):  # else Arrow closes it when it is collected, and complains of a closed file
            self._parquet.close()
        with suppress(Exception):
            self._file.close()
        self._place.remove(self._name)

    @abstractmethod
    def _describe(self, size: int, footer: pq.FileMetaData) -> _Finished:
        """Return what the sink has to know of the file."""

    def _write_group(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0


class PartitionedFiles(ABC, Generic[_Finished]):
    """The files of one task, below a directory.

    :param folder: of the attempt
    :param max_file_bytes: a file that has reached this is closed, and another begun
    """

    def __init__(self, folder: str, task: int, partition_by: Sequence[str], max_file_bytes: int) -> None:
        self._folder: Final = folder
        self._task: Final = task
        self._partition_by: Final = partition_by
        self._max_file_bytes: Final = max_file_bytes
        self._open: dict[_Values, ParquetFile[_Finished]] = {}
        self._done: list[_Finished] = []

    def write(self, rows: pa.RecordBatch, kept: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions.

        :param kept: the columns of the rows that are written
        """
        for values, part in _parted(rows, self._partition_by, kept):
            file = self._open.get(values)
            if file is None:
                if len(self._open) >= _OPEN_FILES:
                    self._finish(next(iter(self._open)))
                file = self._open[values] = self._begin(values, part.schema)
            file.write(part)
            if file.size >= self._max_file_bytes:
                self._finish(values)

    def finish(self) -> list[_Finished]:
        """Close the files; returns what the sink has to know of them."""
        for values in list(self._open):
            self._finish(values)
        return self._done

    def close(self) -> None:
        """Abandon what is still open."""
        while self._open:
            self._open.popitem()[1].abandon()

    @abstractmethod
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile[_Finished]:
        """Begin a file."""

    def _begin(self, values: _Values, schema: pa.Schema) -> ParquetFile[_Finished]:
        partition = dict(zip(self._partition_by, values, strict=True))
        folders = [self._directory(column, value) for column, value in partition.items()]
        name = "/".join([self._folder, *folders, f"{self._task:05d}-{uuid.uuid4().hex}.parquet"])
        return self._new(name, schema, partition)

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


def refused(message: str) -> RecordRefusedError:
    """Return the error of a row that would be refused again, marked for the driver."""
    return RecordRefusedError(mark(RecordRefusedError, message))


def _parted(rows: pa.RecordBatch, by: Sequence[str], kept: pa.RecordBatch) -> Iterator[tuple[_Values, pa.RecordBatch]]:
    """Yield what is kept of the rows of each partition, with the values that make it, as text."""
    if not by:
        yield (), kept
        return
    texts = [pc.cast(rows[name], pa.string()) for name in by]
    table = pa.Table.from_arrays([*texts, pa.array(range(rows.num_rows), pa.int64())], [*by, ""])
    groups = table.group_by(list(by), use_threads=False).aggregate([("", "list")])
    for group in groups.to_pylist():
        yield tuple(group[name] for name in by), kept.take(pa.array(group["_list"], pa.int64()))

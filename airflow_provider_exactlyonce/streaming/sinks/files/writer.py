"""The executor's half of the sinks that write files: a task's rows become Parquet files that nobody refers to yet."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.files.log import DataFile
from airflow_provider_exactlyonce.streaming.sinks.files.storage import Storage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkWriter
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

_ROW_GROUP_BYTES: Final = 32 * 2**20  # of Arrow's memory
_OPEN_FILES: Final = 64
_NAME_BYTES: Final = 255
_NULL: Final = "__HIVE_DEFAULT_PARTITION__"  # Hive's and Spark's name for the directory of nulls


@dataclass(frozen=True, kw_only=True)
class FileFormat:
    """How files are written.

    :param partition_by: the columns whose values name directories; they stay in the files, too
    :param compression: Parquet's codec
    :param max_file_bytes: a file that has reached this is closed, and another begun
    """

    partition_by: tuple[str, ...] = ()
    compression: str = "zstd"
    max_file_bytes: int = 256 * 2**20


class FileWriter(SinkWriter):
    """Writes a task's rows below the directory of its attempt.

    :param folder: that directory, relative to the storage's root
    """

    def __init__(self, storage: Storage, folder: str, task: int, format_: FileFormat) -> None:
        self._storage: Final = storage
        self._folder: Final = folder
        self._task: Final = task
        self._format: Final = format_
        self._open: dict[tuple[str | None, ...], _OpenFile] = {}
        self._done: list[DataFile] = []

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions."""
        for values, part in _parted(rows, self._format.partition_by):
            file = self._open.get(values)
            if file is None:
                if len(self._open) >= _OPEN_FILES:
                    self._finish(next(iter(self._open)))
                file = self._open[values] = self._begin(values, part.schema)
            file.write(part)
            if file.size >= self._format.max_file_bytes:
                self._finish(values)

    def finish(self) -> Mapping[str, Any]:
        """Close the files; returns them."""
        for values in list(self._open):
            self._finish(values)
        return {"files": [asdict(file) for file in self._done]}

    def close(self) -> None:
        """Close what is still open; nobody will refer to it."""
        while self._open:
            self._open.popitem()[1].abandon()

    def _begin(self, values: tuple[str | None, ...], schema: pa.Schema) -> _OpenFile:
        partition = dict(zip(self._format.partition_by, values, strict=True))
        folders = [_folder(column, value) for column, value in partition.items()]
        name = "/".join([self._folder, *folders, f"{self._task:05d}-{uuid.uuid4().hex}.parquet"])
        return _OpenFile(self._storage, name, schema, self._format, partition)

    def _finish(self, values: tuple[str | None, ...]) -> None:
        file = self._open.pop(values)
        try:
            self._done.append(file.finish())
        except BaseException:
            file.abandon()
            raise


class _Summed:
    """A file that knows how much was written to it, and its checksum."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file: Final = file
        self.sha256: Final = hashlib.sha256()
        self.size = 0

    def write(self, data: Any) -> int:
        self._file.write(data)
        self.sha256.update(data)
        self.size += len(memoryview(data).cast("B"))
        return len(data)

    def flush(self) -> None:
        self._file.flush()

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        self.closed = True
        self._file.close()


class _OpenFile:
    """One file that grows. Rows gather until they make a row group of a good size."""

    def __init__(
        self, storage: Storage, name: str, schema: pa.Schema, format_: FileFormat, partition: Mapping[str, str | None]
    ) -> None:
        self._storage: Final = storage
        self._name: Final = name
        self._partition: Final = partition
        self._sink: Final = _Summed(storage.open_new(name))
        self._parquet: Final = pq.ParquetWriter(self._sink, schema, compression=format_.compression)
        self._waiting: list[pa.RecordBatch] = []
        self._waiting_bytes = 0
        self._rows = 0

    @property
    def size(self) -> int:
        return self._sink.size

    def write(self, rows: pa.RecordBatch) -> None:
        self._waiting.append(rows)
        self._waiting_bytes += rows.nbytes
        self._rows += rows.num_rows
        if self._waiting_bytes >= _ROW_GROUP_BYTES:
            self._write_group()

    def finish(self) -> DataFile:
        self._write_group()
        self._parquet.close()
        self._sink.close()
        self._storage.keep(self._name)
        return DataFile(
            name=self._name,
            rows=self._rows,
            size=self._sink.size,
            sha256=self._sink.sha256.hexdigest(),
            partition=self._partition,
        )

    def abandon(self) -> None:
        with suppress(Exception):  # else Arrow closes it when it is collected, and complains of a closed file
            self._parquet.close()
        self._sink.close()
        self._storage.remove(self._name)

    def _write_group(self) -> None:
        if self._waiting:
            self._parquet.write_table(pa.Table.from_batches(self._waiting))
            self._waiting, self._waiting_bytes = [], 0


def _folder(column: str, value: str | None) -> str:
    """Return the directory of a value, in Hive's form.

    :raises RecordRefusedError: when it is too long for a name
    """
    name = f"{quote(column, safe='')}={quote(_NULL if value is None else value, safe='')}"
    if len(name) > _NAME_BYTES:
        message = (
            f"column {column!r} of partition_by has the value {str(value)[:40]!r}…, which makes a directory's name of "
            f"{len(name)} bytes; at most {_NAME_BYTES} are possible. Derive a shorter column"
        )
        raise RecordRefusedError(mark(RecordRefusedError, message))
    return name


def _parted(rows: pa.RecordBatch, by: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
    """Yield the rows of each partition, with the values that make it, as text."""
    if not by:
        yield (), rows
        return
    texts = [pc.cast(rows[name], pa.string()) for name in by]
    table = pa.Table.from_arrays([*texts, pa.array(range(rows.num_rows), pa.int64())], [*by, ""])
    groups = table.group_by(list(by), use_threads=False).aggregate([("", "list")])
    for group in groups.to_pylist():
        yield tuple(group[name] for name in by), rows.take(pa.array(group["_list"], pa.int64()))

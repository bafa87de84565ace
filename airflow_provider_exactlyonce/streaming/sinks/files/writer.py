"""The executor's half of the sinks that write files: a task's rows become Parquet files that nobody refers to yet."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Final, cast

import pyarrow as pa
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.files.log import DataFile
from airflow_provider_exactlyonce.streaming.sinks.files.storage import Storage
from airflow_provider_exactlyonce.streaming.sinks.parquet_files import ParquetFile, PartitionedFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkWriter


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
        self._files: Final = _Files(storage, folder, task, format_)

    def write(self, rows: pa.RecordBatch) -> None:
        """Append rows to the files of their partitions."""
        self._files.write(rows, rows)

    def finish(self) -> Mapping[str, Any]:
        """Close the files; returns them."""
        return {"files": [asdict(file) for file in self._files.finish()]}

    def close(self) -> None:
        """Close what is still open; nobody will refer to it."""
        self._files.close()


class _Files(PartitionedFiles[DataFile]):
    def __init__(self, storage: Storage, folder: str, task: int, format_: FileFormat) -> None:
        super().__init__(folder, task, format_.partition_by, format_.max_file_bytes)
        self._storage: Final = storage
        self._compression: Final = format_.compression

    @override
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile[DataFile]:
        return _OpenFile(self._storage, name, schema, self._compression, partition)


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


class _OpenFile(ParquetFile[DataFile]):
    def __init__(
        self, storage: Storage, name: str, schema: pa.Schema, compression: str, partition: Mapping[str, str | None]
    ) -> None:
        self._summed: Final = _Summed(storage.open_new(name))
        self._partition: Final = partition
        super().__init__(storage, name, cast(BinaryIO, self._summed), schema, compression)

    @override
    def _describe(self, size: int, footer: pq.FileMetaData) -> DataFile:
        return DataFile(
            name=self._name,
            rows=footer.num_rows,
            size=size,
            sha256=self._summed.sha256.hexdigest(),
            partition=self._partition,
        )

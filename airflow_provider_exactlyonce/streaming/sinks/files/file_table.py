"""What readers of a sink's files see: the committed ones. And the upkeep of these files."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.files.log import (
    COMMIT,
    COMPACTION,
    DataFile,
    FileLog,
    LogRecord,
    folder_of,
    live_files,
)
from airflow_provider_exactlyonce.streaming.sinks.files.storage import open_storage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.dataset as ds

_SECONDS_PER_HOUR: Final = 3600


class FileTable:
    """The committed rows of a :class:`~airflow_provider_exactlyonce.streaming.sinks.files.sink.FileSink`.

    :param path: the sink's path
    :param pipeline: the pipeline's name
    :param sink: the sink's name
    :param storage_options: the sink's
    """

    def __init__(
        self, path: str, *, pipeline: str, sink: str, storage_options: Mapping[str, Any] | None = None
    ) -> None:
        self._storage: Final = open_storage(str(path), storage_options or {})
        self._folder: Final = folder_of(pipeline, sink)
        self._log: Final = FileLog(self._storage, f"{self._folder}/log")
        self._what: Final = f"sink {sink} of pipeline {pipeline} at {path}"

    @property
    def commit(self) -> int:
        """The newest commit, 0 before the first."""
        last = self._log.last()
        return last.entry.commit if last and last.entry else 0

    def history(self) -> Iterator[SinkEntry]:
        """Yield the entries of all commits that the log keeps, oldest first."""
        for position in self._log.positions():
            record = self._log.read(position)
            if record.kind == COMMIT and record.entry:
                yield record.entry

    def files(
        self, *, through: int | None = None, where: Callable[[Mapping[str, str | None]], bool] = lambda values: True
    ) -> list[DataFile]:
        """Return the files with the rows of all commits, oldest first.

        :param through: only up to this commit; as long as no compaction's grace period has ended since
        :param where: picks files by the values of ``partition_by``, as text
        :raises RefusedError: when the log begins later
        """
        last = self._log.last()
        if last is None:
            return []
        if through is not None:
            last = self._record_of(through, last)
        try:
            return [file for file in live_files(self._log, last) if where(file.partition)] if last else []
        except FileNotFoundError as error:
            raise RefusedError(f"the log of {self._what} does not go back so far any more: {error}") from error

    def paths(self, **selection: Any) -> list[str]:
        """Return the paths or URLs of the files, for DuckDB, Spark, or any reader that takes a list.

        :param selection: as in :meth:`files`
        """
        return [self._storage.place(file.name) for file in self.files(**selection)]

    def dataset(self, **selection: Any) -> ds.Dataset:
        """Return the files as a dataset of pyarrow, with the columns of the newest file.

        :param selection: as in :meth:`files`
        """
        import pyarrow as pa
        import pyarrow.dataset as ds
        import pyarrow.parquet as pq

        files = self.files(**selection)
        if not files:
            return ds.dataset(pa.table({}))
        with self._storage.open(files[-1].name) as newest:
            schema = pq.read_schema(newest)
        system = self._storage.filesystem
        places = [system._strip_protocol(self._storage.place(file.name)) for file in files]
        return ds.dataset(places, schema=schema, filesystem=system, format="parquet", partitioning=None)

    def to_table(self, **selection: Any) -> pa.Table:
        """Return all rows as a table of pyarrow.

        :param selection: as in :meth:`files`
        """
        return self.dataset(**selection).to_table()

    def compact(self, *, target_bytes: int = 128 * 2**20, compression: str = "zstd") -> int:
        """Write many small files together into few; returns how many were replaced.

        It runs beside the pipeline. Readers see the same rows before and after; the replaced files stay until
        :meth:`clean` is called after the grace period, and the log keeps all commits.

        :param target_bytes: files below half of it are written together, up to about this size
        :param compression: Parquet's codec
        :raises BatchFailedError: when another compaction was faster
        """
        last = self._log.last()
        if last is None:
            return 0
        live = live_files(self._log, last)
        attempt = f"compaction-{uuid.uuid4().hex}"
        replaced, written = self._merged(live, f"{self._folder}/data/{attempt}", target_bytes, compression)
        if not replaced:
            return 0
        names = tuple(file.name for file in replaced)
        while True:
            kept = [file for file in live if file.name not in set(names)]
            record = last.after(kind=COMPACTION, attempt=attempt, files=(*written, *kept), replaced=names)
            try:
                self._log.append(record)
            except FileExistsError:
                last = self._log.read(record.position)
                if last.kind == COMPACTION:
                    self._storage.remove(f"{self._folder}/data/{attempt}")
                    raise BatchFailedError(f"{self._what} is compacted by somebody else; do one at a time") from None
                live.extend(last.files)
            else:
                return len(replaced)

    def clean(self, *, grace_hours: float = 24) -> int:
        """Remove files that nobody needs any more; returns how many.

        These are files that a compaction has replaced, and files that dead tasks or compactions have left.

        :param grace_hours: what was replaced or written later than so long ago stays: readers may be in the midst of
            it, or a task may still be about to have it committed
        """
        before = time.time() - grace_hours * _SECONDS_PER_HOUR
        records = [self._log.read(position) for position in self._log.positions()]
        old = [record for record in records if record.written < before]
        known = {file.name for record in records for file in record.files}
        known.update(name for record in records if record.written >= before for name in record.replaced)
        names = {name for record in old for name in record.replaced}
        begun = {name.removesuffix(".json") for name in self._storage.names(f"{self._folder}/attempts")}
        data = f"{self._folder}/data"
        for name in self._storage.below(data):
            attempt = name.removeprefix(f"{data}/").partition("/")[0]
            if name not in known and attempt not in begun and self._storage.modified(name) < before:
                names.add(name)
        present = [name for name in sorted(names) if self._storage.size(name) is not None]
        for name in present:
            self._storage.remove(name)
        return len(present)

    def _record_of(self, commit: int, last: LogRecord) -> LogRecord | None:
        """Return the last record before the commit after the given one."""
        record = last
        while record.entry is not None and record.entry.commit > commit:
            if record.position == 1:
                return None
            try:
                record = self._log.read(record.position - 1)
            except FileNotFoundError:
                raise RefusedError(f"the log of {self._what} begins after commit {commit}") from None
        return record

    def _merged(
        self, live: list[DataFile], folder: str, target_bytes: int, compression: str
    ) -> tuple[list[DataFile], list[DataFile]]:
        """Write small files of one partition and one schema together; returns those files and the new ones."""
        import pyarrow.parquet as pq

        from airflow_provider_exactlyonce.streaming.sinks.files.writer import FileFormat, FileWriter

        groups: dict[object, list[DataFile]] = {}
        for file in live:
            if file.size < target_bytes / 2:
                with self._storage.open(file.name) as opened:
                    schema = pq.read_schema(opened)
                groups.setdefault((*file.partition.items(), schema.to_string(show_schema_metadata=False)), []).append(
                    file
                )
        replaced, written = [], []
        for files in groups.values():
            if len(files) < 2:
                continue
            form = FileFormat(
                partition_by=tuple(files[0].partition), compression=compression, max_file_bytes=target_bytes
            )
            writer = FileWriter(self._storage, folder, 0, form)
            try:
                for file in files:
                    with self._storage.open(file.name) as opened, pq.ParquetFile(opened) as parquet:
                        for rows in parquet.iter_batches():
                            writer.write(rows)
                merged = [DataFile(**file) for file in writer.finish()["files"]]
            finally:
                writer.close()
            if sum(file.rows for file in merged) != sum(file.rows for file in files):
                raise RefusedError(f"{self._what}: a file has other rows than its commit says; audit the pipeline")
            replaced += files
            written += merged
        return replaced, written

"""A sink that writes Parquet files, which readers get by an atomically published list."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    invariant,
)
from airflow_provider_exactlyonce.streaming.sinks.committer_states import CommitterEvent, CommitterPhase
from airflow_provider_exactlyonce.streaming.sinks.file_checks import (
    check_declaration,
    check_parquet,
    check_partitions,
)
from airflow_provider_exactlyonce.streaming.sinks.files.file_table import FileTable
from airflow_provider_exactlyonce.streaming.sinks.files.log import (
    CLAIM,
    COMMIT,
    COMPACTION,
    DataFile,
    FileLog,
    LogRecord,
    folder_of,
    live_files,
)
from airflow_provider_exactlyonce.streaming.sinks.files.storage import open_storage
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    TWO_PHASE_COMMIT,
    OpenWriter,
    Sink,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
    SinkWriter,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.files.writer import FileFormat

#: Tasks of an attempt that is over may go on writing for so long; then its marker goes.
_STRAGGLER_SECONDS: Final = 3600
#: A reader that began before a compaction may go back to the records behind it for so long.
_READER_SECONDS: Final = 24 * 3600


@dataclass(frozen=True, kw_only=True)
class FileSink(Sink):
    """Appends the result to Parquet files: all rows of a batch become visible together, and once.

    :param path: an absolute path that driver, tasks and readers share, or a URL of fsspec whose store has conditional
        writes: ``s3://``, ``gs://``, ``abfs://``
    :param format: ``parquet``
    :param partition_by: columns whose values name directories, so that a reader can leave out files; they stay in the
        files, too
    :param compression: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``
    :param max_file_bytes: a file that has reached this is closed, and another begun
    :param storage_options: what fsspec needs to know of the file system, credentials too; never shown
    """

    path: str
    format: str = "parquet"
    partition_by: Sequence[str] = ()
    compression: str = "zstd"
    max_file_bytes: int = 256 * 2**20
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", str(self.path))
        object.__setattr__(self, "partition_by", tuple(self.partition_by))
        kind = type(self).__name__
        check_declaration(kind, self.name, self.path, self.compression, self.max_file_bytes)
        if self.format != "parquet":
            raise RefusedError(f"{kind}(format={self.format!r}): only 'parquet' can be written")

    @property
    @override
    def guarantee(self) -> str:
        return TWO_PHASE_COMMIT

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"path": (self.path,), "partition_by": tuple(self.partition_by)}

    @override
    def check_columns(self, columns: StructType) -> None:
        check_parquet(columns, f"sink {self.name}")
        check_partitions(columns, self.partition_by, f"sink {self.name}")

    @override
    def open(self, context: SinkContext) -> FileCommitter:
        return FileCommitter(self, context.pipeline)

    def table(self, pipeline: str) -> FileTable:
        """Return what its readers see of a pipeline's rows.

        :param pipeline: the pipeline's name
        """
        return FileTable(self.path, pipeline=pipeline, sink=self.name, storage_options=self.storage_options)

    @property
    def file_format(self) -> FileFormat:
        """How the tasks write."""
        from airflow_provider_exactlyonce.streaming.sinks.files.writer import FileFormat

        return FileFormat(
            partition_by=tuple(self.partition_by), compression=self.compression, max_file_bytes=self.max_file_bytes
        )


@dataclass(frozen=True)
class OpenFileWriter:
    """Opens a task's writer; it is sent to the executors.

    :param folder: the sink's directory
    """

    path: str
    storage_options: Mapping[str, Any] = field(repr=False)
    folder: str
    format: FileFormat

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""
        from airflow_provider_exactlyonce.streaming.sinks.files.writer import FileWriter

        storage = open_storage(self.path, self.storage_options)
        return FileWriter(storage, f"{self.folder}/data/{attempt.name}", task, self.format)


class FileCommitter(SinkCommitter):
    """Publishes a batch by appending one record to the sink's log.

    Each attempt has a marker until it is settled, so that the next claim finds what a dead one has left.
    """

    def __init__(self, sink: FileSink, pipeline: str) -> None:
        self._sink: Final = sink
        self._pipeline: Final = pipeline
        self._folder: Final = folder_of(pipeline, sink.name)
        self._storage: Final = open_storage(sink.path, sink.storage_options)
        self._log: Final = FileLog(self._storage, f"{self._folder}/log")
        self._phase: Final = CommitterPhase(sink.name)
        self._run = 0
        self._last: LogRecord | None = None
        self._attempt: SinkAttempt | None = None
        self._staged: tuple[DataFile, ...] = ()
        self._committed: dict[str, tuple[DataFile, ...]] = {}  # by attempt, until settled
        self._aborted: dict[str, float] = {}  # attempts that may have stragglers, and when they began

    @override
    def tail(self) -> SinkEntry | None:
        with self._answering():
            last = self._log.last()
        return last.entry if last else None

    @override
    def claim(self, run: int) -> SinkEntry | None:
        self._phase.move(CommitterEvent.CLAIM_BEGUN)
        self._run, self._last, self._attempt = run, None, None
        with self._answering():
            self._storage.check_exclusive(self._folder)
            mine = self._claimed(run)
            self._sweep(mine)
        self._last = mine
        self._phase.move(CommitterEvent.CLAIMED)
        return mine.entry

    @override
    def open_writer(self) -> OpenWriter:
        return OpenFileWriter(self._sink.path, self._sink.storage_options, self._folder, self._sink.file_format)

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        self._phase.check(CommitterEvent.BEGUN)
        marker = {"began": time.time(), "position": self._known().position}
        with self._answering():
            self._storage.replace(self._marker(attempt.name), json.dumps(marker).encode())
        self._attempt, self._staged = attempt, ()
        self._phase.move(CommitterEvent.BEGUN)

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self._phase.check(CommitterEvent.PRE_COMMITTED)
        files = tuple(DataFile(**file) for told in written for file in told["files"])
        for file in files:
            with self._answering():
                size = self._storage.size(file.name)
            if size != file.size:
                found = "is not there" if size is None else f"has {size} bytes"
                raise BatchFailedError(
                    f"{self._storage.place(file.name)}, which a task has written with {file.size} bytes, {found} for "
                    "the driver: both have to see the same file system under the sink's path"
                )
        self._staged = files
        self._phase.move(CommitterEvent.PRE_COMMITTED)

    @override
    def commit(self, entry: SinkEntry) -> None:
        self._phase.check(CommitterEvent.COMMITTED)
        name = self._attempt.name  # type: ignore[union-attr]
        record = self._known().after(kind=COMMIT, entry=entry, attempt=name, files=self._staged)
        while (taken := self._appended(record)) is not None:
            if taken.attempt == name:
                break  # an answer was lost on the way, and this was written at the first try
            if taken.run > self._run:
                raise self._fenced(self._run, taken)
            if taken.kind != COMPACTION:
                raise CommitUnknownError(
                    f"{self._log.place(taken.position)} is a {taken.kind} of run {taken.run} itself, which its last "
                    "claim has not seen"
                )
            record = taken.after(kind=COMMIT, entry=entry, attempt=name, files=self._staged)
        self._last, self._attempt = record, None
        self._phase.move(CommitterEvent.COMMITTED)
        self._committed[name] = self._staged

    @override
    def abort(self) -> None:
        if self._attempt is None:
            return
        name, self._attempt = self._attempt.name, None
        self._phase.move(CommitterEvent.ABORTED)
        self._aborted[name] = time.time()
        with suppress(OSError):  # the next claim does it
            self._storage.remove(self._data(name))

    @override
    def settled(self, commit: int) -> None:
        with self._answering():
            self._tidy()

    @override
    def forget(self, before: int) -> None:
        with self._answering():
            self._log.forget(before, compacted=time.time() - _READER_SECONDS)

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        from airflow_provider_exactlyonce.streaming.sinks.files.audit import audit

        return audit(self._storage, self._log, commits)

    @override
    def close(self) -> None:
        """Nothing is held."""

    def _claimed(self, run: int) -> LogRecord:
        """Append a claim after whatever else is appended meanwhile."""
        while True:
            last = self._log.last()
            if last is not None and last.run > run:
                raise self._fenced(run, last)
            mine = last.after(kind=CLAIM, run=run) if last else LogRecord(position=1, kind=CLAIM, run=run)
            try:
                self._log.append(mine)
            except FileExistsError:
                continue
            return mine

    def _appended(self, record: LogRecord) -> LogRecord | None:
        """Append a record; returns what is at its position when that is taken.

        The position may be taken by this very record, whose answer was lost: until it is read, nobody knows.
        """
        place = self._log.place(record.position)
        try:
            self._log.append(record)
        except RefusedError:
            raise
        except FileExistsError:
            pass
        except Exception as error:  # object stores have errors of their own
            raise CommitUnknownError(f"{place} may be written or not: {error}") from error
        else:
            return None
        try:
            return self._log.read(record.position)
        except Exception as error:
            raise CommitUnknownError(f"{place} is taken, and can't be read: {error}") from error

    def _sweep(self, mine: LogRecord) -> None:
        """Remove what attempts have left that can't be committed any more, now that a claim is in the log."""
        for name in self._storage.names(f"{self._folder}/attempts"):
            attempt = name.removesuffix(".json")
            marker = json.loads(self._storage.read(self._marker(attempt)))
            files = self._committed_as(attempt, marker["position"], mine)
            if files is None:
                self._storage.remove(self._data(attempt))
                self._aborted[attempt] = marker["began"]
            else:
                self._committed[attempt] = files
        self._tidy()

    def _tidy(self) -> None:
        """Remove files that a task run twice has left beside those that are committed, and what stragglers have."""
        for attempt, files in list(self._committed.items()):
            kept = {file.name for file in files}
            for name in self._storage.below(self._data(attempt)):
                if name not in kept:
                    self._storage.remove(name)
            self._storage.remove(self._marker(attempt))
            del self._committed[attempt]
        for attempt, began in list(self._aborted.items()):
            if time.time() - began > _STRAGGLER_SECONDS:
                self._storage.remove(self._data(attempt))
                self._storage.remove(self._marker(attempt))
                del self._aborted[attempt]

    def _committed_as(self, attempt: str, begun_at: int, last: LogRecord) -> tuple[DataFile, ...] | None:
        """Return the files that an attempt was committed with, None when it was not.

        :param begun_at: the last position when it began
        :param last: the last record
        """
        positions = self._log.positions()
        for position in [one for one in positions if one > begun_at]:
            record = self._log.read(position)
            if record.kind == COMMIT and record.attempt == attempt:
                return record.files
        if positions[0] <= begun_at + 1:
            return None
        # Its record may be forgotten; what is still read of it is in the newest compaction.
        live = live_files(self._log, last, positions[0])
        return tuple(file for file in live if file.name.startswith(f"{self._data(attempt)}/")) or None

    @contextmanager
    def _answering(self) -> Iterator[None]:
        """Tell a file system that does not answer from a name that is taken; object stores have errors of their own."""
        try:
            yield
        except (ExactlyOnceError, FileExistsError):
            raise
        except Exception as error:
            raise BatchFailedError(f"sink {self._sink.name}: {self._sink.path} does not answer: {error}") from error

    def _known(self) -> LogRecord:
        invariant(self._last is not None, "the sink is claimed before it is written to")
        return self._last  # type: ignore[return-value]

    def _fenced(self, run: int, by: LogRecord) -> FencedError:
        return FencedError(
            f"run {run} of pipeline {self._pipeline} is superseded by run {by.run} in sink {self._sink.name} "
            f"({self._log.place(by.position)})"
        )

    def _marker(self, attempt: str) -> str:
        return f"{self._folder}/attempts/{attempt}.json"

    def _data(self, attempt: str) -> str:
        return f"{self._folder}/data/{attempt}"

"""Half of a sink of one's own: tasks stage rows in the pipeline's home, and one transaction of the target takes them.

It is for a target with transactions that the driver alone writes to. What remains to be written is that transaction.
"""

from __future__ import annotations

import os
import shutil
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RefusedError,
    invariant,
)
from airflow_provider_exactlyonce.storage.opening import is_local
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import compare, not_as_known
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    Sink,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
    SinkWriter,
)
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering


class StagedWriter(SinkWriter):
    """Writes a task's rows to a file of Arrow's stream format.

    :param folder: of the attempt; driver and tasks share it
    """

    def __init__(self, folder: Path, task: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path: Final = folder / f"{task:05d}-{uuid.uuid4().hex}.arrows"
        self._file: Final = self._path.open("xb")
        self._stream: pa.RecordBatchStreamWriter | None = None
        self._rows = 0

    @override
    def write(self, rows: pa.RecordBatch) -> None:
        if self._stream is None:
            self._stream = pa.ipc.new_stream(self._file, rows.schema)
        self._stream.write_batch(rows)
        self._rows += rows.num_rows

    @override
    def finish(self) -> Mapping[str, Any]:
        if self._stream is not None:
            self._stream.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"file": str(self._path), "rows": self._rows, "bytes": self._file.tell()}

    @override
    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class OpenStagedWriter:
    """Opens a task's writer; it is sent to the executors.

    :param folder: where a sink's rows are staged
    """

    folder: Path

    def __call__(self, attempt: SinkAttempt, task: int) -> SinkWriter:
        """Open the writer of a task."""
        return StagedWriter(self.folder / str(attempt.run) / attempt.name, task)


class StagedCommitter(SinkCommitter):
    """Derive from it, and write :meth:`entry_of`, :meth:`take_over`, :meth:`publish` and :meth:`close`.

    :attr:`key` identifies the sink in the target's ledger: the pipeline's name and the sink's. An exception of the
    target that is no :class:`~airflow_provider_exactlyonce.exceptions.ExactlyOnceError` means that it did not answer.
    """

    def __init__(self, sink: Sink, context: SinkContext) -> None:
        if not is_local(context.home):
            raise RefusedError(
                f"sink {sink.name} stages rows in the pipeline's home, and {context.home} is not on a mounted file "
                "system: give the pipeline a home that is, or another kind of sink"
            )
        self.key: Final = (context.pipeline, sink.name)
        self._folder: Final = context.home / "sinks" / sink.name / "staging"
        self._run = 0
        self._newest: SinkEntry | None = None
        self._task_results: Sequence[Mapping[str, Any]] = ()

    @abstractmethod
    def entry_of(self, commit: int | None) -> SinkEntry | None:
        """Return the entry of a commit from the target's ledger, the newest for None; None when it is not there."""

    @abstractmethod
    def take_over(self, run: int) -> None:
        """Note in the target that this run owns the sink, in a transaction that waits for one that is under way.

        :raises FencedError: when a higher run owns it, see :meth:`superseded`
        """

    @abstractmethod
    def publish(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        """Write rows and entry in one transaction, which sees first that no higher run than the entry's owns the sink.

        :raises FencedError: when one does; nothing is written
        """

    def check_is_as_known(self, entry: SinkEntry) -> None:
        """See that the target's ledger ends at the commit that this driver has claimed or made last.

        :param entry: of the commit that is to follow
        :raises FencedError: when a higher run has committed
        :raises CommitUnknownError: when it ends at another commit
        """
        found = self.entry_of(None)
        self._check_owner(found, entry.run)
        newest, known = (last.commit if last else 0 for last in (found, self._newest))
        if newest != known:
            raise not_as_known(self.key[1], newest, known, entry)

    def superseded(self, run: int, by: int) -> FencedError:
        """Return the error for a run that lost the sink to a higher run, or to another driver with its number."""
        successor = "another driver with the same run number" if by == run else f"run {by}"
        return FencedError(f"run {run} of {self.key[0]} is superseded by {successor} in sink {self.key[1]}")

    @override
    def tail(self) -> SinkEntry | None:
        with self._answering():
            return self.entry_of(None)

    @override
    def claim(self, run: int) -> SinkEntry | None:
        with self._answering():
            self.take_over(run)
        for folder in self._folder.glob("*"):
            if folder.name.isdecimal() and int(folder.name) <= run:  # else another process made it
                shutil.rmtree(folder, ignore_errors=True)
        self._run = run
        newest = self._newest = self.tail()
        self._check_owner(newest, run)
        return newest

    @override
    def open_writer(self) -> OpenWriter:
        return OpenStagedWriter(self._folder)

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        self._task_results = ()

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        for task in written:
            file = Path(task["file"])
            if not file.is_file() or file.stat().st_size != task["bytes"]:
                raise BatchFailedError(
                    f"{file}, which a task of sink {self.key[1]} has written with {task['bytes']} bytes, is not there "
                    "for the driver: both have to see the pipeline's home"
                )
        self._task_results = written

    @override
    def commit(self, entry: SinkEntry) -> None:
        invariant(entry.run == self._run, "the run that has claimed commits")
        rows = sum(task["rows"] for task in self._task_results)
        invariant(rows == entry.rows, f"{rows} rows are staged, the entry has {entry.rows}: is pre_commit overridden?")
        with answering(f"sink {self.key[1]}", CommitUnknownError):
            self.check_is_as_known(entry)
            self.publish(entry, self._staged_rows())
        self._newest = entry

    @override
    def abort(self) -> None:
        self._forget()

    @override
    def settled(self, commit: int) -> None:
        self._forget()

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        expected = list(commits)
        entries = {entry.commit: entry for commit in expected if (entry := self.entry_of(commit.commit)) is not None}
        return compare(entries, expected, f"sink {self.key[1]}")

    def _staged_rows(self) -> Iterator[pa.RecordBatch]:
        for task in self._task_results:
            if task["rows"]:
                with pa.OSFile(task["file"]) as file, pa.ipc.open_stream(file) as stream:
                    yield from stream

    def _check_owner(self, newest: SinkEntry | None, run: int) -> None:
        if newest is not None and newest.run > run:  # a successor has claimed since, and committed
            raise self.superseded(run, newest.run)

    def _forget(self) -> None:
        self._task_results = ()
        shutil.rmtree(self._folder / str(self._run), ignore_errors=True)

    def _answering(self) -> AbstractContextManager[None]:
        return answering(f"sink {self.key[1]} does not answer")

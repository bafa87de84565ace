"""A sink for a target that has neither transactions nor keys: durable in a log first, delivered after the commit."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, RefusedError, required
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_parquet, check_place
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    WRITE_AHEAD_LOG,
    WRITE_AHEAD_LOG_ASKED,
    Sink,
    SinkContext,
    SinkEntry,
)
from airflow_provider_exactlyonce.streaming.sinks.staged import StagedCommitter
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.delivery import (
    Delivery,
    DeliveryProgress,
    Target,
    is_delivered,
    read_note,
)
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.log import (
    CLAIM,
    COMMIT,
    FileLog,
    LogRecord,
    folder_of,
)
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import open_storage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SECONDS_PER_HOUR: Final = 3600


@dataclass(frozen=True, kw_only=True)
class WriteAheadLogSink(Sink):
    """Commits the result to a log of files, and delivers commit after commit to the target.

    Exactly once when the target can tell whether it has a commit, at least once otherwise; see :class:`Target`.

    :param path: where the log is: an absolute path that every driver sees, or a URL of fsspec whose store has
        conditional writes: ``s3://``, ``gs://``, ``abfs://``
    :param target: gets the rows
    :param keep_hours: how long commits stay in the log after they were delivered; at least an hour
    :param wait_seconds: how long a batch waits for its delivery, so that a slow target slows the pipeline down; after
        that the log grows
    :param drain_seconds: how long a driver that ends waits for outstanding deliveries; the next run does the rest
    :param storage_options: what fsspec needs to know of the file system; never shown
    """

    path: str
    target: Target = field(repr=False)
    keep_hours: float = 24
    wait_seconds: float = 1
    drain_seconds: float = 30
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.target, Target):
            raise RefusedError(f"WriteAheadLogSink(name={self.name!r}): target is {type(self.target)}, not a Target")
        if self.keep_hours < 1:
            raise RefusedError(
                f"WriteAheadLogSink(name={self.name!r}, keep_hours={self.keep_hours}): at least 1, or a frozen driver "
                "could find its place in the log free"
            )
        object.__setattr__(self, "path", str(self.path))
        check_place("WriteAheadLogSink", self.name, self.path)

    @property
    @override
    def guarantee(self) -> str:
        return WRITE_AHEAD_LOG_ASKED if self.target.can_be_asked else WRITE_AHEAD_LOG

    @property
    @override
    def facts(self) -> Mapping[str, tuple[str, ...]]:
        return {"path": (self.path,), "target": (type(self.target).__qualname__,)}

    @override
    def check_columns(self, columns: StructType) -> None:
        check_parquet(columns, f"sink {self.name}")

    @override
    def open(self, context: SinkContext) -> WriteAheadLogCommitter:
        return WriteAheadLogCommitter(self, context)

    def delivered(self, pipeline: str) -> DeliveryProgress:
        """Return how far the delivery is.

        :param pipeline: the pipeline's name
        """
        return read_note(open_storage(self.path, self.storage_options), folder_of(pipeline, self.name))


class WriteAheadLogCommitter(StagedCommitter):
    """Commits a batch as the next record of the log, and has it delivered once the pipeline's ledger has the commit."""

    def __init__(self, sink: WriteAheadLogSink, context: SinkContext) -> None:
        super().__init__(sink, context)
        self._settings: Final = sink
        self._folder_of_log: Final = folder_of(*self.key)
        self._storage: Final = open_storage(sink.path, sink.storage_options)
        self._log: Final = FileLog(self._storage, f"{self._folder_of_log}/log")
        self._last: LogRecord | None = None
        self._claims: Final[list[str]] = []  # of all that this one has tried
        self._has_claimed = False
        self._delivery: Final = Delivery(
            sink.target,
            self._storage,
            self._log,
            sink=sink.name,
            folder=self._folder_of_log,
            keep_seconds=sink.keep_hours * _SECONDS_PER_HOUR,
        )

    @override
    def entry_of(self, commit: int | None) -> SinkEntry | None:
        last = self._log.last()  # no other commit is asked for: the audit reads the whole log
        return last.entry if last else None

    @override
    def take_over(self, run: int) -> None:
        self._last = None
        self._storage.check_exclusive(self._folder_of_log)
        self._claims.append(claim := uuid.uuid4().hex)
        while True:
            if (last := self._log.last()) is not None:
                is_another = self._has_claimed and last.run == run and last.claim not in self._claims
                if last.run > run or is_another:
                    raise self.superseded(run, last.run)
            claim_record = LogRecord(
                position=last.position + 1 if last else 1,
                kind=CLAIM,
                run=run,
                entry=last.entry if last else None,
                claim=claim,
                holds_rows=True,
            )
            try:
                self._log.append(claim_record)
            except FileExistsError:
                continue
            break
        self._last, self._has_claimed = claim_record, True
        self._log.remove_unfinished(claim_record.position)
        self._delivery.start(claim_record.position, self._claims)

    @override
    def check_is_as_known(self, entry: SinkEntry) -> None:
        known = required(self._last, "a run that commits has claimed")
        found: LogRecord | None = None
        with suppress(FileNotFoundError):
            found = self._log.read(known.position)
        if found is None or (found.claim, found.attempt) != (known.claim, known.attempt):
            raise CommitUnknownError(
                f"{self._log.place(known.position)}, the last record that this driver has written before commit "
                f"{entry.commit}, is {'missing' if found is None else 'another'}: the log was set back"
            )

    @override
    def publish(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        content, attempt = _stream(rows), uuid.uuid4().hex
        record = LogRecord(
            position=self._last.position + 1,  # type: ignore[union-attr]  # it is claimed
            kind=COMMIT,
            run=entry.run,
            entry=entry,
            claim=self._last.claim,  # type: ignore[union-attr]
            attempt=attempt,
            holds_rows=True,
            sha256=hashlib.sha256(content).hexdigest() if content else None,
        )
        try:
            self._log.append(record, content)
        except FileExistsError as error:
            existing = self._log.read(record.position)
            if existing.attempt != attempt:  # else an answer was lost on the way, and this was written at the first try
                raise self.superseded(entry.run, existing.run) from error
        self._last = record

    @override
    def settled(self, commit: int) -> None:
        super().settled(commit)
        newest = self._last.entry if self._last else None
        if newest is not None:
            self._delivery.up_to(min(commit, newest.commit), self._settings.wait_seconds)

    @property
    @override
    def undelivered(self) -> int:
        return self._delivery.behind

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        expected = list(commits)  # before the log is read, which has each commit first
        note, target = read_note(self._storage, self._folder_of_log), self._settings.target
        records: list[LogRecord] = []
        for position in self._log.positions():
            try:
                records.append(self._log.read(position))
            except FileNotFoundError:  # delivered, and removed meanwhile; otherwise it is a gap
                continue
            except RefusedError as error:
                yield str(error)
                return
        records_by_commit = {
            record.entry.commit: record for record in records if record.kind == COMMIT and record.entry
        }
        differences = {
            entry.commit: list(self._differences(records_by_commit[entry.commit], entry))
            for entry in expected
            if entry.commit in records_by_commit
        }
        # What was delivered leaves the log by its age, from its front and also meanwhile: nothing of it is judged.
        front = min(self._log.positions(), default=0)
        remaining = [record for record in records if record.position >= front]
        for previous, record in pairwise(remaining):
            if record.position != previous.position + 1:
                yield f"{self._log.place(record.position)}: the record before it is missing"
        first = next(iter(remaining or records[-1:]), None)
        oldest = first.entry.commit if first and first.position > 1 and first.entry else 0
        for entry in expected:
            if entry.commit not in differences:
                if entry.commit > oldest:
                    yield f"commit {entry.commit}: the log has no record of it"
            elif records_by_commit[entry.commit].position >= front:
                yield from differences[entry.commit]
                if entry.commit == note.commit and target.can_be_asked and not is_delivered(target, entry):
                    yield f"commit {entry.commit}: it was delivered, and the target does not have it"

    @override
    def close(self) -> None:
        self._delivery.stop(self._settings.drain_seconds)

    def _differences(self, record: LogRecord, expected: SinkEntry) -> Iterator[str]:
        place, changed = self._log.place(record.position), list(self._log.changed(record))
        if record.entry is None or not record.entry.is_same_output(expected):
            yield f"commit {expected.commit}: {place} has {record.entry}, the ledger {expected}"
        try:
            rows = expected.rows if changed else sum(batch.num_rows for batch in self._log.rows(record))
        except FileNotFoundError:
            changed = [place]
        for name in changed:
            yield f"commit {expected.commit}: {name} is missing, or its rows are not those that were committed"
        if not changed and rows != expected.rows:
            yield f"commit {expected.commit}: {place} has {rows} rows, and the ledger says {expected.rows}"


def _stream(rows: Iterator[pa.RecordBatch]) -> bytes:
    """Return the rows as a stream of Arrow, none when there are none."""
    buffer, writer = pa.BufferOutputStream(), None
    for batch in rows:
        if writer is None:
            writer = pa.ipc.new_stream(buffer, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd"))
        writer.write_batch(batch)
    if writer is not None:
        writer.close()
    return bytes(buffer.getvalue())

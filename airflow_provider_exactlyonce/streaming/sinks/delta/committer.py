"""The driver's half of the Delta sink: claims and commits are versions of the table's log.

A version is written only as the next one after that which this run has looked at. So a run that was frozen anywhere
can't write behind a claim that it has not seen; and one that looks again sees it. delta-rs itself would not refuse: it
takes any transaction's version from a handle that is fresh.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    invariant,
)
from airflow_provider_exactlyonce.streaming.sinks.committer_states import CommitterEvent, CommitterPhase
from airflow_provider_exactlyonce.streaming.sinks.delta import schema
from airflow_provider_exactlyonce.streaming.sinks.delta.audit import audit
from airflow_provider_exactlyonce.streaming.sinks.delta.changes import (
    AppendedRows,
    Change,
    RowsOfPartitions,
    StagedRows,
)
from airflow_provider_exactlyonce.streaming.sinks.delta.declaration import APPEND, UPSERT
from airflow_provider_exactlyonce.streaming.sinks.delta.keys import KeyColumns
from airflow_provider_exactlyonce.streaming.sinks.delta.ledger import AttemptNote, SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import open_files
from airflow_provider_exactlyonce.streaming.sinks.delta.upsert_writer import OpenUpsertWriter
from airflow_provider_exactlyonce.streaming.sinks.delta.upserts import UpsertedRows, UpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.delta.writer import OpenDeltaWriter, TableFormat
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkCommitter, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering, claim_unanswered

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.delta.declaration import DeltaDeclaration

#: How often a version is tried for that others take first, and the longest pause before the next try.
_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.5


class DeltaCommitter(SinkCommitter):
    """Writes versions of one table's log.

    :param sink: what was declared
    :param pipeline: the pipeline's name
    :param earlier_rows: those of earlier commits that another format had, and that the first commit takes along
    """

    def __init__(self, sink: DeltaDeclaration, pipeline: str, *, earlier_rows: int | None = None) -> None:
        self._sink: Final = sink
        self._pipeline: Final = pipeline
        self._earlier_rows: Final = earlier_rows
        self._options: Final = sink.options
        self._log: Final = DeltaLog(sink.path, self._options)
        self._files: Final = open_files(sink.path, self._options)
        self._ledger: Final = SinkLedger(self._log, self._files, pipeline, sink.name)
        self._key: Final = KeyColumns(key=tuple(sink.key), order=sink.order, deleted=sink.deleted)
        self._columns: pa.Schema | None = None
        self._checked: object = None  # what was checked of the table
        self._required: Sequence[str] | None = None  # columns whose nulls the tasks refuse
        self._phase: Final = CommitterPhase(sink.name)
        self._run = 0
        self._attempt: AttemptNote | None = None
        self._staged: StagedRows = AppendedRows(())
        self._staged_count = 0
        self._change = Change(added=(), rows=0)  # what the version to write adds and removes
        self._newest: AttemptNote | None = None  # of the newest commit
        self._compacted = 0  # the commit after which files were last written together
        self._old: list[str] = []  # attempts whose notes nobody needs any more

    @override
    def expect_columns(self, columns: StructType) -> None:
        self._columns = schema.arrow_columns(self._sink.stored(columns))

    @override
    def tail(self) -> SinkEntry | None:
        with self._answering():
            note = self._ledger.newest() if self._log.open() else None
        return note.entry if note else None

    @override
    def claim(self, run: int) -> SinkEntry | None:
        self._phase.move(CommitterEvent.CLAIM_BEGUN)
        self._run, self._newest, self._attempt = run, None, None
        with self._answering(), claim_unanswered():
            self._open_table()
            self._fence()
            failpoints.reach("after-sink-fence")
            self._evolve()
            self._newest = self._ledger.newest()
            self._keep_newest()
            self._sweep()
        self._phase.move(CommitterEvent.CLAIMED)
        return self._newest.entry if self._newest else None

    @override
    def open_writer(self) -> OpenWriter:
        with self._answering():
            there = self._log.open()
        self._required = schema.required_columns(self._log.table.schema()) if there else []
        form = TableFormat(
            columns=self._known_columns(),
            partition_by=tuple(self._sink.partition_by),
            required=tuple(self._required),
            compression=self._sink.compression,
            max_file_bytes=self._sink.max_file_bytes,
        )
        opens = OpenDeltaWriter(
            path=self._sink.path,
            storage_options=self._options,
            folder=self._ledger.data,
            format=form,
        )
        return OpenUpsertWriter(rows=opens, columns=self._key) if self._sink.mode == UPSERT else opens

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        self._phase.check(CommitterEvent.BEGUN)
        note = AttemptNote(attempt=attempt.name, commit=attempt.commit, run=attempt.run)
        with self._answering():
            self._ledger.write(note)
        self._attempt, self._staged, self._staged_count = note, AppendedRows(()), 0
        self._phase.move(CommitterEvent.BEGUN)

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self._phase.check(CommitterEvent.PRE_COMMITTED)
        for file in (file for task in written for file in (*task["files"], *task.get("deletions", ()))):
            with self._answering():
                size = self._files.size(file["path"])
            if size != file["size"]:
                actual = "is not there" if size is None else f"has {size} bytes"
                raise BatchFailedError(
                    f"{self._files.place(file['path'])}, which a task has written with {file['size']} bytes, {actual} "
                    "for the driver: both have to see the same table, and nobody may vacuum files that are just written"
                )
        with self._answering():
            self._staged = self._staged_rows(written)
        self._staged_count = sum(task["rows"] for task in written)
        self._phase.move(CommitterEvent.PRE_COMMITTED)

    @override
    def commit(self, entry: SinkEntry) -> None:
        self._phase.check(CommitterEvent.COMMITTED)
        rows = self._staged_count - (self._earlier_rows or 0)
        invariant(rows == entry.rows, f"{rows} rows are staged, the entry has {entry.rows}")
        self._write(
            lambda: self._append(entry),
            check=lambda: self._check_next(entry),
            plan=lambda: self._plan(entry),
            landed=lambda: self._has_landed(self._open_attempt()),
            what=f"commit {entry.commit}",
        )
        if self._newest is not None:
            self._old.append(self._newest.attempt)
        self._newest, self._attempt = self._attempt, None
        self._phase.move(CommitterEvent.COMMITTED)

    @override
    def abort(self) -> None:
        if self._attempt is None:
            return
        name, self._attempt = self._attempt.attempt, None
        self._phase.move(CommitterEvent.ABORTED)
        with suppress(Exception):  # the next claim does it
            self._ledger.remove_attempt(name)

    @override
    def settled(self, commit: int) -> None:
        with self._answering():
            if self._newest is not None:
                self._ledger.tidy(self._newest)
            while self._old:
                self._ledger.remove_note(self._old[-1])
                self._old.pop()
            every = self._sink.compact_every
            if every is not None and commit % every == 0 and commit > self._compacted:
                self._compacted = commit
                self._log.compact(self._sink.max_file_bytes)

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        with self._answering():
            there = self._log.open()
        return audit(self._log if there else None, self._files, self._ledger, self._sink, commits)

    @override
    def close(self) -> None:
        """Nothing is held."""

    def _open_table(self) -> None:
        """Look at the table, which is made if it is not there."""
        self._checked = None
        if self._log.open():
            return
        made = schema.delta_schema(self._known_columns())
        try:
            self._log.create(made, self._sink.partition_by)
        except Exception:
            if not self._log.open():  # else somebody else has made it, or this one has and the answer was lost
                raise
        else:
            invariant(self._log.open(), f"{self._sink.where} is there once it was made")

    def _fence(self) -> None:
        """Write a version with this run's number: nothing that lower runs, or this one, have under way is next then."""
        transactions, metadata = self._ledger.claim_of(self._run)
        self._write(
            lambda: self._log.append([], transactions, metadata),
            check=self._check_claim,
            landed=lambda: False,
            what=f"claim of run {self._run}",
        )
        self._log.refresh()

    def _evolve(self) -> None:
        """Add the columns that the table lacks."""
        missing = self._missing_columns()
        if not missing:
            return
        transactions, metadata = self._ledger.claim_of(self._run)
        self._write(
            lambda: self._log.add_columns(missing, transactions, metadata),
            check=self._check_claim,
            landed=lambda: not self._missing_columns(),
            what=f"new columns {', '.join(field.name for field in missing)}",
        )
        self._log.refresh()

    def _keep_newest(self) -> None:
        """Wait until the newest commit is on disk: the run that wrote it may have been killed before it had waited."""
        if self._newest is not None and self._log.is_local:
            version = self._ledger.committed_in()
            with suppress(FileNotFoundError):  # cleaned up, so it was there long ago
                if version is not None:
                    self._log.keep(version)

    def _sweep(self) -> None:
        """Remove what attempts have left that are certainly not committed, now that the claim is in the log.

        An attempt at the newest commit, or at one after it, is another than the one that made it. An older one that
        nobody has tried to commit is not committed either. Of any other that is older only the note goes: its files may
        be in the table. If they are not, VACUUM removes them.

        A successor's attempts stay: they may be committed. A run that was frozen since its claim finds them here.
        """
        newest = self._newest.commit if self._newest else 0
        for note in self._ledger.notes():
            if note.run > self._run:
                continue
            if self._newest is not None and note.attempt == self._newest.attempt:
                self._ledger.tidy(self._newest)
            elif note.commit >= newest or note.entry is None:
                self._ledger.remove_attempt(note.attempt)
            else:
                self._ledger.remove_note(note.attempt)
        self._old.clear()

    def _staged_rows(self, written: Sequence[Mapping[str, Any]]) -> StagedRows:
        files = [file for task in written for file in task["files"]]
        if self._sink.mode == APPEND:
            return AppendedRows(files)
        if self._sink.mode != UPSERT:
            return RowsOfPartitions(files, self._sink.where)
        attempt = self._open_attempt()
        target = UpsertTarget(
            files=self._files,
            folder=f"{self._ledger.data}/{attempt.attempt}",
            columns=self._known_columns(),
            key=self._key,
            partition_by=tuple(self._sink.partition_by),
            compression=self._sink.compression,
            where=self._sink.where,
        )
        return UpsertedRows(target, written, attempt.commit)

    def _plan(self, entry: SinkEntry) -> None:
        """Work out what the next version changes, and note it before it is written."""
        self._change = self._staged.change(self._log)
        files = tuple(file["path"] for file in self._change.added)
        note = replace(self._open_attempt(), entry=entry, files=files)
        self._ledger.write(note)
        self._attempt = note

    def _append(self, entry: SinkEntry) -> None:
        failpoints.reach("before-sink-decision")
        note, rows = self._open_attempt(), self._change.rows
        transactions, metadata = self._ledger.commit_of(note, entry, rows, self._earlier_rows)
        self._log.append(self._change.actions(), transactions, metadata, self._sink.mode == APPEND)

    def _write(
        self,
        write: Callable[[], None],
        *,
        check: Callable[[], None],
        landed: Callable[[], bool],
        what: str,
        plan: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a version after the newest one, whatever others write meanwhile.

        :param check: raises when it must not be written after the newest one
        :param plan: called when the table was looked at and fits, before each try
        :param landed: tells, once the table was looked at again, whether it was written though it failed
        :raises FencedError: when a higher run has claimed the sink
        :raises BatchFailedError: when it was not written, and never will be
        :raises CommitUnknownError: when nobody knows
        """
        for number in range(_TRIES):
            with self._answering():
                self._log.refresh()
                check()
                self._check_table()
                plan()
            version = self._log.version
            try:
                write()
            except Exception as error:  # of the store, of a hook of delta-rs after the version was written, or a race
                with self._answering(CommitUnknownError):
                    self._log.refresh()
                    has_landed = landed()
                if not has_landed and self._log.version <= version:
                    raise CommitUnknownError(
                        f"{what}: version {version + 1} of {self._sink.where} may be written or not: {error}"
                    ) from error
                if has_landed:
                    break
                # The version is somebody else's, so this one is not, nor will be.
                time.sleep(random.uniform(0, min(_PAUSE_SECONDS, 0.005 * 2**number)))
            else:
                break
        else:
            raise BatchFailedError(f"{what}: others were faster {_TRIES} times in writing to {self._sink.where}")
        with self._answering(CommitUnknownError):
            self._log.keep(version + 1)

    def _check_claim(self) -> None:
        claimed = self._ledger.claimed
        if claimed > self._run:
            raise FencedError(
                f"run {self._run} of pipeline {self._pipeline} is superseded by run {claimed}, which has claimed "
                f"{self._sink.where}"
            )

    def _check_next(self, entry: SinkEntry) -> None:
        """Check that a commit is the next one, and that this run may write it."""
        self._check_claim()
        if self._ledger.claimed < self._run or self._ledger.commit >= entry.commit:
            raise CommitUnknownError(
                f"{self._sink.where} has commit {self._ledger.commit} and the claim of run {self._ledger.claimed}, and "
                f"run {self._run} would write commit {entry.commit}: it was set back or made anew"
            )

    def _has_landed(self, note: AttemptNote) -> bool:
        """Tell whether the newest version has an attempt's commit.

        :raises CommitUnknownError: when there is a commit with its number or a higher one, by another attempt: a
            successor may have committed after this one, whose files must then not be taken for those of a failed one
        """
        if not self._ledger.has(note.attempt) and self._ledger.commit >= note.commit:
            raise CommitUnknownError(
                f"{self._sink.where} has commit {self._ledger.commit} by another attempt than the one at {note.commit}"
            )
        return self._ledger.has(note.attempt)

    def _check_table(self) -> None:
        """Check the table again when something of it has changed."""
        table = self._log.table
        metadata, protocol = table.metadata(), table.protocol()
        seen = (str(metadata), str(protocol), table.schema().to_json())
        if seen != self._checked:
            self._missing_columns()
            self._check_required(schema.required_columns(table.schema()))
            self._checked = seen

    def _check_required(self, columns: Sequence[str]) -> None:
        for name in columns:
            if self._required is not None and name not in self._required:
                raise RefusedError(
                    f"column {name!r} of {self._sink.where} has become NOT NULL since the start, and the tasks do not "
                    "check it: start the pipeline again"
                )

    def _missing_columns(self) -> list[Any]:
        return self._sink.missing_columns(self._log.table, self._known_columns())

    def _open_attempt(self) -> AttemptNote:
        invariant(self._attempt is not None, "an attempt is open")
        return self._attempt  # type: ignore[return-value]

    def _known_columns(self) -> pa.Schema:
        invariant(self._columns is not None, f"{self._sink.where} is told its columns before it is claimed")
        return self._columns

    def _answering(self, unanswered: type[ExactlyOnceError] = BatchFailedError) -> AbstractContextManager[None]:
        return answering(f"{self._sink.where} does not answer", unanswered)

"""The driver's half of a sink that writes its claims and commits as versions of a table.

The kinds of table differ in how a table is read, and how a version is written.
"""

from __future__ import annotations

import logging
import secrets
import uuid
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    invariant,
    required,
)
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import ListedFile, TableHistory
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import AppendedRows, Change, StagedRows
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer_states import CommitterEvent, CommitterPhase
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.compaction import Compaction
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.contract import Ledger, Table
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.declaration import APPEND, UPSERT, TableDeclaration
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.upsert_writer import OpenTableWriter, OpenUpsertWriter
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.upserts import UpsertedRows, UpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.versions import TableVersions
from airflow_provider_exactlyonce.streaming.sinks.ledger_comparison import compare
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkEntry,
    WrittenTable,
)
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering, claim_unanswered
from airflow_provider_exactlyonce.tables.datasets import dataset_at
from airflow_provider_exactlyonce.tables.retention import dangers

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_LOGGER: Final = logging.getLogger(__name__)


class TableCommitter(SinkCommitter):
    """Derive from it for a kind of table.

    :param pipeline: the pipeline's name
    :param stop_requested: tells that a version for which others are always faster should not be tried any longer
    :param verifies_checksums: the audit reads all rows, and verifies the checksums of their pages
    """

    #: What OpenLineage calls its format.
    STORAGE: ClassVar[str]
    #: Whether the entry of the newest commit may be nowhere but in its note, once the table's history was cleaned up.
    NEEDS_NOTE: ClassVar[bool]

    _sink: TableDeclaration
    _table: Table
    _ledger: Ledger

    def __init__(
        self,
        sink: TableDeclaration,
        pipeline: str,
        table: Table,
        ledger: Ledger,
        *,
        stop_requested: Callable[[], bool],
        verifies_checksums: bool,
    ) -> None:
        self._sink, self._table, self._ledger = sink, table, ledger
        self._pipeline: Final = pipeline
        self._versions: Final = TableVersions(table, sink.where, stop_requested)
        self._verifies_checksums: Final = verifies_checksums
        self._phase: Final = CommitterPhase(sink.name)
        self._columns: StructType | None = None
        self._checked_shape: object = None  # the shape of the table that was checked
        self._run = 0
        self._claim_ids: Final[list[int]] = []  # of all that this one has tried
        self._has_claimed = False
        self._attempt: AttemptNote | None = None
        self._key: Final = KeyColumns(key=tuple(sink.key), order=sink.order, deleted=sink.deleted)
        self._staged: StagedRows[Any] = AppendedRows(())
        self._change = self._staged.change()  # the files that the version to write adds and removes
        self._staged_rows = 0
        self._newest: Committed | None = None
        self._settling: list[Committed] = []  # commits beside whose files there may be others
        self._is_compaction_due = False
        self._unneeded: list[str] = []  # attempts with notes that are unneeded once the newest commit is settled

    @property
    @abstractmethod
    def _files(self) -> TableFiles:
        """The files of the table."""

    @property
    @abstractmethod
    def _attempts(self) -> Attempts:
        """The attempts of the sink beside the table."""

    @property
    @abstractmethod
    def _location(self) -> str:
        """The table's directory: an absolute path, or a URL."""

    @property
    @override
    def dataset(self) -> tuple[str, str]:
        return dataset_at(self._location)

    @property
    @abstractmethod
    def _properties(self) -> Mapping[str, str]:
        """The properties that the table has, as of the last read."""

    @property
    def _table_id(self) -> str | None:
        """The table's id, which a table made in its place does not have; None for none."""
        return None

    @abstractmethod
    def _create(self) -> None:
        """Create the table; fails when another process has."""

    @abstractmethod
    def _shape(self) -> object:
        """Return the part of the table that the rows have to fit."""

    @abstractmethod
    def _check_shape(self) -> None:
        """Check that the rows, as the tasks write them, fit the table.

        :raises RefusedError: naming what does not
        """

    @abstractmethod
    def _missing_columns(self) -> list[Any]:
        """Return the columns that the table lacks and gets."""

    @abstractmethod
    def _add_columns(self, columns: list[Any]) -> None:
        """Write the next version, with more columns."""

    def _plan_claim(self) -> None:
        """Compute the claim's content, after the table was read and fits."""

    @abstractmethod
    def _write_claim(self) -> None:
        """Write the next version, with this run's number and the claim's own."""

    @abstractmethod
    def _upsert_target(self, attempt: str) -> UpsertTarget[Any]:
        """Return where the rows of an attempt go that come in the place of those with their keys."""

    @abstractmethod
    def _rows_of_partitions(self, files: Sequence[Mapping[str, Any]]) -> StagedRows[Any]:
        """Return rows that come in the place of all that are in their partitions.

        :param files: that the tasks have written
        """

    @abstractmethod
    def _write_commit(self, note: AttemptNote, entry: SinkEntry, change: Change[Any]) -> None:
        """Write the next version."""

    @abstractmethod
    def _compaction(self) -> Compaction:
        """Return a compaction of the version last read."""

    @abstractmethod
    def _history(self) -> TableHistory:
        """Read the sink's commits from the table's versions, to compare them with the pipeline's ledger.

        :raises RefusedError: when they can't be read
        """

    @abstractmethod
    def _listed_files(self) -> Iterable[ListedFile]:
        """Return the table's entries of its files."""

    @override
    def expect_columns(self, columns: StructType) -> None:
        self._columns = columns

    @override
    def tail(self) -> SinkEntry | None:
        with self._answering():
            newest = self._ledger.newest() if self._table.open() else None
        return newest.entry if newest else None

    @override
    def claim(self, run: int) -> SinkEntry | None:
        self._phase.move(CommitterEvent.CLAIM_BEGUN)
        self._run, self._newest, self._attempt, self._is_compaction_due = run, None, None, False
        with self._answering(), claim_unanswered():
            self._open_table()
            for danger in dangers(self._properties, "sink"):
                _LOGGER.warning("%s has %s", self._sink.where, danger)
            self._fence()
            failpoints.reach("after-sink-fence")
            notes = self._attempts.notes()  # none is a successor's if the claim is the newest after that
            self._table.refresh()
            self._prepare()
            self._check_claim()  # else a successor's commit since would be taken for an earlier one
            self._newest = self._ledger.newest()
            self._sweep(notes)
            self._note_version(self._newest, is_new=False)
        self._phase.move(CommitterEvent.CLAIMED)
        return self._newest.entry if self._newest else None

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        self._phase.check(CommitterEvent.BEGUN)
        note = AttemptNote(attempt=attempt.name, commit=attempt.commit, run=attempt.run, table=self._table_id)
        with self._answering():
            self._attempts.write(note)
        self._attempt = note
        self._phase.move(CommitterEvent.BEGUN)

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self._phase.check(CommitterEvent.PRE_COMMITTED)
        for file in (file for task in written for file in (*task["files"], *task.get("deletions", ()))):
            with self._answering():
                size = self._files.size(file["path"])
            if size != file["size"]:
                state = "is not there" if size is None else f"has {size} bytes"
                raise BatchFailedError(
                    f"{self._files.place(file['path'])}, which a task has written with {file['size']} bytes, {state} "
                    "for the driver: both have to see the same table, and new files must not be removed"
                )
        with self._answering():
            self._staged = self._stage(written)
        self._staged_rows = sum(task["rows"] for task in written)
        self._phase.move(CommitterEvent.PRE_COMMITTED)

    @override
    def commit(self, entry: SinkEntry) -> None:
        self._phase.check(CommitterEvent.COMMITTED)
        invariant(self._staged_rows == entry.rows, f"{self._staged_rows} rows are staged, the entry has {entry.rows}")
        self._write(
            lambda: self._decide(entry),
            check=lambda: self._check_next(entry),
            plan=lambda: self._note_try(entry),
            landed=self._has_landed,
            what=f"commit {entry.commit}",
        )
        note = self._open_attempt()
        committed = Committed(attempt=note.attempt, entry=entry, files=note.files)
        unneeded = self._newest if self.NEEDS_NOTE else committed
        if unneeded is not None:
            self._unneeded.append(unneeded.attempt)
        self._settling.append(committed)
        self._newest, self._attempt = committed, None
        self._note_version(committed, is_new=True)
        if (every := self._sink.compact_every) is not None and entry.commit % every == 0:
            self._is_compaction_due = True
        self._phase.move(CommitterEvent.COMMITTED)

    def _note_version(self, newest: Committed | None, *, is_new: bool) -> None:
        """Note the version that the newest commit has made. The commit is made: nothing may fail here.

        :param is_new: it is the last that was written
        """
        version = None
        if newest is not None:
            with suppress(Exception):  # then it is not known
                version = self._version_of(newest, is_new=is_new)
        columns = self._sink.stored(self._known_columns()).fields
        self.written_table = WrittenTable(
            commit=newest.entry.commit if newest else 0,
            version=version,
            storage=self.STORAGE,
            columns=tuple((column.name, column.dataType.simpleString()) for column in columns),
        )

    @abstractmethod
    def _version_of(self, newest: Committed, *, is_new: bool) -> str | None:
        """Return the version that the newest commit has made, as readers name it; None when it is not known.

        :param is_new: it is the last that was written
        """

    @override
    def abort(self) -> None:
        if self._attempt is None:
            return
        name, self._attempt = self._attempt.attempt, None
        self._phase.move(CommitterEvent.ABORTED)
        with suppress(Exception):  # the next claim does it
            self._attempts.remove(name)

    @override
    def settled(self, commit: int) -> None:
        with self._answering():
            while self._settling:
                self._attempts.tidy(self._settling[-1].attempt, self._settling[-1].files)
                self._settling.pop()
            while self._unneeded:
                self._attempts.forget(self._unneeded[-1])
                self._unneeded.pop()
        if self._is_compaction_due and self._newest is not None:
            self._is_compaction_due = False
            self._compact(self._newest.entry)

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        with self._answering():
            is_there = self._table.open()
        if is_there:
            return self._audit(commits)
        return (f"commit {commit.commit}: there is no {self._sink.where}" for commit in commits)

    @override
    def close(self) -> None:
        """Nothing is held."""

    def _audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        try:
            newest, history = self._ledger.newest(), self._history()
        except RefusedError as error:
            yield str(error)
            return
        yield from history.findings
        if newest is not None:
            history.entries.setdefault(newest.entry.commit, newest.entry)
        yield from compare(history.entries, commits, self._sink.where, oldest=history.oldest)
        listed = self._listed_files()
        yield from history.differences(self._files, listed, verifies_checksums=self._verifies_checksums)

    def _open_table(self) -> None:
        """Look at the table, which is made if it is not there."""
        self._checked_shape = None
        if self._table.open():
            return
        try:
            self._create()
        except Exception:
            if not self._table.open():  # else another process has made it, or this one has and the answer was lost
                raise
        else:
            invariant(self._table.open(), f"{self._sink.where} is there once it was made")

    def _fence(self) -> None:
        """Write a version with this run's number: nothing that lower runs, or this one, have under way is next then."""
        self._claim_ids.append(claim_id := secrets.randbits(63))  # processes that were forked draw others
        self._write(
            self._write_claim,
            check=self._check_claim,
            plan=self._plan_claim,
            landed=lambda: self._ledger.claim.number == claim_id,
            what=f"claim of run {self._run}",
        )
        self._has_claimed = True

    def _prepare(self) -> None:
        """Prepare the table after a claim, before the ledger is read for the first time."""

    def _evolve(self, check: Callable[[], None]) -> None:
        """Add the columns that the table lacks.

        :param check: raises when that must not be
        """
        missing = self._missing_columns()
        if missing:
            self._write(
                lambda: self._add_columns(missing),
                check=check,
                plan=self._plan_claim,
                landed=lambda: not self._missing_columns(),
                what=f"new columns {', '.join(column.name for column in missing)}",
            )
            self._table.refresh()
            self._checked_shape = None  # without the columns it would not fit again, should the table be set back

    def _sweep(self, notes: Iterable[AttemptNote]) -> None:
        """Remove the files of attempts that are certainly not committed, now that the claim is in the table.

        Certainly not committed are: an attempt that nobody has tried to commit; an attempt at a number that was never
        committed; and, unless the table was set back, an attempt at the newest commit's number other than that commit's
        own. Of all others only the note is deleted: their files may be in the table, in versions that it was set back
        behind, or in an earlier table at this place. If they are not, a removal of orphan files deletes them.

        A successor's attempts stay: they may be committed.

        :param notes: the notes that were there before this run has seen that its claim is the newest
        """
        newest, highest = self._newest, self._ledger.highest
        for note in notes:
            if note.run > self._run:
                continue
            if newest is not None and note.attempt == newest.attempt:
                self._attempts.tidy(note.attempt, note.files)
                if not self.NEEDS_NOTE:
                    self._attempts.forget(note.attempt)
            elif not note.was_tried or (
                note.table == self._table_id and (note.commit > highest or self._has_lost_to(newest, note))
            ):
                self._attempts.remove(note.attempt)
            else:
                self._attempts.forget(note.attempt)
        self._settling, self._unneeded = [newest] if newest is not None else [], []

    def _has_lost_to(self, newest: Committed | None, note: AttemptNote) -> bool:
        """Tell whether another attempt at the number of the newest commit can't have made a commit, set back since."""
        is_same = newest is not None and note.commit == newest.entry.commit == self._ledger.highest
        return is_same and not self._ledger.may_have(note.attempt)

    def _compact(self, newest: SinkEntry) -> None:
        """Write small files together, in a version of its own. Nothing of it is an error of a batch.

        Its attempt has a note without an entry before the first try to write the version: until then the next claim
        removes its files. From then on its files may be in the table, and stay.

        :raises FencedError: when a higher run has claimed the sink
        :raises BatchFailedError: when nothing was written together, or no version was forgotten, or nobody knows
        """
        try:
            with self._answering():
                self._table.refresh()
                self._check_claim()
                try:
                    self._write_together(newest)
                except RefusedError:  # a table with delete files, which may have them for good
                    self._expire()
                    raise
                self._expire()
        except FencedError:
            raise
        except ExactlyOnceError as error:
            raise BatchFailedError(f"writing small files together after commit {newest.commit}: {error}") from error

    def _write_together(self, newest: SinkEntry) -> None:
        compaction = self._compaction()
        is_more_left = compaction.plan()
        if compaction.removed:
            self._write_compaction(compaction, newest)
        self._is_compaction_due = is_more_left

    def _expire(self) -> None:
        """Forget versions that are past the table's retention; the logs of some tables are cleaned up anyway."""

    def _write_compaction(self, compaction: Compaction, newest: SinkEntry) -> None:
        name = f"compaction-{uuid.uuid4().hex}"
        note = AttemptNote(attempt=name, commit=0, run=self._run, table=self._table_id)
        self._attempts.write(note)
        failpoints.reach("compaction-begun")
        was_tried = False

        def check() -> None:
            self._check_claim()
            compaction.check()

        def note_try() -> None:
            nonlocal was_tried
            files = tuple(file["path"] for file in compaction.added)
            self._attempts.write(replace(note, entry=newest, files=files))
            was_tried = True
            failpoints.reach("compaction-written")

        what = f"compaction after commit {newest.commit}"
        try:
            compaction.write(SinkAttempt(name=name, pipeline=self._pipeline, commit=note.commit, run=self._run))
            self._write(compaction.commit, check=check, plan=note_try, landed=compaction.has_landed, what=what)
        except Exception:
            if not was_tried:
                self._attempts.remove(name)
            raise
        failpoints.reach("compaction-committed")
        self._attempts.forget(name)
        _LOGGER.info(
            "%s, %s: %d files became %d", self._sink.where, what, len(compaction.removed), len(compaction.added)
        )

    def _opens_rows(self, opens: OpenTableWriter) -> OpenWriter:
        """Return the opener of the tasks' writers.

        :param opens: the opener of a writer of all rows of a task
        """
        return OpenUpsertWriter(rows=opens, columns=self._key) if self._sink.mode == UPSERT else opens

    def _stage(self, written: Sequence[Mapping[str, Any]]) -> StagedRows[Any]:
        """Return the staged rows, from the tasks' descriptions."""
        attempt = self._open_attempt()
        files = [file for task in written for file in task["files"]]
        if self._sink.mode == APPEND or not written:  # without tasks nothing is replaced
            return AppendedRows(files)
        if self._sink.mode == UPSERT:
            return UpsertedRows(self._upsert_target(attempt.attempt), written, attempt.commit)
        return self._rows_of_partitions(files)

    def _note_try(self, entry: SinkEntry) -> None:
        """Compute the changes of the next version, and note them before it is written."""
        attempt, self._change = self._open_attempt(), self._staged.change()
        note = replace(attempt, entry=entry, files=tuple(file["path"] for file in self._change.added))
        if note != attempt:
            self._attempts.write(note)
            self._attempt = note

    def _decide(self, entry: SinkEntry) -> None:
        failpoints.reach("before-sink-decision")
        self._write_commit(self._open_attempt(), entry, self._change)

    def _write(
        self,
        write: Callable[[], None],
        *,
        check: Callable[[], None],
        landed: Callable[[], bool],
        what: str,
        plan: Callable[[], None] = lambda: None,
    ) -> None:
        """Write the next version, see :meth:`TableVersions.write_next`.

        :param check: raises when it must not be written after the newest one
        :param plan: called when the table was looked at and fits, before each try
        :raises FencedError: when it was not written, and a higher run has claimed the sink
        """

        def prepare() -> None:
            check()
            self._check_fit()
            plan()

        self._versions.write_next(write, prepare=prepare, landed=landed, what=what)

    def _check_fit(self) -> None:
        """Check the table again when something of it has changed."""
        shape = self._shape()
        if shape != self._checked_shape:
            self._check_shape()
            self._checked_shape = shape

    def _successor(self) -> str | None:
        """Return the run that has claimed since, if any: with the same number if the pipeline's ledger was set back."""
        claim = self._ledger.claim
        if claim.run > self._run:
            return f"run {claim.run}"
        is_same = self._has_claimed and claim.run == self._run
        return "another driver with the same run number" if is_same and claim.number not in self._claim_ids else None

    def _check_claim(self) -> None:
        if (successor := self._successor()) is not None:
            raise FencedError(
                f"run {self._run} of pipeline {self._pipeline} is superseded by {successor}, which has claimed "
                f"{self._sink.where}"
            )

    def _check_next(self, entry: SinkEntry) -> None:
        """Check that a commit is the next one, and that this run may write it."""
        self._check_claim()
        ledger, newest = self._ledger, self._newest
        is_as_known = ledger.commit == 0 if newest is None else ledger.has(newest.attempt)
        if not is_as_known or ledger.claim.run < self._run or ledger.commit >= entry.commit:
            raise CommitUnknownError(
                f"{self._sink.where} has commit {ledger.commit} and the claim of run {ledger.claim.run}, and run "
                f"{self._run} would write commit {entry.commit}: it was set back or recreated"
            )

    def _has_landed(self) -> bool:
        """Tell whether the newest commit is the open attempt's.

        :raises CommitUnknownError: when there is a commit with its number or a higher one, by another attempt: a
            successor may have committed after this one, whose files must then not be taken for those of a failed one
        """
        note = self._open_attempt()
        ledger = self._ledger
        has_landed = ledger.has(note.attempt)
        # A successor that has claimed after the table was set back knows the number, and not whose it was.
        is_forgotten = self._successor() is not None and ledger.highest >= note.commit
        if not has_landed and (ledger.commit >= note.commit or ledger.knows(note.attempt) or is_forgotten):
            raise CommitUnknownError(
                f"{self._sink.where} has commit {ledger.commit} by another attempt than the one at {note.commit}, or "
                "was set back behind that"
            )
        return has_landed

    def _open_attempt(self) -> AttemptNote:
        return required(self._attempt, "an attempt is open")

    def _known_columns(self) -> StructType:
        return required(self._columns, f"{self._sink.where} is told its columns before it is claimed")

    def _answering(self, unanswered: type[ExactlyOnceError] = BatchFailedError) -> AbstractContextManager[None]:
        return answering(f"{self._sink.where} does not answer", unanswered)

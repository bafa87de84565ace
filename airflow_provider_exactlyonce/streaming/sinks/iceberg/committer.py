"""The driver's half of the Iceberg sink: claims and commits are snapshots of the table's main branch.

A snapshot is written only on top of that which this run has looked at: the catalog is asked for it with each write. A
claim is a snapshot, too, without files. A property of the table alone would not fence: Iceberg has no requirement that
a property is as it was, so a write of before the claim would still be taken. On one snapshot one other follows, so a
run that was frozen anywhere can't write behind a claim that it has not seen; and one that looks again sees it.
"""

from __future__ import annotations

import logging
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
from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions, properties, schema
from airflow_provider_exactlyonce.streaming.sinks.iceberg.attempts import AttemptNote, Attempts
from airflow_provider_exactlyonce.streaming.sinks.iceberg.audit import audit
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable, is_refused
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import Committed, SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import OpenIcebergWriter, TableFormat, data_file
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkCommitter, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering, claim_unanswered

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.declaration import IcebergDeclaration

_LOGGER: Final = logging.getLogger(__name__)
#: How often a snapshot is tried before which others come, and the longest pause before the next try.
_TRIES: Final = 100
_PAUSE_SECONDS: Final = 0.5


class IcebergCommitter(SinkCommitter):
    """Writes snapshots of one table.

    :param sink: what was declared
    :param pipeline: the pipeline's name
    """

    def __init__(self, sink: IcebergDeclaration, pipeline: str) -> None:
        self._sink: Final = sink
        self._pipeline: Final = pipeline
        self._table: Final = IcebergTable(sink.table, sink.catalog_properties)
        self._ledger: Final = SinkLedger(self._table, pipeline, sink.name, sink.where)
        self._attempts: Final = Attempts(self._table, pipeline, sink.name)
        self._columns: StructType | None = None
        self._checked: object = None  # what was checked of the table
        self._format: TableFormat | None = None  # by which the tasks write
        self._phase: Final = CommitterPhase(sink.name)
        self._run = 0
        self._attempt: AttemptNote | None = None
        self._staged: tuple[Mapping[str, Any], ...] = ()
        self._newest: Committed | None = None
        self._settling: list[AttemptNote] = []  # of commits that are not settled

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
        self._run, self._newest, self._attempt = run, None, None
        with self._answering(), claim_unanswered():
            self._open_table()
            self._fence()
            failpoints.reach("after-sink-fence")
            self._newest = self._ledger.newest()
            self._sweep()
        self._phase.move(CommitterEvent.CLAIMED)
        return self._newest.entry if self._newest else None

    @override
    def open_writer(self) -> OpenWriter:
        # The tasks need the ids that the table has for the columns, and are told before the claim. So a table that is
        # not there, and columns that it lacks, are made now: whoever is not to claim leaves nothing else behind.
        self._format = None
        with self._answering(), claim_unanswered():
            self._open_table()
            self._evolve()
        metadata = self._table.metadata
        self._format = TableFormat(
            columns=schema.written_columns(metadata.schema(), self._known_columns()),
            spec=metadata.spec(),
            properties=properties.of_metrics(metadata),
            compression=self._sink.compression,
            max_file_bytes=self._sink.max_file_bytes,
        )
        return OpenIcebergWriter(
            io_properties=self._table.io_properties,
            folder=self._attempts.data,
            format=self._format,
        )

    @override
    def begin(self, attempt: SinkAttempt) -> None:
        self._phase.check(CommitterEvent.BEGUN)
        table = str(self._table.metadata.table_uuid)
        note = AttemptNote(attempt=attempt.name, commit=attempt.commit, run=attempt.run, table=table)
        with self._answering():
            self._attempts.write(note)
        self._attempt, self._staged = note, ()
        self._phase.move(CommitterEvent.BEGUN)

    @override
    def pre_commit(self, written: Sequence[Mapping[str, Any]]) -> None:
        self._phase.check(CommitterEvent.PRE_COMMITTED)
        staged = tuple(file for task in written for file in task["files"])
        for file in staged:
            with self._answering():
                size = self._table.files.size(file["path"])
            if size != file["size"]:
                state = "is not there" if size is None else f"has {size} bytes"
                raise BatchFailedError(
                    f"{file['path']}, which a task has written with {file['size']} bytes, {state} for the driver: both "
                    "have to see the same table, and nobody may remove orphan files that are just written"
                )
        self._staged = staged
        self._phase.move(CommitterEvent.PRE_COMMITTED)

    @override
    def commit(self, entry: SinkEntry) -> None:
        self._phase.check(CommitterEvent.COMMITTED)
        rows = sum(file["rows"] for file in self._staged)
        invariant(rows == entry.rows, f"{rows} rows are staged, and the entry has {entry.rows}")
        note = replace(self._open_attempt(), files=tuple(file["path"] for file in self._staged))
        with self._answering():
            self._attempts.write(note)
        self._attempt = note
        failpoints.reach("before-sink-decision")
        added = [data_file(file, self._format) for file in self._staged if self._format is not None]
        self._write(
            lambda: self._table.append(added, *self._ledger.commit_of(note.attempt, entry)),
            check=lambda: self._check_next(entry),
            landed=lambda: self._has_landed(note),
            what=f"commit {entry.commit}",
        )
        self._settling.append(note)
        self._newest, self._attempt = Committed(attempt=note.attempt, entry=entry), None
        self._phase.move(CommitterEvent.COMMITTED)

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
                self._attempts.tidy(self._settling[-1])
                self._settling.pop()

    @override
    def audit(self, commits: Iterable[SinkEntry]) -> Iterator[str]:
        with self._answering():
            there = self._table.open()
        return audit(self._table if there else None, self._ledger, self._sink.where, commits)

    @override
    def close(self) -> None:
        """Nothing is held."""

    def _open_table(self) -> None:
        """Look at the table, which is made if it is not there."""
        self._checked = None
        if not self._table.open():
            made = schema.iceberg_schema(self._known_columns())
            try:
                self._table.create(made, partitions.new_spec(self._sink.partition_by, made))
            except Exception:
                if not self._table.open():  # else somebody else has made it, or this one has and the answer was lost
                    raise
            else:
                invariant(self._table.open(), f"{self._sink.where} is there once it was made")
        if forgets := properties.expiring(self._table.metadata):
            _LOGGER.info("%s has %s: the audit compares commits whose snapshots are left", self._sink.where, forgets)

    def _fence(self) -> None:
        """Write a snapshot with this run's number: nothing that lower runs, or this one, have under way follows it."""
        self._write(
            lambda: self._table.append([], *self._ledger.claim_of(self._run)),
            check=self._check_claim,
            landed=lambda: False,
            what=f"claim of run {self._run}",
        )

    def _evolve(self) -> None:
        """Add the columns that the table lacks."""
        missing = self._missing_columns()
        if not missing:
            return
        self._write(
            lambda: self._table.add_columns(missing),
            check=lambda: None,
            landed=lambda: not self._missing_columns(),
            what=f"new columns {', '.join(column.name for column in missing)}",
        )

    def _sweep(self) -> None:
        """Remove what attempts have left that are certainly not committed, now that the claim is in the table.

        An attempt that nobody has tried to commit is not. Nor is one at a number that was never committed, nor another
        than the one that has made the newest commit, at its number. Of any other only the note goes: its files may be
        in the table, in snapshots that it was set back behind, or in a table that was here before. If they are not,
        who removes orphan files does.

        A successor's attempts stay: they may be committed. A run that was frozen since its claim finds them here.
        """
        newest, highest = self._newest, self._ledger.highest
        for note in self._attempts.notes():
            if note.run > self._run:
                continue
            if newest is not None and note.attempt == newest.attempt:
                self._attempts.tidy(note)
            elif note.files is None or (
                note.table == str(self._table.metadata.table_uuid)
                and (note.commit > highest or (newest is not None and note.commit == newest.entry.commit == highest))
            ):
                self._attempts.remove(note.attempt)
            else:
                self._attempts.forget(note.attempt)
        self._settling.clear()

    def _write(
        self, write: Callable[[], None], *, check: Callable[[], None], landed: Callable[[], bool], what: str
    ) -> None:
        """Write a snapshot on top of the newest one, whatever others write meanwhile.

        :param check: raises when it must not be written after the newest one
        :param landed: tells, once the table was looked at again, whether it was written though it failed
        :raises FencedError: when a higher run has claimed the sink
        :raises BatchFailedError: when it was not written, and never will be
        :raises CommitUnknownError: when nobody knows
        """
        in_doubt = False
        for number in range(_TRIES):
            with self._answering(CommitUnknownError if in_doubt else BatchFailedError):
                self._table.refresh()
                check()
                try:
                    self._check_table()
                except RefusedError as error:
                    if not in_doubt:
                        raise
                    raise CommitUnknownError(f"{what} is in doubt, and can't be tried again: {error}") from error
            head = self._table.head
            try:
                write()
            except Exception as error:  # of the catalog, of the store, of what pyiceberg does after a commit, or a race
                with self._answering(CommitUnknownError):
                    self._table.refresh()
                    has_landed = landed()
                if has_landed:
                    return
                # Refused is no "no" yet: of a request that was repeated on its way, the first may still be carried out.
                # But on one snapshot one other follows, so a next try on the same one doubles nothing.
                in_doubt = self._table.head == head
                if in_doubt and not is_refused(error):
                    raise CommitUnknownError(
                        f"{what}: a snapshot of {self._sink.where} after {head} may be written or not: "
                        f"{type(error).__name__}: {error}"
                    ) from error
                time.sleep(random.uniform(0, min(_PAUSE_SECONDS, 0.005 * 2**number)))
            else:
                return
        failed = CommitUnknownError if in_doubt else BatchFailedError
        raise failed(f"{what}: others were faster {_TRIES} times in writing to {self._sink.where}")

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
        newest = self._ledger.newest()
        number = newest.entry.commit if newest else 0
        if self._ledger.claimed < self._run or newest != self._newest or number >= entry.commit:
            raise CommitUnknownError(
                f"{self._sink.where} has commit {number} and the claim of run {self._ledger.claimed}, and run "
                f"{self._run} would write commit {entry.commit}: it was set back or made anew"
            )

    def _has_landed(self, note: AttemptNote) -> bool:
        """Tell whether the newest commit is an attempt's.

        :raises CommitUnknownError: when there is a commit with its number or a higher one, by another attempt: a
            successor may have committed after this one, whose files must then not be taken for those of a failed one
        """
        newest = self._ledger.newest()
        if newest is None or newest.attempt == note.attempt or newest.entry.commit < note.commit:
            return newest is not None and newest.attempt == note.attempt
        raise CommitUnknownError(
            f"{self._sink.where} has commit {newest.entry.commit} by another attempt than the one at {note.commit}"
        )

    def _check_table(self) -> None:
        """Check the table again when something of it has changed."""
        metadata = self._table.metadata
        kept = (metadata.current_schema_id, metadata.default_spec_id, metadata.format_version)
        seen = (metadata.table_uuid, kept, sorted(metadata.properties))
        if seen == self._checked:
            return
        missing = self._missing_columns()
        if self._format is not None:
            now = None if missing else schema.written_columns(metadata.schema(), self._known_columns())
            if now != self._format.columns or metadata.default_spec_id != self._format.spec.spec_id:
                raise RefusedError(
                    f"{self._sink.where} has other columns or partitions than at the start, and the tasks write those "
                    "of the start: start the pipeline again"
                )
        self._checked = seen

    def _missing_columns(self) -> list[schema.NewColumn]:
        return self._sink.missing_columns(self._table.metadata, self._known_columns())

    def _open_attempt(self) -> AttemptNote:
        invariant(self._attempt is not None, "an attempt is open")
        return self._attempt  # type: ignore[return-value]

    def _known_columns(self) -> StructType:
        invariant(self._columns is not None, f"{self._sink.where} is told its columns before it is claimed")
        return self._columns  # type: ignore[return-value]

    def _answering(self, unanswered: type[ExactlyOnceError] = BatchFailedError) -> AbstractContextManager[None]:
        return answering(f"{self._sink.where} does not answer", unanswered)

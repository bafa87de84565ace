"""The sinks of a running query that are not Kafka, as one: claimed, attempted and committed in declared order."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.control.status import TableStatus
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    DivergedError,
    RefusedError,
    invariant,
    required,
)
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.records import CommitRecord, OtherSink
from airflow_provider_exactlyonce.streaming.commit import row_router
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.row_router import ShareAnswers, TaskShare
from airflow_provider_exactlyonce.streaming.sinks.places import one_place
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import column_of
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

#: The sinks' ledgers forget so many commits at a time, or more.
_FORGOTTEN_AT_ONCE: Final = 100


@dataclass
class _Attempted:
    """The current batch: the sinks that are written to, and the tasks' answers."""

    batch: Batch
    commit: int
    writing: dict[str, SinkAttempt] = field(default_factory=dict)
    sums: dict[str, OtherSink] = field(default_factory=dict)
    results: dict[str, list[Any]] = field(default_factory=dict)


class SinkGroup:
    """All sinks but Kafka. Called by the coordinator's thread only.

    :param committers: by the sinks' names, in declared order
    :param accept_nondeterminism: a batch that one sink has already may give other rows for the rest
    """

    def __init__(
        self, pipeline: str, committers: dict[str, SinkCommitter], *, accept_nondeterminism: bool = False
    ) -> None:
        self._pipeline: Final = pipeline
        self._committers: Final = committers
        self._accept: Final = accept_nondeterminism
        self._newest: dict[str, SinkEntry | None] = {}
        self._joined_after: dict[str, int] = {}  # a new sink gets the commits from now on
        self._forgotten = 0  # before this commit
        self._run = 0
        self._claimed = False
        self._attempted: _Attempted | None = None

    @property
    def sums(self) -> dict[str, OtherSink]:
        """The current batch's totals for each sink, whether it is written now or was before."""
        sums = self._attempted.sums if self._attempted else {}
        return {name: replace(totals, dataset=self._committers[name].dataset) for name, totals in sums.items()}

    def tasks(self) -> list[TaskShare]:
        """Return the sinks' shares for the tasks of all batches."""
        return [
            TaskShare(name, column_of(position), committer.open_writer())
            for position, (name, committer) in enumerate(self._committers.items())
        ]

    def check(self, newest: CommitRecord | None, newest_run: int, first_repeated: int) -> None:
        """Check that the sinks fit the pipeline's ledger. Changes nothing.

        :param newest: the ledger's newest commit
        :param newest_run: the newest run that has claimed the ledger, 0 when there is none
        :param first_repeated: the first commit that the checkpoint can run again
        :raises RefusedError: when a sink was set back too far, or is ahead of the ledger, or two write to one place
        """
        self._check_places()
        entries: dict[str, SinkEntry | None] = {}
        for name, committer in self._committers.items():
            with answering(f"sink {name}, reading its ledger"):
                entries[name] = entry = committer.tail()
            # A run claims the ledger first. Without this, a pipeline that takes over a deleted one's name would take
            # that one's only commit for its own.
            if entry is not None and entry.run > newest_run:
                raise RefusedError(
                    f"sink {name} has commit {entry.commit} of run {entry.run} of pipeline {self._pipeline}, and the "
                    f"pipeline's ledger ends at run {newest_run}: another pipeline of this name has written to the "
                    "sink, or the ledger was set back. Give this one another name, or put the ledger back"
                )
            self._fits(name, entries[name], newest, first_repeated)
        _owed(entries, newest)

    def _check_places(self) -> None:
        places: dict[object, str] = {}
        for name, committer in self._committers.items():
            with answering(f"sink {name}, asking where it writes"):
                place = committer.place
            if place is not None and (other := places.setdefault(place, name)) != name:
                raise RefusedError(one_place(self._pipeline, other, name))

    def claim(self, run: int, newest: CommitRecord | None, first_repeated: int) -> None:
        """Claim all sinks for a run, see :meth:`airflow_provider_exactlyonce.streaming.sinks.spi.SinkCommitter.claim`.

        Nothing is attempted before that has succeeded for all of them.

        :raises FencedError: when a higher run has claimed one
        :raises RefusedError: as :meth:`check`
        :raises BatchFailedError: when one does not answer; claim again
        """
        self._run, self._claimed, self._attempted, self._forgotten = run, False, None, 0
        for name, committer in self._committers.items():
            with answering(f"sink {name}, claiming it for run {run}"):
                entry = committer.claim(run)
            failpoints.reach("after-sink-claim")
            self._fits(name, entry, newest, first_repeated)
            self._newest[name] = entry
            if entry is None and (newest is None or name not in newest.others):
                self._joined_after[name] = newest.commit if newest else 0
        self._claimed = True
        if newest is not None:
            self.settled(newest)  # its driver may have died before it called this

    def owed(self, newest: CommitRecord | None) -> SinkEntry | None:
        """Return the entry of the commit that sinks have and the ledger lacks, None when there is none.

        :raises RefusedError: when two sinks have it with different input
        """
        return _owed(self._newest, newest)

    def begin(self, batch: Batch, commit: int) -> None:
        """Begin an attempt in those that lack this commit.

        :raises RefusedError: when one has it with other input
        :raises BatchFailedError: when one does not answer
        """
        invariant(self._claimed or not self._committers, "no batch is attempted before the sinks' claim has succeeded")
        # A job without a task answers nothing: then these are its answers.
        no_rows = dict.fromkeys(self._committers, OtherSink(rows=0, digest=0))
        self._attempted = attempted = _Attempted(batch=batch, commit=commit, sums=no_rows)
        for name, committer in self._committers.items():
            if self._has(name, commit):
                self._check_same_input(name)
                continue
            attempt = SinkAttempt(name=uuid.uuid4().hex, pipeline=self._pipeline, commit=commit, run=self._run)
            attempted.writing[name], attempted.results[name] = attempt, []
            with answering(f"sink {name}, beginning commit {commit}"):
                committer.begin(attempt)

    @contextmanager
    def publish_to_tasks(self, frame: DataFrame) -> Iterator[None]:
        """Tell the Spark jobs inside which sinks they write to."""
        if not self._committers:
            yield
            return
        context = frame.sparkSession.sparkContext
        name, writing = row_router.SHARES_PROPERTY, self._open().writing
        context.setLocalProperty(name, row_router.describe(writing) if writing else None)  # type: ignore[arg-type]
        try:
            yield
        finally:
            context.setLocalProperty(name, None)  # type: ignore[arg-type]  # null removes it

    def collect_results(self, answers: Sequence[ShareAnswers]) -> None:
        """Add up the answers of the attempt's tasks.

        :raises BatchFailedError: when a task has not written its share
        """
        for name in self._committers:
            attempted = self._open()
            parts = [answer[name] for answer in answers]
            rows, digest = sum(rows for rows, _, _ in parts), sum(digest for _, digest, _ in parts) % 2**64
            attempted.sums[name] = OtherSink(rows=rows, digest=digest)
            if name in attempted.writing:
                results = [result for _, _, result in parts if result is not None]
                if len(results) < len(parts):
                    raise BatchFailedError(f"{len(parts) - len(results)} of {len(parts)} tasks wrote nothing to {name}")
                attempted.results[name] = results

    def verify_committed(self) -> None:
        """Compare the tasks' totals with the entries of the sinks that have this commit already.

        :raises DivergedError: when they differ
        """
        for name, entry in self._newest.items():
            attempted = self._open()
            recomputed = attempted.sums.get(name)
            if entry is None or entry.commit != attempted.commit or recomputed is None:
                continue
            if (recomputed.rows, recomputed.digest) == (entry.rows, entry.digest):
                continue
            message = different(
                f"sink {name} has", attempted.commit, OtherSink(rows=entry.rows, digest=entry.digest), recomputed
            )
            if not self._accept:
                raise DivergedError(
                    f"{message}. The other sinks would get other rows; --accept-nondeterminism lets them"
                )
            log.warning("%s", message)

    def pre_commit(self) -> None:
        """Have everything staged and durable.

        :raises BatchFailedError: abort next
        """
        for name, results in self._open().results.items():
            with answering(f"sink {name}, pre-commit of commit {self._open().commit}"):
                self._committers[name].pre_commit(results)
            failpoints.reach("after-sink-pre-commit")

    def commit(self) -> None:
        """Commit in those that lack it, in declared order.

        :raises FencedError: when a higher run has claimed one
        :raises BatchFailedError: when one has not committed; those before it have
        :raises CommitUnknownError: it is unknown whether a sink has committed; claim next
        """
        attempted = self._open()
        for name in list(attempted.writing):
            entry = self._entry(name)
            try:
                with answering(f"sink {name}, commit {entry.commit}", CommitUnknownError):
                    self._committers[name].commit(entry)
            except CommitUnknownError:
                del attempted.writing[name]  # an abort would take back what may be committed
                self._claimed = False
                raise
            del attempted.writing[name]
            self._newest[name] = entry
            failpoints.reach("after-sink-commit")

    def abort(self) -> None:
        """Abort the open attempts, except one that may have been committed."""
        if self._attempted is not None:
            for name in list(self._attempted.writing):
                with answering(f"sink {name}, abort"):
                    self._committers[name].abort()
                del self._attempted.writing[name]

    def settled(self, record: CommitRecord) -> None:
        """Tell all that the pipeline's ledger has this commit, and which it has forgotten."""
        forgets = record.before.oldest - self._forgotten >= _FORGOTTEN_AT_ONCE or self._forgotten == 0
        for name, committer in self._committers.items():
            try:
                with answering(f"sink {name}, after commit {record.commit}"):
                    committer.settled(record.commit)
                    if forgets:
                        committer.forget(record.before.oldest)
            except BatchFailedError as error:
                log.warning("sink %s, after commit %d: %s", name, record.commit, error)
        if forgets:
            self._forgotten = record.before.oldest

    @property
    def undelivered(self) -> dict[str, int]:
        """How many commits the targets of the sinks that are behind do not have yet; from any thread."""
        return {name: count for name, committer in self._committers.items() if (count := committer.undelivered)}

    def close(self) -> None:
        """Release all connections."""
        for committer in self._committers.values():
            committer.close()

    def _open(self) -> _Attempted:
        return required(self._attempted, "a batch attempt is open")

    def _has(self, name: str, commit: int) -> bool:
        entry = self._newest[name]
        return commit <= (self._joined_after.get(name, 0) if entry is None else entry.commit)

    def _check_same_input(self, name: str) -> None:
        attempted, entry = self._open(), self._newest[name]
        if entry is None or entry.commit != attempted.commit or entry.source == attempted.batch.source:
            return
        raise RefusedError(
            f"sink {name} has commit {entry.commit} with the source ranges {_shown(entry)}, and Spark would run it "
            f"with {_shown(self._entry(name))}: the checkpoint was changed after run {entry.run} had written it. Put "
            "the checkpoint back, or set the sink back to a backup from before and restore a savepoint"
        )

    def _entry(self, name: str) -> SinkEntry:
        attempted = self._open()
        totals = attempted.sums[name]
        return SinkEntry(
            commit=attempted.commit,
            run=self._run,
            lineage=attempted.batch.lineage,
            batch=attempted.batch.number,
            source=attempted.batch.source,
            rows=totals.rows,
            digest=totals.digest,
            watermark=attempted.batch.offsets.watermark,
            batch_timestamp=attempted.batch.offsets.timestamp,
        )

    def _fits(self, name: str, entry: SinkEntry | None, newest: CommitRecord | None, first_repeated: int) -> None:
        ledger = newest.commit if newest else 0
        if entry is None and (newest is None or name not in newest.others):
            return
        has = entry.commit if entry else 0
        why = f"sink {name} has commit {has} of pipeline {self._pipeline}, and the pipeline's ledger ends at {ledger}: "
        if has > ledger + 1:
            raise RefusedError(
                f"{why}the ledger was set back, or another pipeline of this name writes to the sink. Give this one "
                "another name, or put the ledger back"
            )
        if has < first_repeated - 1 and entry is None:  # no savepoint is from before a pipeline's first commit
            raise RefusedError(
                f"{why}the sink has nothing left, and so no commit to go back to. Put a backup of it back, or give it "
                "another name: then it gets what is committed from now on"
            )
        if has < first_repeated - 1:
            raise RefusedError(
                f"{why}the sink was set back. Restore a savepoint at or before commit {has}, and what it lacks is "
                f"written into it alone: exactlyonce restore {self._pipeline} --commit {has}"
            )


def written_tables(committers: Mapping[str, SinkCommitter]) -> dict[str, TableStatus]:
    """Return the tables as the sinks have left them.

    :param committers: by the sinks' names
    """
    return {
        name: TableStatus(**vars(table))
        for name, committer in committers.items()
        if (table := committer.written_table) is not None
    }


def _owed(entries: Mapping[str, SinkEntry | None], newest: CommitRecord | None) -> SinkEntry | None:
    ahead = {
        name: entry
        for name, entry in entries.items()
        if entry is not None and entry.commit > (newest.commit if newest else 0)
    }
    if not ahead:
        return None
    first, *others = ahead
    for name in others:
        if ahead[name].source != ahead[first].source:
            raise RefusedError(
                f"the sinks {first} and {name} have commit {ahead[first].commit}, which the pipeline's ledger lacks, "
                f"of different input: {_shown(ahead[first])} of run {ahead[first].run}, and {_shown(ahead[name])} "
                f"of run {ahead[name].run}. Something else has written to one of them: set it back to a backup from "
                "before, and restore a savepoint"
            )
    return ahead[first]


def different(what: str, commit: int, recorded: OtherSink, recomputed: OtherSink) -> str:
    """Return the words for a commit that gives other rows than were recorded."""
    return (
        f"{what} commit {commit} with {recorded.rows} rows and digest {recorded.digest:016x}; run again on the same "
        f"source offsets it gives {recomputed.rows} rows and {recomputed.digest:016x}. The job is not "
        "deterministic, or it was changed"
    )


def _shown(entry: SinkEntry) -> str:
    return records.shown(entry.source) or "none"

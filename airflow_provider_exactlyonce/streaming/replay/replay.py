"""Exact replay: commits that a checkpoint lacks are run again, in one query, with their recorded boundaries.

Spark runs one uncommitted batch again by itself, so the first recorded batch is written into the checkpoint as its
``offsets/N``. Each further one is *steered* from the callback of the one before: end offsets, watermark, batch
timestamp, without rate limits and trigger interval. Nothing is written to the sink; boundaries are compared before a
batch runs, rows and digest after. At the last recorded commit everything is put back and the query goes on live.

What another version of the job committed can't be compared: it is replayed by its source ranges only, and watermarks
are left to Spark.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import BatchOffsets, Checkpoint, ClaimedCheckpoint, parse_offsets
from airflow_provider_exactlyonce.checkpoint.offsets_text import adapted
from airflow_provider_exactlyonce.checkpoint.start_checks import replay_is_needed
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.control.status import ReplayReport
from airflow_provider_exactlyonce.exceptions import DivergedError, ExactlyOnceError, RefusedError, required
from airflow_provider_exactlyonce.ledger.commit_range import CommitSpan, RecordedCommits, check_input
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.spark.steering import QuerySteering

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_STALL_SECONDS: Final = 120.0
_NO_REASON_SECONDS: Final = 10.0


class RunView(Protocol):
    """The part of a run that a replay needs."""

    @property
    def lineage(self) -> Lineage:
        """The lineage that is brought up."""

    def rebase(self, batch: int, commit: int) -> None:
        """Note that a batch of the lineage is this commit, and those after it follow."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The decision when a committed batch, run again, gives other rows: in a replay, and after a crash.

    :param version: the job's version that runs; another version's commits can't be compared
    :param accept: go on in spite of other rows
    """

    version: str
    accept: bool

    def is_exact(self, record: CommitRecord) -> bool:
        """Tell whether the commit is one that must come out again."""
        return record.version == self.version

    def judge(self, record: CommitRecord, error: DivergedError) -> bool:
        """Decide about other rows; returns whether they contradict the commit, which was accepted.

        :raises DivergedError: unless that was accepted, or another version committed it
        """
        if not self.is_exact(record):
            log.info("commit %d was delivered by version %s, and not compared", record.commit, record.version)
            return False
        if not self.accept:
            raise error
        log.warning("commit %d diverged, which was accepted: %s", record.commit, error)
        return True

    def report(self, record: CommitRecord, error: DivergedError) -> ReplayReport:
        """Decide about other rows of one commit that was run again outside of a replay; returns the account of it.

        :raises DivergedError: as :meth:`judge`
        """
        diverged = self.judge(record, error)
        return ReplayReport(
            first=record.commit,
            last=record.commit,
            done=record.commit,
            diverged=[record.commit] if diverged else [],
            not_compared=[] if diverged else [(record.version, record.commit, record.commit)],
        )


class Replay:
    """Brings one lineage up to its ledger. Called by the coordinator's thread but for :meth:`needs_restart`.

    :param run: the driver's hold on the pipeline, with its claim
    :param commits: from the commit after the checkpoint's newest to the ledger's newest
    :param span: their totals
    :param comparison: what follows from rows that differ
    :param goes_live: the query goes on after the last of them; else it ends there
    """

    def __init__(
        self,
        spark: SparkSession,
        run: RunView,
        checkpoint: ClaimedCheckpoint,
        commits: RecordedCommits,
        *,
        span: CommitSpan,
        comparison: Comparison,
        goes_live: bool = True,
    ) -> None:
        self.goes_live: Final = goes_live
        self.steering: Final = QuerySteering(spark)
        self._run: Final = run
        self._checkpoint: Final = checkpoint
        self._commits: Final = commits
        self._comparison: Final = comparison
        self._began: Final = time.monotonic()
        self._next: tuple[int, CommitRecord] | None = None
        self._moved = time.monotonic()
        self._busy = False
        self._started_at = -1
        self.report = ReplayReport(
            first=commits.first,
            last=commits.last,
            done=commits.first - 1,
            records=span.records,
            recorded_seconds=span.seconds,
            not_compared=[part for part in span.versions if part[0] != comparison.version],
        )

    @property
    def pending(self) -> bool:
        """Whether a recorded commit remains to be run."""
        return self.report.pending

    def prepare(self, *, one_start_per_batch: str | None) -> bool:
        """Write the next recorded batch into the checkpoint, before every start of the query; false when none is left.

        :param one_start_per_batch: why the query can't be steered
        """
        self.report = replace(self.report, one_start_per_batch=one_start_per_batch or self.report.one_start_per_batch)
        self.steering.expect()
        newest = self._checkpoint.newest_commit()
        last_batch = -1 if newest is None else newest
        last_offsets, last_commit = self._checkpoint.offsets(last_batch), self._checkpoint.commit(last_batch)
        self._find_next(last_batch, last_offsets)
        if self._next is None:
            return False
        number, record = self._next
        exact = self._comparison.is_exact(record)
        text = adapted(
            record.offsets,
            confs_of=last_offsets.text if last_offsets else None,
            watermark=None if exact or last_commit is None else last_commit.next_watermark,
        )
        self._checkpoint.plan(number, text)
        self._started_at = self.report.done
        self._moved, self._busy = time.monotonic(), False
        return True

    def check_progress(self) -> None:
        """Check, after the query's end, that it has replayed something since its start.

        :raises ExactlyOnceError: when it has not
        """
        if self.pending and self.report.done == self._started_at:
            raise ExactlyOnceError(
                f"the query ended at commit {self.report.done} of {self.report.last} that are replayed. Start the "
                "pipeline again; it goes on from there"
            )

    def needs_restart(self) -> bool:
        """Tell whether the next batch has to be put into Spark's log, because Spark sees no reason to plan it.

        That is a batch without data of another version: this one's watermark may not have moved. The first of a start
        lies in the log already, and is begun however long the start takes. From any thread.

        :raises ExactlyOnceError: when Spark has not begun the next recorded batch for long
        """
        self._check_moving()
        return (
            self._next is not None
            and not self._comparison.is_exact(self._next[1])
            and not self._busy
            and self.report.done > self._started_at
            and time.monotonic() - self._moved > _NO_REASON_SECONDS
        )

    def recorded(self, batch: Batch) -> Batch:
        """Return a planned batch with the commit that it repeats; as it is, once nothing remains.

        :raises RefusedError: when Spark has planned another batch than the committed one
        """
        if self._next is None:
            return batch
        number, record = self._next
        self._busy = True
        if self.report.one_start_per_batch is None:
            self.steering.query()  # before anything runs, if it can't be
        planned, committed = batch.offsets, parse_offsets(record.offsets)
        comparisons: list[tuple[str, object, object]] = [("batch", batch.number, number)]
        if not planned.same_sources(committed):
            comparisons.append(("end offsets", planned.kafka_ends(), committed.kafka_ends()))
        if self._comparison.is_exact(record):
            comparisons.append(("watermark", planned.watermark, committed.watermark))
        for name, actual, expected in comparisons:
            if actual != expected:
                raise DivergedError(
                    f"the replay of commit {record.commit} stopped before it ran: Spark planned {name} {actual}, "
                    f"and {expected} was committed. Nothing was written; restore an older savepoint, or tell us"
                )
        return replace(batch, recorded=record)

    def judge(self, record: CommitRecord, error: DivergedError) -> None:
        """Handle rows that differ from the committed ones.

        :raises DivergedError: unless it was accepted beforehand, or another version committed them
        """
        if self._comparison.judge(record, error):
            self.report = replace(self.report, diverged=[*self.report.diverged, record.commit])

    def repeated(self) -> None:
        """Note that the recorded batch has been run, and tell Spark the next one, or put everything back."""
        batch, record = required(self._next, "a recorded batch was run")
        exact = self._comparison.is_exact(record)
        self._find_next(batch, parse_offsets(record.offsets), commit=record.commit)
        seconds = time.monotonic() - self._began
        done_count = self.report.done - self.report.first + 1
        seconds_left = seconds / done_count * (self.report.last - self.report.done)
        self.report = replace(
            self.report, seconds=seconds, seconds_left=seconds_left, rows=self.report.rows + record.rows
        )
        failpoints.note(commit=record.commit)
        failpoints.reach("after-replayed")
        self.write_report()
        if self.report.one_start_per_batch is None:
            self._steer(exact)
        if not self.pending:
            self._log_end()
        self._moved, self._busy = time.monotonic(), False

    def _log_end(self) -> None:
        report = self.report
        log.info(
            "commits %d to %d were replayed in %.1f s, nothing was written", report.first, report.last, report.seconds
        )
        for version, first, last in report.not_compared:
            log.info("commits %d to %d were delivered by version %s, and not compared", first, last, version)
        if report.diverged:
            log.warning("these commits gave other rows than were delivered: %s", report.diverged)

    def write_report(self) -> None:
        """Write ``replay.json``."""
        path = self._checkpoint.path.parent / "replay.json"
        json_store.write(path, asdict(self.report), durable=False)

    def close(self) -> None:
        """Close the connection to the ledger."""
        self._commits.close()

    def _check_moving(self) -> None:
        if self._next is None or self._busy or time.monotonic() - self._moved < _STALL_SECONDS:
            return
        number, record = self._next
        raise ExactlyOnceError(
            f"the replay stalls: Spark has not begun batch {number} (commit {record.commit}) for {_STALL_SECONDS:.0f} "
            "s. Start the pipeline again; it goes on from there"
        )

    def _find_next(self, batch: int, offsets: BatchOffsets | None, *, commit: int | None = None) -> None:
        """Find the commit to replay after a batch, and move the lineage and the report on.

        :param offsets: where the batch ended
        :param commit: the batch's commit, None for the lineage's answer
        """
        commit = self._run.lineage.commit_of(batch) if commit is None else commit
        self._next = None
        if commit < self.report.last:
            record = self._skipped(self._commits.get(commit + 1), offsets)
            self._next, commit = (batch + 1, record), record.commit - 1
        if self._run.lineage.commit_of(batch) != commit:
            self._run.rebase(batch, commit)
        self.report = replace(self.report, done=commit)

    def _skipped(self, record: CommitRecord, offsets: BatchOffsets | None) -> CommitRecord:
        """Return the record. If other versions made empty batches after it, return the record that covers them.

        An empty batch only applies its watermark; the next batch with data does so too. At the end of the span, or
        before a commit that is compared, there is no such batch: there the empty batch is run.
        """
        following = record
        while offsets is not None and not self._comparison.is_exact(following):
            if not offsets.same_sources(parse_offsets(following.offsets)):
                return following
            if following.commit == self.report.last:
                break
            following = self._commits.get(following.commit + 1)
        return record

    def _steer(self, exact: bool) -> None:
        steered = self.steering.query()
        if exact:
            steered.forget_operator_watermarks()
        if self._next is None:
            steered.release() if self.goes_live else steered.end()
            return
        _, record = self._next
        offsets = parse_offsets(record.offsets)
        steered.steer(
            offsets.sources,
            timestamp=offsets.timestamp,
            watermark=offsets.watermark if self._comparison.is_exact(record) else None,
        )


def check_replay(run: Run, tail: LedgerTail | None, unsure: Sequence[str], *, accept_nondeterminism: bool) -> None:
    """Check, before a start fences anybody, that the needed replay is possible.

    :param tail: the ledger's end, None when there is no ledger
    :param unsure: parts of the job that may give other rows each time
    :raises RefusedError: naming the missing records, or the parts that may give other rows
    """
    lineage = run.home.current()
    if lineage is None or tail is None:
        return
    checkpoint = Checkpoint(run.home.checkpoint(lineage.id))
    if not replay_is_needed(checkpoint, lineage, tail):
        return
    commits, span = _recorded(run, checkpoint, lineage, tail)
    commits.close()
    compared = any(version == run.options.version for version, _, _ in span.versions)
    if not (compared and unsure):
        return
    if not (accept_nondeterminism or lineage.accept_nondeterminism):
        raise RefusedError(
            f"commits {commits.first} to {commits.last} of pipeline {run.pipeline} have to be replayed, and the job "
            f"may give other rows each time: {'; '.join(unsure)}. Make it deterministic, or accept that state and "
            "output may differ: --accept-nondeterminism"
        )
    log.warning("the job may give other rows each time, which is accepted: %s", "; ".join(unsure))


def open_replay(
    spark: SparkSession, run: Run, checkpoint: ClaimedCheckpoint, comparison: Comparison, *, goes_live: bool
) -> Replay:
    """Open the replay of the commits that the checkpoint lacks, after the claim; see :class:`Replay`.

    :raises RefusedError: when a commit, or source records, are gone
    """
    commits, span = _recorded(run, checkpoint, run.lineage, run.tail)
    log.info(
        "commits %d to %d are replayed without writing: %s source records", commits.first, commits.last, span.records
    )
    return Replay(spark, run, checkpoint, commits, span=span, comparison=comparison, goes_live=goes_live)


def _recorded(
    run: Run, checkpoint: Checkpoint, lineage: Lineage, tail: LedgerTail
) -> tuple[RecordedCommits, CommitSpan]:
    newest = checkpoint.newest_commit()
    reader = LedgerReader(run.options.config, run.pipeline)
    commits = RecordedCommits(reader, lineage.commit_of(-1 if newest is None else newest) + 1, tail.place.commit)
    try:
        span = commits.check()
        check_input(run.sources, span)
    except BaseException:
        commits.close()
        raise
    return commits, span

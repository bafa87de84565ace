"""Processes each batch of a backfill: writes it, compares it with the delivered rows, or runs it for its state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.backfill.plan import BackfillStep
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.exceptions import DivergedError, RefusedError, StopRequestedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.batch import Batch, planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.replay.backfill_steps import BackfillSteps

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger("exactlyonce")


@dataclass(frozen=True, kw_only=True)
class BackfillOptions:
    """How a backfill's batches are run, and the callbacks.

    :param writes: whether the range's rows are written
    :param accept_nondeterminism: rows that differ before the range don't stop it
    :param max_batch_attempts: attempts of one batch that is written
    :param stop_reason: why a stop was asked for, None when it was not
    :param committed: called with each commit
    :param progressed: called when a batch has been run
    """

    writes: bool
    accept_nondeterminism: bool
    max_batch_attempts: int
    stop_reason: Callable[[], str | None]
    committed: Callable[[CommitRecord], None]
    progressed: Callable[[], None]


class BackfillBatches:
    """Processes the batches of one query.

    :param steps: what each batch is
    """

    def __init__(
        self,
        run: Run,
        sink: BatchTransaction,
        steps: BackfillSteps,
        checkpoint: Checkpoint,
        options: BackfillOptions,
    ) -> None:
        self._source_ids: dict[str, str] = {}
        self._run: Final = run
        self._sink: Final = sink
        self._steps: Final = steps
        self._checkpoint: Final = checkpoint
        self._options: Final = options
        self._coordinator: Final = CommitCoordinator(
            sink,
            Callbacks(plan=self._plan, stop_reason=options.stop_reason, committed=self._committed),
            max_batch_attempts=options.max_batch_attempts,
        )

    def process(self, frame: DataFrame, number: int) -> None:
        """Process one batch; the callback of ``foreachBatch``.

        :raises ExactlyOnceError: what ends the query
        """
        if (reason := self._options.stop_reason()) is not None:
            raise StopRequestedError(reason)
        planned = self._plan(number)  # also where nothing is committed: state is made of the records read then
        step = self._steps.begin(number, planned.offsets)
        record = self._steps.recorded()
        if step.emits and self._options.writes and record is None:
            self._follow_ledger(number)
            self._coordinator.process(frame, number)
            self._steps.finish(number)
        else:
            rows, digest = self._sink.recompute(frame)
            if record is not None:
                self._check_written(number, record, rows, digest)
            elif step.emits:
                self._compare(number, step, rows, digest)
            else:
                self._check(number, step, rows, digest)
        self._options.progressed()

    def _follow_ledger(self, number: int) -> None:
        """Let the batch be the commit after the ledger's newest, whatever was run for its state in between."""
        newest = self._run.tail.place.commit
        if self._run.lineage.commit_of(number) != newest + 1:
            self._run.rebase(number - 1, newest)

    def _compare(self, number: int, step: BackfillStep, rows: int, digest: int) -> None:
        """Note whether a batch of the range gives the delivered rows."""
        done = self._steps.done
        if step.commit is None:  # it emits rows that no commit has: there is nothing to compare them with
            self._steps.finish(number)
            return
        record = self._steps.record(step)
        differences = dict(done.differences)
        if (rows, digest) != (record.rows, record.digest):
            differences[number] = (record.commit, record.rows, f"{record.digest:016x}", rows, f"{digest:016x}")
            log.warning("commit %d delivered %d rows, and gives %d other ones now", record.commit, record.rows, rows)
        self._steps.finish(number, differences=differences)

    def _check_written(self, number: int, record: CommitRecord, rows: int, digest: int) -> None:
        """Check that a written batch gives the same rows again, so that the state fits the next batches."""
        if (rows, digest) != (record.rows, record.digest):
            text = (
                f"backfill {record.backfill} has written {record.rows} rows with digest {record.digest:016x} (record "
                f"{record.commit} of {record.pipeline}); run again for its state the batch gives {rows} and "
                f"{digest:016x}"
            )
            if not self._options.accept_nondeterminism:
                raise DivergedError(f"{text}. The job is not deterministic; accept that with --accept-nondeterminism")
            log.warning("%s, which was accepted", text)
        log.info("batch %d is record %d already: state rebuilt, nothing written", number, record.commit)
        self._steps.finish(number)

    def _check(self, number: int, step: BackfillStep, rows: int, digest: int) -> None:
        """Check that a batch before the range gives its committed rows, so that the state is as it was."""
        done = self._steps.done
        diverged = dict(done.diverged)
        if step.exact:
            record = self._steps.record(step)
            if (rows, digest) != (record.rows, record.digest):
                if not self._options.accept_nondeterminism:
                    raise DivergedError(
                        f"commit {record.commit}, before the range, has {record.rows} rows and digest "
                        f"{record.digest:016x}; run again it gives {rows} rows and {digest:016x}: the state would not "
                        "be what it was. The job is not deterministic; accept that with --accept-nondeterminism"
                    )
                diverged[number] = record.commit
        self._steps.finish(number, diverged=diverged)

    def _plan(self, number: int) -> Batch:
        """Read Spark's plan for a batch; checks that no topic was recreated since the batches before."""
        batch = planned_batch(self._checkpoint, self._run.sources, self._run.lineage.id, number)
        for topic, topic_id in batch.source_topic_ids.items():
            if (known := self._source_ids.setdefault(topic, topic_id)) != topic_id:
                raise RefusedError(
                    f"source topic {topic} was recreated while the backfill ran: its id was {known}, and is {topic_id} "
                    "now. What was to be read again is gone"
                )
        return batch

    def _committed(self, record: CommitRecord, seconds: float, before: bool) -> None:
        self._steps.wrote(record)
        self._options.committed(record)
        log.info(
            "commit %d of the backfills, batch %d: %s rows in %.2f s",
            record.commit,
            record.batch,
            f"{record.rows:,}",
            seconds,
        )

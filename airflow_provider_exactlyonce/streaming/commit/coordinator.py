"""The commit coordinator: runs a micro-batch from Spark's callback to the commit.

It runs in the driver, inside ``foreachBatch``, because only there are the batch id, a hook before the tasks start, and
a retry of the whole batch available together.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    AttemptTimedOutError,
    BatchFailedError,
    BatchTimedOutError,
    ClaimFailedError,
    CommitUnknownError,
    DivergedError,
    ExactlyOnceError,
    FencedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, TransactionGoneError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_sink import TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_LONGEST_PAUSE_SECONDS: Final = 10.0
#: Questions about a batch's topics before an attempt counts as failed: half a minute, with the pauses between them.
_PLAN_TRIES: Final = 7
_STOP_POLL_SECONDS: Final = 0.2


def _refuse(record: CommitRecord, error: DivergedError) -> None:
    raise error


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """The coordinator's questions and messages to the driver around it.

    :param plan: reads Spark's plan for a batch id
    :param stop_reason: why a stop was asked for, None when it was not
    :param committed: called with each commit: record, seconds since the batch began, whether it was committed before
    :param diverged: decides when a committed batch gives other rows: raises the error, or returns to go on
    """

    plan: Callable[[int], Batch]
    stop_reason: Callable[[], str | None]
    committed: Callable[[CommitRecord, float, bool], None]
    diverged: Callable[[CommitRecord, DivergedError], None] = _refuse


class CommitCoordinator:
    """Drives the sink through each batch, again where an attempt fails.

    :param max_batch_attempts: attempts of one batch before the query fails
    :param first_pause_seconds: between the first two attempts; each that follows is twice as long
    """

    def __init__(
        self,
        sink: TransactionalSink,
        callbacks: Callbacks,
        *,
        max_batch_attempts: int,
        first_pause_seconds: float = 0.5,
    ) -> None:
        self._sink: Final = sink
        self._callbacks: Final = callbacks
        self._max_batch_attempts: Final = max_batch_attempts
        self._first_pause_seconds: Final = first_pause_seconds
        self._timed_out = 0  # attempts of the batch that were ended for the time that they took

    def process(self, frame: DataFrame, number: int) -> None:
        """Commit one micro-batch; the callback of ``foreachBatch``.

        :param number: Spark's batch id
        :raises ExactlyOnceError: what ends the query
        """
        self._honour_stop()
        began = time.monotonic()
        self._timed_out = 0
        for attempt in range(1, self._max_batch_attempts + 1):
            try:
                record, was_committed = self._attempt(frame, self._planned(number))
            except (BatchFailedError, CommitUnknownError, ProducerLostError) as error:
                log.warning("batch %d, attempt %d of %d failed: %s", number, attempt, self._max_batch_attempts, error)
                if not isinstance(error, BatchFailedError):
                    self._recover(number)
                if attempt == self._max_batch_attempts:
                    self._honour_stop()  # a sink may have ended its tries for that
                    if self._timed_out == attempt:
                        raise self._too_long(number, attempt) from error
                    raise BatchFailedError(f"batch {number} failed {attempt} times; the last time: {error}") from error
                self._pause(attempt)
            else:
                failpoints.reach("after-commit")
                self._callbacks.committed(record, time.monotonic() - began, was_committed)
                return

    def _planned(self, number: int) -> Batch:
        """Read Spark's plan. Retries while a source's cluster does not answer: nothing is open meanwhile."""
        for attempt in range(1, _PLAN_TRIES):
            try:
                return self._callbacks.plan(number)
            except BatchFailedError as error:
                log.warning("batch %d waits: %s", number, error)
                self._pause(attempt)
        return self._callbacks.plan(number)

    def _attempt(self, frame: DataFrame, batch: Batch) -> tuple[CommitRecord, bool]:
        """Attempt a batch once; returns its record and whether it had been committed before."""
        started_milliseconds = int(time.time() * 1000)
        self._sink.begin(batch)
        try:
            known = self._sink.committed(batch)
            if known is None:
                self._sink.write(frame)
                record = self._sink.pre_commit(started_milliseconds)
            else:
                log.info("batch %d is commit %d already; rebuilding its state", batch.number, known.commit)
                self._sink.rebuild(frame, known, partial(self._callbacks.diverged, known))
        except CommitUnknownError:
            raise  # what may have been committed is not aborted
        except Exception as error:
            self._timed_out += isinstance(error, AttemptTimedOutError)  # the abort may raise an error of its own
            self._sink.abort()
            raise
        if known is not None:
            self._sink.abort()
            return known, True
        try:
            self._sink.commit()
        except CommitUnknownError as error:
            log.warning("batch %d: %s; the ledger decides", batch.number, error)
            self._recover(batch.number)
            if self._sink.committed(batch) is None:
                self._timed_out += isinstance(error, TransactionGoneError)
                raise BatchFailedError(f"the commit did not take place: {error}") from error
        return record, False

    def _recover(self, number: int) -> None:
        """Recover the sink; nothing is attempted before that has succeeded, or a batch would be written twice.

        A stop ends the wait, and leaves the question to the ledger of the next run.
        """
        for attempt in range(1, self._max_batch_attempts + 1):
            try:
                self._sink.recover()
                return
            except FencedError:
                raise
            except ExactlyOnceError as error:
                reason = self._callbacks.stop_reason()
                if reason is not None:
                    raise StopRequestedError(
                        f"{reason}; the next run's ledger tells whether batch {number} is committed: {error}"
                    ) from error
                if not isinstance(error, BatchFailedError):
                    raise
                if attempt == self._max_batch_attempts:
                    raise ClaimFailedError(
                        f"the outcome of batch {number} is still unknown after {attempt} tries; the next start "
                        f"determines it: {error}"
                    ) from error
                log.warning("batch %d: its outcome is not known yet: %s", number, error)
            self._pause(attempt)

    def _too_long(self, number: int, attempts: int) -> BatchTimedOutError:
        return BatchTimedOutError(
            f"batch {number} took longer than its transaction may, {self._sink.time_limit_seconds:g} s, in each of "
            f"{attempts} attempts, and is not committed. Raise transaction_timeout_seconds of the KafkaSink, or "
            "timeout of the pipeline's CheckpointConfig (the broker's transaction.max.timeout.ms is the limit of "
            "both), or give the query more cores; a lower max_offsets_per_trigger of the source makes the batches "
            "after this one smaller"
        )

    def _pause(self, attempt: int) -> None:
        seconds = min(self._first_pause_seconds * 2 ** (attempt - 1), _LONGEST_PAUSE_SECONDS)
        poll_until(self._honour_stop, seconds=seconds, poll_seconds=_STOP_POLL_SECONDS)

    def _honour_stop(self) -> None:
        reason = self._callbacks.stop_reason()
        if reason is not None:
            raise StopRequestedError(reason)

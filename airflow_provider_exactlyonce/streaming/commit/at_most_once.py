"""At most once: the ledger's record first, then the batch by Spark's own Kafka sink, once.

A batch is planned, counted and recorded; only then are its rows written. An attempt that fails behind the record is
never followed by another: the batch runs again for its state's sake alone, and a claim in the ledger names its source
ranges as lost. Some of its records may be there; none is there twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.exceptions import DivergedError, required
from airflow_provider_exactlyonce.kafka.transaction import SessionState
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.at_least_once import AtLeastOnceWriter
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class AtMostOnceSink(BatchTransaction):
    """A Kafka sink that is the pipeline's only one, which writes no batch a second time.

    :param attempt: the batch attempt at hand
    :param stop_requested: tells that a commit without an answer should not be waited for any longer
    :raises RefusedError: when the sink asks for what Spark's own lacks
    """

    def __init__(self, attempt: BatchAttempt, stop_requested: Callable[[], bool]) -> None:
        super().__init__(attempt, AtLeastOnceWriter(attempt, before_rows=self._record), stop_requested)
        self._started_milliseconds = 0
        self._recorded: CommitRecord | None = None

    @override
    def begin(self, batch: Batch) -> None:
        self._recorded = None
        super().begin(batch)

    @override
    def rebuild(self, frame: DataFrame, record: CommitRecord, diverged: Callable[[DivergedError], None]) -> None:
        super().rebuild(frame, record, diverged)
        newest = self._run.tail.commit
        if newest is None or newest.commit != record.commit:
            return
        newest_batch = Checkpoint(self._run.home.checkpoint(record.lineage)).newest_commit()
        if newest_batch is None or newest_batch < record.batch:  # Spark was never told that it is written
            self._run.record_lost(record)

    @override
    def write(self, frame: DataFrame) -> None:
        self._started_milliseconds = int(time.time() * 1000)
        super().write(frame)

    def _record(self) -> None:
        """Commit the batch's record, before any of its rows is written."""
        self._recorded = super().pre_commit(self._started_milliseconds)
        super().commit()

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        return required(self._recorded, "a batch is recorded before it is written")

    @override
    def commit(self) -> None:
        """Do nothing: the progress was committed before the rows were written."""

    @override
    def abort(self) -> None:
        if self._run.session.state is SessionState.OPEN:
            super().abort()

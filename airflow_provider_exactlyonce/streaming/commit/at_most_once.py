"""At most once: the ledger's record first, then the batch by Spark's own Kafka sink, once.

A batch is planned, counted and recorded; only then are its rows written. An attempt that fails behind the record is
never followed by another: the batch runs again for its state's sake alone, and a claim in the ledger names its source
ranges as lost. Some of its records may be there; none is there twice.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.exceptions import invariant
from airflow_provider_exactlyonce.kafka.transaction import SessionState
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.commit.at_least_once import KafkaAtLeastOnce
from airflow_provider_exactlyonce.streaming.commit.batch import Batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

    from airflow_provider_exactlyonce.exceptions import DivergedError


class KafkaAtMostOnce(KafkaAtLeastOnce):
    """A Kafka sink that is the pipeline's only one, which writes no batch a second time."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._recorded: CommitRecord | None = None

    @override
    def begin(self, batch: Batch) -> None:
        self._recorded = None
        super().begin(batch)

    @override
    def write(self, frame: DataFrame) -> None:
        started_milliseconds = int(time.time() * 1000)
        self._look_at_plan()
        kept = frame.persist()  # the rows that were counted are those that are written
        try:
            self._check_named(kept)
            bad = self._bad_of_source()
            self._written = self._summed_up(kept)
            self._count(kept)
            self._judge_late_rows()
            self._recorded = super().pre_commit(started_milliseconds)
            super().commit()
            self._saved(kept, bad)
        finally:
            kept.unpersist()

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        invariant(self._recorded is not None, "a batch is recorded before it is written")
        return self._recorded  # type: ignore[return-value]

    @override
    def commit(self) -> None:
        """Do nothing: the progress was committed before the rows were written."""

    @override
    def abort(self) -> None:
        if self._run.session.state is SessionState.OPEN:
            super().abort()

    @override
    def rebuild(self, frame: DataFrame, record: CommitRecord, diverged: Callable[[DivergedError], None]) -> None:
        super().rebuild(frame, record, diverged)
        newest = self._run.tail.commit
        if newest is None or newest.commit != record.commit:
            return
        done = Checkpoint(self._run.home.checkpoint(record.lineage)).newest_commit()
        if done is None or done < record.batch:  # Spark was never told that it is written
            self._run.record_lost(record)

"""Runs queries from their start to their end: live, or steered through recorded batches.

The loop is the same for a replay, a backfill and a shadow run. The recorded batches choose the next batch, and write
the first batch of every start into the checkpoint; the callbacks of the others steer. Where a query can't be steered,
each recorded batch gets a start of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, StopRequestedError
from airflow_provider_exactlyonce.storage.opening import hadoop_url
from airflow_provider_exactlyonce.streaming.spark.steering import (
    OneStartPerBatchError,
    QuerySteering,
    missing_part,
    wait_until_gone,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger("exactlyonce")

_WAIT_SECONDS: Final = 1


#: Processes one micro-batch, by its rows and Spark's number of it; its errors end the query.
ProcessBatch = Callable[["DataFrame", int], None]


class RecordedBatches(Protocol):
    """Batches that are run again as they were recorded, or run first as they were planned."""

    @property
    def steering(self) -> QuerySteering:
        """Takes each query that runs them."""

    @property
    def pending(self) -> bool:
        """Whether one remains to be run."""

    @property
    def goes_live(self) -> bool:
        """Whether the query goes on after the last of them; else it ends there."""

    def prepare(self, *, one_start_per_batch: str | None) -> bool:
        """Write the next batch into the checkpoint, before every start of the query; false when none is left.

        :param one_start_per_batch: why the query can't be steered, None when it can
        """

    def check_progress(self) -> None:
        """Check, after the query's end, that something was done since its start."""


@dataclass(frozen=True, kw_only=True)
class QueryOptions:
    """How queries are started.

    :param name: the query's
    :param output_mode: ``append``, ``update`` or ``complete``
    :param checkpoint: its directory
    :param trigger: the argument of Spark's ``trigger`` with its value
    """

    name: str
    output_mode: str
    checkpoint: Path
    trigger: Mapping[str, Any] = field(default_factory=lambda: {"processingTime": "0 seconds"})


def _nothing(*_: object) -> None:
    """Do nothing."""


@dataclass(frozen=True, kw_only=True)
class QueryCallbacks:
    """The callbacks while a query runs, once a second.

    :param watch: gets the query, once more at its end; its errors end the query
    :param needs_restart: whether the query has to be started again to go on
    :param stop_reason: why a stop was asked for, None when it was not
    :param stopping: called before the query, which may be in the middle of a batch, is stopped
    :param failed: gets Spark's error that has ended the query; may raise the project's error for it
    """

    watch: Callable[[StreamingQuery], None] = _nothing
    needs_restart: Callable[[], bool] = lambda: False
    stop_reason: Callable[[], str | None] = lambda: None
    stopping: Callable[[], None] = _nothing
    failed: Callable[[Exception], None] = _nothing


class QueryRunner:
    """Runs the queries of one stream, one after the other.

    :param stream: ends in the tasks that write
    :param process: called with each batch
    """

    def __init__(
        self, stream: DataFrame, process: ProcessBatch, options: QueryOptions, callbacks: QueryCallbacks
    ) -> None:
        self._stream: Final = stream
        self._process: Final = process
        self._options: Final = options
        self._callbacks: Final = callbacks
        self._failure: ExactlyOnceError | None = None

    def run_recorded(self, recorded: RecordedBatches) -> bool:
        """Run the recorded batches; returns false when the same query has gone on live, and ended.

        :raises StopRequestedError: when a stop was asked for
        :raises ExactlyOnceError: the error that ended a query
        """
        spark = self._stream.sparkSession
        one_start_reason = missing_part(spark)
        while recorded.prepare(one_start_per_batch=one_start_reason):
            query = self._start({"once": True} if one_start_reason is not None else self._options.trigger)
            recorded.steering.attach(query)
            try:
                self._wait(query)
            except OneStartPerBatchError as error:
                one_start_reason = str(error)
                log.warning("%s; each recorded batch gets a start of its own", error)
                continue
            recorded.check_progress()
            if not recorded.pending and one_start_reason is None and recorded.goes_live:
                return False
            wait_until_gone(spark, query)
        return True

    def run_live(self) -> None:
        """Run one query with batches that Spark plans, to its end.

        :raises StopRequestedError: when a stop was asked for
        :raises ExactlyOnceError: the error that ended the query
        """
        self._wait(self._start(self._options.trigger))

    def _start(self, trigger: Mapping[str, Any]) -> StreamingQuery:
        writer = (
            self._stream.writeStream.queryName(self._options.name)
            .outputMode(self._options.output_mode)
            .option("checkpointLocation", hadoop_url(self._options.checkpoint))
            .foreachBatch(self._process_batch)
        )
        return writer.trigger(**trigger).start()

    def _process_batch(self, frame: DataFrame, number: int) -> None:
        """Process a batch, and keep the error that ends the query: Spark passes on only its text."""
        self._failure = None
        try:
            self._process(frame, number)
        except ExactlyOnceError as error:
            self._failure = error
            raise

    def _wait(self, query: StreamingQuery) -> None:
        try:
            while not query.awaitTermination(_WAIT_SECONDS):
                self._callbacks.watch(query)
                if self._callbacks.needs_restart() and not query.status["isTriggerActive"]:
                    query.stop()
                    return
                reason = self._callbacks.stop_reason()
                if reason is not None and not query.status["isTriggerActive"]:
                    query.stop()
                    raise StopRequestedError(reason)
            self._callbacks.watch(query)
        except ExactlyOnceError:
            raise
        except Exception as error:
            if self._failure is not None:
                raise self._failure from error
            self._callbacks.failed(error)
            raise
        finally:
            if query.isActive:
                self._callbacks.stopping()
                query.stop()

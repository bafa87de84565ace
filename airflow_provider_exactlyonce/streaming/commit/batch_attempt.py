"""The current batch attempt, shared by the transaction, which commits it, and the writer, which fills it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import AttemptTimedOutError, BatchFailedError, required
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.ledger.records import SourceRanges
from airflow_provider_exactlyonce.streaming.analysis import late_rows
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import BatchCounts, ExecutedBatch
from airflow_provider_exactlyonce.streaming.analysis.late_rows import COUNT_LATE_ROWS, LateRowsPolicy
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import SinkRoutes
from airflow_provider_exactlyonce.streaming.sinks.spi import Share

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame

_WRITING_SHARE: Final = 0.9  # of the transaction's time; the rest is for pre-commit and commit


@dataclass(frozen=True, kw_only=True)
class TransactionOptions:
    """The options of all batches of one query.

    :param definition: the Kafka sink as the user declared it, None when no sink is Kafka
    :param routes: the shares of the Kafka sink and of the others, None when Kafka gets the whole result alone
    :param bad_source_records: makes, of a batch's source ranges, the frame of the records that do not fit their schema,
        in the columns of :func:`airflow_provider_exactlyonce.streaming.sinks.kafka.columns.encode`
    :param mark: the backfill that every record is marked with, None for records without a mark
    :param allow_feedback: rows may go to a topic that the batch has read
    :param executed: reads the plan of the current batch, before it runs; None leaves late rows uncounted
    :param late: the treatment of rows behind the watermark
    """

    definition: KafkaSink | None
    routes: SinkRoutes | None = None
    bad_source_records: Callable[[SourceRanges], DataFrame | None] | None = None
    mark: str | None = None
    allow_feedback: bool = False
    executed: Callable[[Batch], ExecutedBatch] | None = None
    late: LateRowsPolicy = COUNT_LATE_ROWS


class BatchAttempt:
    """One attempt of a batch after the other. Used by the coordinator's thread only.

    :param run: the driver's hold on the pipeline
    :param targets: the topics that the definition names, as the cluster has them
    :param listener: where the tasks' sequencer listens
    :param others: the sinks that are not Kafka, None for none
    :ivar targets: with those that rows have named, too
    :ivar counts: of the records that the attempt has read and left out, None while they are unknown
    """

    def __init__(
        self,
        run: Run,
        options: TransactionOptions,
        targets: Mapping[str, TopicFacts],
        listener: SequencerListener,
        others: SinkGroup | None = None,
    ) -> None:
        self.run: Final = run
        self.options: Final = options
        self.listener: Final = listener
        self.routes: Final = options.routes or SinkRoutes(kafka=Share(options.definition), others=())
        self.others: Final = others or SinkGroup(run.pipeline, {})
        self.targets = dict(targets)
        self.counts: BatchCounts | None = None
        self._batch: Batch | None = None
        self._plan: ExecutedBatch | None = None

    @property
    def batch(self) -> Batch:
        """The batch that is attempted."""
        return required(self._batch, "a batch attempt is open")

    @property
    def time_limit_seconds(self) -> float:
        """How long writing may take."""
        return self.run.options.transaction_timeout_milliseconds / 1000 * _WRITING_SHARE

    @contextmanager
    def limited(self, context: SparkContext, tag: str) -> Iterator[None]:
        """Cancel the Spark jobs of a tag when they take longer than writing may.

        :raises AttemptTimedOutError: when that has ended them
        """
        over = threading.Event()

        def cancel() -> None:
            over.set()
            context.cancelJobsWithTag(tag)

        timer = threading.Timer(self.time_limit_seconds, cancel)
        timer.start()
        try:
            yield
        except BatchFailedError as error:
            if not over.is_set():
                raise
            limit = f"{self.time_limit_seconds:g} s"
            raise AttemptTimedOutError(
                f"the batch's Spark job took longer than {limit}, and was ended: {error}"
            ) from error
        finally:
            timer.cancel()

    def open(self, batch: Batch) -> None:
        """Begin with a new batch."""
        self._batch, self._plan, self.counts = batch, None, None

    def look_at_plan(self) -> None:
        """Read the counts in the batch's plan before it runs, to distinguish this attempt's from earlier attempts'."""
        self._plan = None if self.options.executed is None else self.options.executed(self.batch)

    def count(self, frame: DataFrame, tag: str | None = None) -> None:
        """Count the records that the attempt has read and left out, after its job has ended.

        :param tag: of the attempt's jobs
        :raises BatchFailedError: when they can't be counted: unknown must not be taken for none
        """
        if self._plan is None:
            return
        context = frame.sparkSession.sparkContext
        if tag is not None:
            context.addJobTag(tag)
        try:
            self.counts = self._plan.counts()
        except Exception as error:
            raise BatchFailedError(f"the rows behind the watermark could not be counted: {error}") from error
        finally:
            if tag is not None:
                context.removeJobTag(tag)
        maximum = self.run.sources.records_at_most(self.batch.source)
        if maximum is not None and (self.counts.records or 0) > maximum:
            raise BatchFailedError(
                f"{self.counts.records:,} records were read of {maximum:,} offsets: Spark has run tasks of the batch "
                "twice, so that what it counts is not to be trusted"
            )

    def judge_late_rows(self) -> None:
        """Judge the rows that were counted as late.

        :raises ExactlyOnceError: when the batch must not be committed with them
        """
        if self.counts is not None:
            self.options.late.judge(self.counts.late)

    def bad_records(self) -> DataFrame | None:
        """Return the batch's source records that do not fit their schema, None when there are none.

        They are read again, unless the counts show that there are none.
        """
        read_bad = self.options.bad_source_records
        return None if read_bad is None or self._all_fit() else read_bad(self.batch.source)

    def _all_fit(self) -> bool:
        """Tell whether a record was seen at each offset of the batch's ranges that fits its source's schema."""
        if self.counts is None:
            return False
        return self.counts.fitting == self.counts.records == self.run.sources.records_at_most(self.batch.source)

    def check_left_out(self, written: int) -> None:
        """Compare the bad records that were written with those that were left out of the result.

        A record is decoded for either by itself. A schema that the registry has got in between is unknown first, and
        then known: such a record would be nowhere.

        :param written: bad source records that went to their topic
        :raises BatchFailedError: when fewer were written
        """
        undecoded = self.counts.undecoded if self.counts is not None else None
        if undecoded is not None and written < undecoded:
            raise BatchFailedError(
                f"{undecoded:,} source records were left out, and {written:,} of them were bad when they were looked "
                "at again: the schema registry has got their schema meanwhile"
            )

    def late_records(self) -> Iterator[DataFrame]:
        """Yield the late rows that go to a topic of their own."""
        topic = self.options.late.topic
        if topic is not None and self._plan is not None and self.counts is not None:
            for late in self.counts.late:
                yield late_rows.as_records(self._plan.late_rows(late), late, topic)

    def is_bad(self, topic: str) -> bool:
        """Tell whether a topic is the one for bad records."""
        definition = self.options.definition
        return definition is not None and topic == definition.bad_topic

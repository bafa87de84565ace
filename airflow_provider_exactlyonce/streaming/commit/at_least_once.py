"""At least once: each batch by Spark's own Kafka sink, and a ledger record after it.

Spark's sink writes outside of any transaction: readers see a batch's records as they come, and records of a failed
attempt stay. The ledger's record follows in a transaction of its own. A crash before it repeats the whole batch, so
that records may be there twice, and none is missing. The written offsets are unknown: the record has rows and digest,
so that replays compare, and no offsets.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError, required
from airflow_provider_exactlyonce.kafka.config import for_spark
from airflow_provider_exactlyonce.ledger.records import SinkRange
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt
from airflow_provider_exactlyonce.streaming.commit.batch_writer import BatchWriter, Sums
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
from airflow_provider_exactlyonce.streaming.spark import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class AtLeastOnceWriter(BatchWriter):
    """Writes the rows of a Kafka sink that is the pipeline's only one by Spark's own.

    :param attempt: the one at hand
    :param before_rows: called when the rows are counted, before any is written
    :raises RefusedError: when the sink asks for what Spark's own lacks
    """

    def __init__(self, attempt: BatchAttempt, before_rows: Callable[[], None] = lambda: None) -> None:
        super().__init__(attempt)
        self._definition: Final = required(attempt.options.definition, "there is a Kafka sink")
        if self._definition.timestamp is not None:
            raise RefusedError(
                f"KafkaSink(timestamp={self._definition.timestamp!r}): Spark's own sink, which writes with less than "
                "exactly once, gives records the time of writing; leave it out, or declare guarantee='exactly_once'"
            )
        self._before_rows: Final = before_rows
        self._written = Sums(rows=0, digest=0, bad=0)

    @override
    def prepare(self, result: DataFrame) -> DataFrame:
        topic = self._definition.topic
        limit = self._attempt.targets[topic].batch_bytes_maximum if topic is not None else None
        return columns.encode(self._definition, self._attempt.routes.of(result), batch_bytes_maximum=limit)

    @override
    def write(self, frame: DataFrame) -> None:
        persisted = frame.persist()  # the counted rows are the written ones, and the plan runs once
        bad: DataFrame | None = None
        try:
            self._check_named(persisted)
            self._written = self._summed_up(persisted)
            self._attempt.count(persisted)
            self._attempt.judge_late_rows()  # before anything can be seen
            bad = self._attempt.bad_records()
            if bad is not None:
                left_out = self._summed_up(bad.persist()).bad
                self._attempt.check_left_out(left_out)
                self._written = replace(self._written, bad=self._written.bad + left_out)
            self._before_rows()
            self._save(persisted)
            if bad is not None:
                self._save(bad)
        finally:
            persisted.unpersist()
            if bad is not None:
                bad.unpersist()

    @property
    @override
    def ranges(self) -> Mapping[str, Mapping[int, SinkRange]]:
        return {}

    @property
    @override
    def topics(self) -> Collection[str]:
        """Those that the job declares: Spark's own sink does not tell which it wrote to."""
        return self._attempt.targets.keys() if self._written.rows + self._written.bad else ()

    @override
    def sums(self) -> Sums:
        return self._written

    @override
    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        sums = self._summed_up(frame)
        return sums.rows, sums.digest

    def _summed_up(self, frame: DataFrame) -> Sums:
        from pyspark.sql import functions as F

        is_bad = F.col("topic") == F.lit(self._definition.bad_topic) if self._definition.diverts else F.lit(False)
        digest = F.sum(F.when(~is_bad, F.col("digest").cast("decimal(20,0)")))
        with _errors_known():
            sums = frame.agg(F.count_if(~is_bad), digest, F.count_if(is_bad)).collect()[0]
        return Sums(rows=sums[0], digest=int(sums[1] or 0) % 2**64, bad=sums[2])

    def _check_named(self, persisted: DataFrame) -> None:
        """Check the topics that rows name, before any is written: nothing takes it back."""
        if self._definition.topic_column is not None:
            with _errors_known():
                named = [row["topic"] for row in persisted.select("topic").distinct().collect()]
            read = self._attempt.run.sources.here(self._attempt.batch.source)
            feedback.check_topics(self._attempt.run.pipeline, named, read, allowed=self._attempt.options.allow_feedback)

    def _save(self, records: DataFrame) -> None:
        context, tag = records.sparkSession.sparkContext, f"exactlyonce-{uuid.uuid4()}"
        context.addJobTag(tag)
        try:
            with self._attempt.limited(context, tag), _errors_known():
                _for_spark(records).write.format("kafka").options(**self._options()).save()
        finally:
            context.removeJobTag(tag)

    def _options(self) -> dict[str, str]:
        sink, limits = self._definition, [target.batch_bytes_maximum for target in self._attempt.targets.values()]
        options = {**for_spark(self._attempt.run.options.config), "kafka.compression.type": sink.compression}
        if sink.compression_level is not None:
            options[f"kafka.compression.{sink.compression}.level"] = str(sink.compression_level)
        if limits:
            options["kafka.max.request.size"] = str(max(limits))
        return options if sink.topic_column or sink.diverts else {**options, "topic": str(sink.topic)}


def _for_spark(records: DataFrame) -> DataFrame:
    """Return the columns that Spark's own sink takes; its partition is an int, and -1 is one that it refuses."""
    from pyspark.sql import functions as F

    if "partition" in records.columns:
        partition = F.col("partition")
        refused = F.when(partition.isNotNull(), F.lit(-1))
        number = F.when(partition.between(0, 2**31 - 1), partition.cast("int")).otherwise(refused)
        records = records.withColumn("partition", number)
    return records.drop("digest")


@contextmanager
def _errors_known() -> Iterator[None]:
    """Turn the failure of a Spark job into an error of this project."""
    try:
        yield
    except Exception as error:
        meaning = errors.meaning_of_batch(str(error))
        raise meaning or BatchFailedError(f"the batch's Spark job failed: {error}") from error

"""At least once: each batch by Spark's own Kafka sink, and a ledger record after it.

Spark's sink writes outside of any transaction: readers see a batch's records as they come, and those of an attempt that
failed stay. The ledger's record follows in a transaction of its own. A crash before it repeats the whole batch, so that
records may be there twice, and none is missing. What is written where is not known: the record has rows and digest, so
that replays compare, and no offsets.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.kafka.config import for_spark
from airflow_provider_exactlyonce.streaming.analysis import feedback
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction, Sums
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.spark import typed_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_NOTHING: Final = Sums(rows=0, digest=0, bad=0)


class KafkaAtLeastOnce(BatchTransaction):
    """A Kafka sink that is the pipeline's only one, written by Spark's own.

    :param definition: what the user declared; the other parameters are those of :class:`BatchTransaction`
    :raises RefusedError: when it asks for what Spark's own sink lacks
    """

    def __init__(self, definition: KafkaSink, *given: Any, **named: Any) -> None:
        if definition.timestamp is not None:
            raise RefusedError(
                f"KafkaSink(timestamp={definition.timestamp!r}): Spark's own sink, which writes with less than exactly "
                "once, gives records the time of writing; leave it out, or declare guarantee='exactly_once'"
            )
        super().__init__(definition, *given, **named)
        self._declared: Final = definition
        self._written = _NOTHING

    @override
    def prepare(self, result: DataFrame) -> DataFrame:
        topic = self._declared.topic
        limit = self._targets[topic].batch_bytes_maximum if topic is not None else None
        return columns.encode(self._declared, self._shares.of(result), batch_bytes_maximum=limit)

    @override
    def write(self, frame: DataFrame) -> None:
        self._look_at_plan()
        kept = frame.persist()  # what is counted is what is written, and the plan runs once
        try:
            self._check_named(kept)
            self._written = self._summed_up(kept)
            self._count(kept)
            self._judge_late_rows()  # before anything can be seen
            self._saved(kept, self._bad_of_source())
        finally:
            kept.unpersist()

    @override
    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        found = self._summed_up(frame)
        return found.rows, found.digest

    @override
    def _sums(self) -> Sums:
        return self._written

    @override
    def _topic_ids_written(self, written: Sums) -> dict[str, str]:
        """Return those of the topics that the job declares: Spark's own sink does not tell which it wrote to."""
        return {topic: target.topic_id for topic, target in self._targets.items()} if written.rows + written.bad else {}

    def _summed_up(self, frame: DataFrame) -> Sums:
        with _errors_known():
            return _sums(frame.agg(*self._summed(frame)).collect()[0].asDict())

    def _check_named(self, kept: DataFrame) -> None:
        """Check the topics that rows name, before any is written: nothing takes it back.

        :raises RefusedError: naming the topic
        """
        if self._declared.topic_column is not None:
            with _errors_known():
                named = [row["topic"] for row in kept.select("topic").distinct().collect()]
            read = self._open_batch().source
            feedback.check_topics(self._run.pipeline, named, read, allowed=self._allow_feedback)

    def _bad_of_source(self) -> DataFrame | None:
        return self._bad_source_records(self._open_batch().source) if self._bad_source_records else None

    def _saved(self, *frames: DataFrame | None) -> None:
        """Write records with Spark's own sink.

        :raises BatchFailedError: any part may have been written
        """
        tag = f"exactlyonce-{uuid.uuid4()}"
        for frame in frames:
            if frame is None:
                continue
            context = frame.sparkSession.sparkContext
            limit = threading.Timer(self.time_limit_seconds, self._cancel_tasks, (frame, tag))
            context.addJobTag(tag)
            limit.start()
            try:
                with _errors_known():
                    frame.drop("digest").write.format("kafka").options(**self._options()).save()
            finally:
                limit.cancel()
                context.removeJobTag(tag)

    def _options(self) -> dict[str, str]:
        sink, limits = self._declared, [target.batch_bytes_maximum for target in self._targets.values()]
        options = {**for_spark(self._run.options.config), "kafka.compression.type": sink.compression}
        if sink.compression_level is not None:
            options[f"kafka.compression.{sink.compression}.level"] = str(sink.compression_level)
        if limits:
            options["kafka.max.request.size"] = str(max(limits))
        return options if sink.topic_column or sink.diverts else {**options, "topic": str(sink.topic)}

    def _summed(self, frame: DataFrame) -> list[Any]:
        from pyspark.sql import functions as F

        is_bad = F.col("topic") == F.lit(self._declared.bad_topic) if self._declared.diverts else F.lit(False)
        return [
            F.count_if(~is_bad).alias("rows"),
            F.sum(F.when(~is_bad, F.col("digest").cast("decimal(20,0)"))).alias("digest"),
            F.count_if(is_bad).alias("bad"),
        ]


@contextmanager
def _errors_known() -> Iterator[None]:
    """Turn what a Spark job fails with into an error of this project."""
    try:
        yield
    except Exception as error:
        known = typed_errors.find(str(error))
        raise known or BatchFailedError(f"the batch's Spark job failed: {error}") from error


def _sums(found: dict[str, Any]) -> Sums:
    return Sums(rows=found["rows"], digest=int(found["digest"] or 0) % 2**64, bad=found["bad"])

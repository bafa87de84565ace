"""The one adapter for steering inside Spark: sets a running query's next micro-batch, instead of Spark's planning.

Everything here is private to Spark 4.2. ``tests/integration/streaming/replay/test_spark_steering.py`` is its contract:
if that fails with another Spark, repair this module, or let :func:`missing_part` name what is gone: replays then go on
with one start of the query per recorded batch, which needs nothing private.

:class:`SteeredQuery` is used in the callback of ``foreachBatch`` only. That runs on the thread that plans the next
batch, so nothing races.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.streaming.spark.jvm import class_of, elements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_RUNTIME: Final = "org.apache.spark.sql.execution.streaming.runtime"
KAFKA_STREAM: Final = "org.apache.spark.sql.kafka010.KafkaMicroBatchStream"
#: Class, field: read or set by name.
_FIELDS: Final = (
    (f"{_RUNTIME}.StreamExecution", "triggerClock"),
    (f"{_RUNTIME}.StreamExecution", "uniqueSources"),
    (f"{_RUNTIME}.MicroBatchExecution", "sources"),
    (f"{_RUNTIME}.MicroBatchExecution", "triggerExecutor"),
    (f"{_RUNTIME}.MicroBatchExecution", "watermarkTracker"),
    (f"{_RUNTIME}.WatermarkTracker", "operatorToWatermarkMap"),
    (f"{_RUNTIME}.ProcessingTimeExecutor", "intervalMs"),
    (KAFKA_STREAM, "allDataForTriggerAvailableNow"),
    (KAFKA_STREAM, "isTriggerAvailableNow"),
)
_START_SECONDS: Final = 60.0
_ENDING_SECONDS: Final = 60.0
_MANUAL_CLOCK: Final = "org.apache.spark.util.ManualClock"


class SteeringError(ExactlyOnceError):
    """A Spark, or a query, that can't be steered."""


class OneStartPerBatchError(ExactlyOnceError):
    """The running query can't be steered; each recorded batch gets a start of its own."""


def missing_part(spark: SparkSession) -> str | None:
    """Return the part that steering needs and this Spark lacks, None when all is there."""
    try:
        for name, field in _FIELDS:
            _class(spark, name).getDeclaredField(field)
        for name in (_MANUAL_CLOCK, f"{_RUNTIME}.TERMINATED$"):
            _class(spark, name)
    except Exception as error:
        cause = getattr(error, "java_exception", None)  # ClassNotFoundException or NoSuchFieldException
        return str(error if cause is None else cause.toString())
    return None


def fixed_settings(spark: SparkSession) -> dict[str, str]:
    """Return the settings that Spark fixes for the life of a new checkpoint, as this session has them."""
    metadata = class_of(spark, "org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata")
    conf: dict[str, str | None] = json.loads(metadata.apply(0, 0, spark._jsparkSession.conf()).json())["conf"]
    return {name: value for name, value in conf.items() if value is not None}  # some have no default


class SteeredQuery:
    """One running query with steered batches; made in the callback of the first of them.

    :param query: the query, running with Kafka sources
    :raises SteeringError: when a source is of another kind
    """

    def __init__(self, spark: SparkSession, query: StreamingQuery) -> None:
        self._spark: Final = spark
        self._execution: Final = query._jsq.streamingQuery()
        self._sources: Final = list(elements(self._execution.sources()))
        for source in self._sources:
            if source.getClass().getName() != KAFKA_STREAM:
                raise SteeringError(f"source {source.getClass().getName()} can't be steered; {KAFKA_STREAM} can")
        self._fields: Final = {field: _field(spark, name, field) for name, field in _FIELDS}
        #: To restore: an object, the name of its field, and the former value; empty while nothing is steered.
        self._former: list[tuple[Any, str, Any]] = []

    def steer(self, ends: Sequence[str | None], *, timestamp: int, watermark: int | None) -> None:
        """Tell where the next batch ends.

        :param ends: per source, the line of ``offsets/N``
        :param timestamp: the batch's timestamp, milliseconds since the epoch
        :param watermark: the batch's watermark, milliseconds since the epoch; None leaves it to Spark
        :raises SteeringError: when the query has another number of sources
        """
        if len(ends) != len(self._sources):
            raise SteeringError(f"the query has {len(self._sources)} sources, and the record {len(ends)}")
        if not self._former:
            self._hold()
        for source, end in zip(self._sources, ends, strict=True):
            if end is None:
                raise SteeringError("the recorded batch has a source without an offset")
            self._set(source, "allDataForTriggerAvailableNow", source.deserializeOffset(end).partitionToOffsets())
            self._set(source, "isTriggerAvailableNow", True)
        self._set(self._execution, "triggerClock", class_of(self._spark, _MANUAL_CLOCK)(timestamp))
        if watermark is not None:
            self.forget_operator_watermarks()
            self._execution.watermarkTracker().setWatermark(watermark)

    def end(self) -> None:
        """Let the query end after this batch, as it does when all that was available is done."""
        self._execution.state().set(getattr(class_of(self._spark, f"{_RUNTIME}.TERMINATED$"), "MODULE$"))

    def release(self) -> None:
        """Restore the changed fields: Spark plans the next batch."""
        for target, name, value in self._former:
            self._set(target, name, value)
        self._former.clear()

    def _get(self, target: Any, name: str) -> Any:
        return self._fields[name].get(target)

    def _set(self, target: Any, name: str, value: Any) -> None:
        self._fields[name].set(target, value)

    def _hold(self) -> None:
        """Save the fields to restore, and lift limits that would cut or delay a recorded batch."""
        self._remember(self._execution, "triggerClock", "uniqueSources")
        executor = self._execution.triggerExecutor()
        if executor.getClass().getName() == f"{_RUNTIME}.ProcessingTimeExecutor":
            self._remember(executor, "intervalMs")
            self._set(executor, "intervalMs", 0)
        all_available = class_of(self._spark, "org.apache.spark.sql.connector.read.streaming.ReadLimit").allAvailable()
        limits = self._get(self._execution, "uniqueSources")
        for source in self._sources:
            self._remember(source, "allDataForTriggerAvailableNow", "isTriggerAvailableNow")
            limits = limits.updated(source, all_available)
        self._set(self._execution, "uniqueSources", limits)

    def _remember(self, target: Any, *names: str) -> None:
        self._former += [(target, name, self._get(target, name)) for name in names]

    def forget_operator_watermarks(self) -> None:
        """Forget the maximum of each ``withWatermark``, as a restart does: checkpoints don't have it."""
        watermarks = self._get(self._execution.watermarkTracker(), "operatorToWatermarkMap")
        none = getattr(class_of(self._spark, "scala.None$"), "MODULE$")
        for operator in list(elements(watermarks.keys().toSeq())):
            watermarks.update(operator, none)


class QuerySteering:
    """Has the query that runs recorded batches, for their callbacks: the first may come before its start returns."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark: Final = spark
        self._query: StreamingQuery | None = None
        self._attached: Final = threading.Event()
        self._steered: SteeredQuery | None = None

    def expect(self) -> None:
        """Forget the query that has run: another one follows."""
        self._attached.clear()
        self._query, self._steered = None, None

    def attach(self, query: StreamingQuery) -> None:
        """Tell which query runs; called by the thread that has started it."""
        self._query = query
        self._attached.set()

    def query(self) -> SteeredQuery:
        """Return the query that runs; called in its callbacks.

        :raises OneStartPerBatchError: when it can't be steered
        :raises ExactlyOnceError: when it can't be determined
        """
        if self._steered is None:
            if not self._attached.wait(_START_SECONDS) or self._query is None:
                raise ExactlyOnceError(f"the query has not started within {_START_SECONDS:.0f} s")
            try:
                self._steered = SteeredQuery(self._spark, self._query)
            except SteeringError as error:
                raise OneStartPerBatchError(str(error)) from error
        return self._steered


def wait_until_gone(spark: SparkSession, query: StreamingQuery) -> None:
    """Wait until a query that has no further batch has put away everything, its name too."""
    is_gone = poll_until(
        lambda: all(active.id != query.id for active in spark.streams.active),
        seconds=_ENDING_SECONDS,
        poll_seconds=0.02,
    )
    if not is_gone:
        raise ExactlyOnceError(f"the query has not ended within {_ENDING_SECONDS:.0f} s of its last batch")


def _class(spark: SparkSession, name: str) -> Any:
    return class_of(spark, "org.apache.spark.util.Utils").classForName(name, False, False)


def _field(spark: SparkSession, name: str, field: str) -> Any:
    java_field = _class(spark, name).getDeclaredField(field)
    java_field.setAccessible(True)
    return java_field

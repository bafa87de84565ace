"""Spark's log in the driver's JVM, without the errors that reach the driver anyway, which logs each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.streaming.spark.jvm import class_of, submitted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: With it the user has asked for Spark's log as it is.
_ASKED: Final = "spark.log.level"
#: They print one failed task four times, a hundred lines each: its exception ends the query, and the driver logs it.
_TOLD_ELSEWHERE: Final = (
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
)
#: They warn, once a second, of a broker that is away; the driver, which asks it too, logs that.
_RECONNECTS: Final = (
    "org.apache.kafka.clients.NetworkClient",
    "org.apache.spark.sql.kafka010.KafkaOffsetReaderAdmin",
)


def quieten(spark: SparkSession) -> None:
    """Silence the parts of Spark's log that are reported elsewhere."""
    if submitted(spark).contains(_ASKED):
        return
    spark.sparkContext.setLogLevel("WARN")
    level = class_of(spark, "org.apache.logging.log4j.Level")
    configurator = class_of(spark, "org.apache.logging.log4j.core.config.Configurator")
    for name in _TOLD_ELSEWHERE:
        configurator.setLevel(name, level.OFF)
    for name in _RECONNECTS:
        configurator.setLevel(name, level.ERROR)

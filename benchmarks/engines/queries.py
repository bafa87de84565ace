"""The queries in PySpark: Spark's own lanes and ours run the same functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.engines.workloads import PASSED, PROJECTED, WINDOWED


def projected(events: DataFrame) -> DataFrame:
    paid = events.where("behavior = 'pay'")
    return paid.select("event_id", "uuid", "itemCode", (F.col("price") * 2).alias("total"))


def windowed(events: DataFrame) -> DataFrame:
    timed = events.withColumn("at", F.timestamp_millis("ts")).withWatermark("at", "10 seconds")
    minutes = timed.groupBy(F.window("at", "1 minute").alias("minute"), "itemCode")
    counted = minutes.agg(F.count("*").alias("n"), F.sum("price").alias("paid"))
    return counted.select(F.unix_seconds("minute.start").alias("start"), "itemCode", "n", "paid")


def passed(records: DataFrame) -> DataFrame:
    return records.select("key", "value")


QUERIES: Final[Mapping[str, Callable[[DataFrame], DataFrame]]] = {
    PROJECTED: projected,
    WINDOWED: windowed,
    PASSED: passed,
}

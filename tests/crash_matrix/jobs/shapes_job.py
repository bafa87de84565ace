"""The queries of the matrix; names, shape and time-out come from the harness."""

import os
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import DeltaSink, IcebergSink, KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink

SCHEMA = "id BIGINT NOT NULL, k STRING NOT NULL, t BIGINT NOT NULL"
SHAPE = os.environ["TEST_SHAPE"]


def result(events: DataFrame) -> DataFrame:
    sums = F.count("*").alias("n"), F.sum("id").alias("total")
    if SHAPE == "stateless":
        return events.select("id", "k")
    if SHAPE == "update":
        return events.groupBy("k").agg(*sums)
    windows = events.withColumn("at", F.timestamp_seconds("t")).withWatermark("at", "0 seconds")
    counted = windows.groupBy(F.window("at", "10 seconds"), "k").agg(*sums)
    return counted.select(F.unix_timestamp("window.start").alias("start"), "k", "n", "total")


def sinks() -> list[KafkaSink | Sink]:
    timeout_seconds = int(os.environ["TEST_TRANSACTION_TIMEOUT"])
    topic = KafkaSink(os.environ["TEST_SINK"], key="k", transaction_timeout_seconds=timeout_seconds)
    beside, folder = os.environ.get("TEST_BESIDE"), os.environ.get("TEST_TABLE")
    how: dict[str, Any] = {"mode": "upsert", "key": "k"} if SHAPE == "update" else {}
    if beside == "delta":
        return [topic, DeltaSink(name="table", path=str(folder), **how)]
    if beside == "iceberg":
        catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
        return [topic, IcebergSink(name="table", table="lake.shop.rows", catalog_properties=catalog, **how)]
    return [topic]


OUTPUT_MODE = "update" if SHAPE == "update" else "append"

if __name__ == "__main__":
    pipeline(
        name=os.environ["TEST_PIPELINE"],
        source=KafkaSource(os.environ["TEST_SOURCE"], schema=SCHEMA),
        sink=sinks(),
        output_mode=OUTPUT_MODE,
        max_batch_attempts=8,
    )(result).main()

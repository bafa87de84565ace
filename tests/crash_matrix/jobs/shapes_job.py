"""The queries of the matrix; names, shape and time-out come from the harness."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

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


OUTPUT_MODE = "update" if SHAPE == "update" else "append"

if __name__ == "__main__":
    pipeline(
        name=os.environ["TEST_PIPELINE"],
        source=KafkaSource(os.environ["TEST_SOURCE"], schema=SCHEMA),
        sink=KafkaSink(
            os.environ["TEST_SINK"], key="k", transaction_timeout_seconds=int(os.environ["TEST_TRANSACTION_TIMEOUT"])
        ),
        output_mode=OUTPUT_MODE,
        max_batch_attempts=8,
    )(result).main()

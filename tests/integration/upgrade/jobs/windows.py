"""What each key has spent per ten seconds: the first version; the others are made of it, see harness.py."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT, k STRING, v DECIMAL(12,2), ts TIMESTAMP",
        conn_id=os.environ.get("TEST_CONN_ID"),
    ),
    sink=KafkaSink(os.environ["TEST_SINK"], key="k"),
    output_mode="append",
)
def windows(events: DataFrame) -> DataFrame:
    kept = events.where("v >= 1")
    sums = (
        kept.withWatermark("ts", "2 seconds")
        .groupBy(F.window("ts", "10 seconds"), "k")
        .agg(F.sum("v").alias("total"), F.count("*").alias("n"))
    )
    return sums.select("k", F.unix_seconds("window.start").alias("start"), "total", "n")


if __name__ == "__main__":
    windows.main()

"""Counts per minute of event time, behind a watermark; its names, and what becomes of late rows, come from the test."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, ts TIMESTAMP NOT NULL",
        max_offsets_per_trigger=10,
    ),
    sink=KafkaSink(os.environ["TEST_SINK"]),
    output_mode="update",
    guarantee=os.environ.get("TEST_GUARANTEE"),
    late_rows=os.environ["TEST_LATE_ROWS"],
    late_topic=os.environ.get("TEST_LATE_TOPIC"),
)
def windows(events: DataFrame) -> DataFrame:
    kept = events.where("id >= 0").withWatermark("ts", "1 minute")
    return kept.groupBy(F.window("ts", "1 minute")).agg(F.count("*").alias("n"))


if __name__ == "__main__":
    windows.main()

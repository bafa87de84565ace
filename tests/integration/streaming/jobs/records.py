"""Passes records on as they are: key and value, no schema."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(os.environ["TEST_SOURCE"]),
    sink=KafkaSink(os.environ["TEST_SINK"]),
)
def records(events: DataFrame) -> DataFrame:
    return events.select("key", "value")


if __name__ == "__main__":
    records.main()

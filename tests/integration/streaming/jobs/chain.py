"""Passes records on as they are, so many at most in a batch."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"], max_offsets_per_trigger=int(os.environ["TEST_RECORDS_A_BATCH_MAXIMUM"])
    ),
    sink=KafkaSink(os.environ["TEST_SINK"]),
)
def chain(events: DataFrame) -> DataFrame:
    return events.select("key", "value")


if __name__ == "__main__":
    chain.main()

"""Passes records on, at most 100 a batch, with the guarantee that the test names."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=100,
    ),
    sink=KafkaSink(os.environ["TEST_SINK"], key="k"),
    guarantee=os.environ["TEST_GUARANTEE"],
)
def modes(events: DataFrame) -> DataFrame:
    return events


if __name__ == "__main__":
    modes.main()

"""Per key: a sum and a count, in update mode. Its names come from the test."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=400,
        conn_id=os.environ.get("TEST_CONN_ID"),
    ),
    sink=KafkaSink(os.environ["TEST_SINK"], key="k"),
    output_mode="update",
)
def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


if __name__ == "__main__":
    counts.main()

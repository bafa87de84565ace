"""A stream into a table alone, by key: the pipeline has no Kafka sink."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSource, UpsertSink, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=100,
    ),
    sink=UpsertSink(name="table", url=os.environ["TEST_URL"], table="totals", key="k", commit_column="commit"),
    output_mode="update",
)
def upserts(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


if __name__ == "__main__":
    upserts.main()

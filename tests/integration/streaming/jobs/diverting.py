"""Passes orders on, and bad ones to a topic of their own; notes each range that it reads again to find them."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline


class NotingSource(KafkaSource):
    """Notes what is read again."""

    def bad_records(self, spark: SparkSession, config: Mapping[str, str], ranges: Any) -> DataFrame | None:
        with Path(os.environ["TEST_READ_AGAIN"]).open("a") as file:
            file.write(json.dumps(ranges[self.topic]) + "\n")
        return super().bad_records(spark, config, ranges)


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=NotingSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=10,
        options={"kafka.isolation.level": "read_committed"},
    ),
    sink=KafkaSink(
        os.environ["TEST_SINK"], key="k", bad_records="topic", bad_records_topic=os.environ["TEST_BAD_RECORDS"]
    ),
)
def diverting(orders: DataFrame) -> DataFrame:
    return orders.where("id % 3 > 0").select("id", "k")


if __name__ == "__main__":
    diverting.main()

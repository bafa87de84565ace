"""Events to Kafka, and the latest of each key to a Delta table; some events delete their key."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSink, KafkaSource, Share, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ["TEST_BATCH"]),
    ),
    sink=[
        Share(
            DeltaSink(name="latest", path=os.environ["TEST_TABLE"], mode="upsert", key="k", order="id", deleted="gone"),
            select=("k", "id", "v", "pmod(id, 5) = 0 AS gone"),
        ),
        Share(KafkaSink(os.environ["TEST_SINK"], key="k"), select=("id", "k")),
    ],
)
def delta_upserts(events: DataFrame) -> DataFrame:
    return events


if __name__ == "__main__":
    delta_upserts.main()

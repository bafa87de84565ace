"""As counts.py, in small batches with a pause between them; its checkpoint ends with a stop."""

import os
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import CheckpointConfig, KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import OnCancellation


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=100,
    ),
    sink=KafkaSink(os.environ["TEST_SINK"], key="k"),
    output_mode="update",
    checkpoint=CheckpointConfig(min_pause=timedelta(seconds=1.5), retained=2, on_cancellation=OnCancellation.DELETE),
)
def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.sum("v").alias("total"), F.count("*").alias("n"))


if __name__ == "__main__":
    counts.main()

"""Events to Kafka and to files: as release 0.1.0 wrote them with ``TEST_RELEASE=0.1.0``, to a Delta table otherwise."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSink, KafkaSource, Share, Sink, pipeline
from tests.old_files import OldFileSink


def archive_sink() -> Sink:
    kind = OldFileSink if os.environ.get("TEST_RELEASE") == "0.1.0" else DeltaSink
    return kind(name="files", path=os.environ["TEST_TABLE"], partition_by=["shop"])


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=100,
    ),
    sink=[
        Share(archive_sink(), select=("id", "v", "shop")),
        Share(KafkaSink(os.environ["TEST_SINK"], key="k"), select=("id", "k")),
    ],
)
def archive(events: DataFrame) -> DataFrame:
    return events.selectExpr("id", "k", "v", "CAST(pmod(id, 3) AS STRING) AS shop")


if __name__ == "__main__":
    archive.main()

"""Orders in Avro or Protobuf, priced again in the same format; both schemas are in a registry."""

import os

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import AvroFormat, KafkaSink, KafkaSource, ProtobufFormat, pipeline

FORMAT = {"avro": AvroFormat, "protobuf": ProtobufFormat}[os.environ["TEST_FORMAT"]]


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL, note STRING",
        value_format=FORMAT(),
        max_offsets_per_trigger=int(os.environ.get("TEST_BATCH", "1000")),
    ),
    sink=KafkaSink(
        os.environ["TEST_SINK"],
        key="k",
        value_format=FORMAT(os.environ.get("TEST_SINK_SCHEMA")),
        bad_records=os.environ.get("TEST_BAD_RECORDS", "stop"),
    ),
    guarantee=os.environ.get("TEST_GUARANTEE", "exactly_once"),
)
def registry_orders(orders: DataFrame) -> DataFrame:
    return orders.select("id", "k", (F.col("v") * 2).cast("decimal(12,2)").alias("twice"), "note")


if __name__ == "__main__":
    registry_orders.main()

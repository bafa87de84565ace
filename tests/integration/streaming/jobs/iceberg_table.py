"""Events to Kafka and to an Iceberg table, which every column type's way through Spark passes."""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import IcebergSink, KafkaSink, KafkaSource, Share, pipeline


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ["TEST_BATCH"]),
    ),
    sink=[
        Share(
            IcebergSink(
                "lake.shop.events",
                name="lake",
                catalog_properties={
                    "type": "sql",
                    "uri": f"sqlite:///{os.environ['TEST_LAKE']}/catalog.db",
                    "warehouse": f"file://{os.environ['TEST_LAKE']}/warehouse",
                },
                partition_by=["shop", "hour(at)"],
            ),
            select=("id", "k", "v", "shop", "at", "local", "parts"),
        ),
        Share(KafkaSink(os.environ["TEST_SINK"], key="k"), select=("id", "k")),
    ],
)
def iceberg_table(events: DataFrame) -> DataFrame:
    return events.selectExpr(
        "id",
        "k",
        "v",
        "concat('a/b=', pmod(id, 3)) AS shop",
        "timestamp_micros(1704067200000000 + id) AS at",
        "CAST(timestamp_micros(1704067200000000 + id) AS TIMESTAMP_NTZ) AS local",
        "struct(id AS n, array(k, NULL) AS l, array(struct(k, id)) AS s) AS parts",
    )


if __name__ == "__main__":
    iceberg_table.main()

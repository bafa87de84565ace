"""The shop's events to a Delta table, all of them, and those that are paid to Kafka, each exactly once.

Any reader of Delta sees the table: DuckDB, polars, Spark. ``SHOP_LAKE`` is its path, or a URL such as
``s3://bucket/events``; for a store with credentials, ``SHOP_STORE`` names the connection.
"""

# [START job_lakehouse]
import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import DeltaSink, KafkaSink, KafkaSource, Share, pipeline


@pipeline(
    name="lakehouse",
    source=KafkaSource(
        os.environ.get("SHOP_SOURCE", "shop.events"),
        schema="event_id BIGINT NOT NULL, uuid STRING NOT NULL, itemCode STRING, behavior STRING NOT NULL, "
        "price DECIMAL(12,2) NOT NULL, ts TIMESTAMP",
        max_offsets_per_trigger=int(os.environ.get("SHOP_BATCH", "7000")),
    ),
    sink=[
        Share(
            DeltaSink(
                name="lake",
                path=os.environ.get("SHOP_LAKE", "/var/lib/lakehouse/events"),
                partition_by=["month"],
                compact_every=100,
                conn_id=os.environ.get("SHOP_STORE"),
            )
        ),
        Share(
            KafkaSink(os.environ.get("SHOP_TOPIC", "shop.paid"), key="uuid"),
            where="behavior = 'pay'",
            select=("event_id", "uuid", "price"),
        ),
    ],
)
def lakehouse(events: DataFrame) -> DataFrame:
    return events.selectExpr("*", "date_format(ts, 'yyyy-MM') AS month")


if __name__ == "__main__":
    lakehouse.main()
# [END job_lakehouse]

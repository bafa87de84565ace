"""One stream, three sinks: every event, the newest total of each user, and what was paid, each exactly once.

The result is a tagged union: one row for each event, with a column for each sink. Payments go to Kafka, and events and
totals to two tables of PostgreSQL:

    CREATE TABLE shop_events (id bigint PRIMARY KEY, k text NOT NULL, v numeric(12,2) NOT NULL, commit bigint);
    CREATE TABLE shop_latest (k text PRIMARY KEY, id bigint NOT NULL, v numeric(12,2) NOT NULL);
"""

import os

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, PostgresSink, Share, pipeline


@pipeline(
    name=os.environ.get("SHOP_PIPELINE", "shop-postgres"),
    source=KafkaSource(
        os.environ.get("SHOP_SOURCE", "payments"),
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ.get("SHOP_BATCH", "100000")),
    ),
    sink=[
        Share(PostgresSink(name="events", table="shop_events", commit_column="commit"), select=("event.*",)),
        Share(
            PostgresSink(name="latest", table="shop_latest", mode="upsert", key="k", order="id", deleted="gone"),
            select=("event.k", "event.id", "event.v", "gone"),
        ),
        Share(KafkaSink(os.environ.get("SHOP_TOPIC", "payments-large"), key="k"), where="large", select=("event.*",)),
    ],
)
def shop_postgres(payments: DataFrame) -> DataFrame:
    return payments.selectExpr("struct(id, k, v) AS event", "id % 41 = 0 AS gone", "v >= 1 AS large")


if __name__ == "__main__":
    shop_postgres.main()

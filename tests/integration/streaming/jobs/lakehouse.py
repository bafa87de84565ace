"""Events to Kafka and to a table of a lake, which every column type's way through Spark passes."""

import os
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import DeltaSink, IcebergSink, KafkaSink, KafkaSource, Share, pipeline

FOLDER = os.environ["TEST_TABLE"]
COMPACT_EVERY = int(os.environ["TEST_COMPACT_EVERY"]) or None
ALL_COLUMNS = ("id", "k", "v", "shop", "at", "local", "parts", "labels")
CATALOG = {
    "type": "sql",
    "uri": f"sqlite:///{FOLDER}/catalog.db",
    "warehouse": f"file://{FOLDER}/warehouse",
}
ICEBERG: dict[str, Any] = {
    "table": "lake.shop.events",
    "name": "lake",
    "catalog_properties": CATALOG,
    "compact_every": COMPACT_EVERY,
}
DELTA: dict[str, Any] = {"name": "lake", "path": FOLDER, "compact_every": COMPACT_EVERY}
# The latest of each key; some events delete theirs.
LATEST: dict[str, Any] = {"mode": "upsert", "key": "k", "order": "id", "deleted": "gone"}
LATEST_COLUMNS = ("k", "id", "v", "pmod(id, 5) = 0 AS gone")
SHARES = {
    "delta": Share(DeltaSink(**DELTA, partition_by=["shop"]), select=ALL_COLUMNS),
    "upserts": Share(DeltaSink(**DELTA, **LATEST), select=LATEST_COLUMNS),
    "iceberg": Share(IcebergSink(**ICEBERG, partition_by=["shop", "hour(at)"]), select=ALL_COLUMNS),
    "iceberg-upserts": Share(IcebergSink(**ICEBERG, **LATEST), select=LATEST_COLUMNS),
}


@pipeline(
    name=os.environ["TEST_PIPELINE"],
    source=KafkaSource(
        os.environ["TEST_SOURCE"],
        schema="id BIGINT NOT NULL, k STRING NOT NULL, v DECIMAL(12,2) NOT NULL",
        max_offsets_per_trigger=int(os.environ["TEST_BATCH"]),
    ),
    sink=[
        SHARES[os.environ["TEST_LAKE"]],
        Share(KafkaSink(os.environ["TEST_SINK"], key="k"), select=("id", "k")),
    ],
)
def lakehouse(events: DataFrame) -> DataFrame:
    return events.selectExpr(
        "id",
        "k",
        "v",
        "concat('a/b=', pmod(id, 3)) AS shop",
        "timestamp_micros(1704067200000000 + id) AS at",
        "CAST(timestamp_micros(1704067200000000 + id) AS TIMESTAMP_NTZ) AS local",
        "struct(id AS n, array(k, NULL) AS l, array(struct(k, id)) AS s) AS parts",
        "map(k, id, 'none', NULL) AS labels",
    )


if __name__ == "__main__":
    lakehouse.main()

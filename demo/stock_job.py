"""The job through the Kafka sink that Spark ships, run by spark-submit: ``stock_job.py SERVERS TOPIC CHECKPOINT``.

Source, schema, batches and function are those of ``dags/jobs/shop_totals.py``; only the sink is another.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from demo.history import SOURCE_TOPIC

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

JOBS = Path(__file__).parents[1] / "dags" / "jobs"


def start(spark: SparkSession, servers: str, topic: str, checkpoint: str) -> StreamingQuery:
    """Start the query; it ends when everything that is available now is processed."""
    sys.path.insert(0, str(JOBS))
    from shop_totals import shop_totals

    (source,) = shop_totals.sources.values()
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", SOURCE_TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", source.max_offsets_per_trigger)
        .load()
    )
    events = records.select(F.from_json(F.col("value").cast("string"), source.schema).alias("event"))
    totals = shop_totals(events.select("event.*"))
    query: StreamingQuery = (
        totals.select(F.col("uuid").alias("key"), F.to_json(F.struct("*")).alias("value"))
        .writeStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("topic", topic)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .trigger(availableNow=True)
        .start()
    )
    return query


if __name__ == "__main__":
    start(SparkSession.builder.appName("shop-totals-stock").getOrCreate(), *sys.argv[1:4]).awaitTermination()

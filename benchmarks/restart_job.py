"""The pipeline that ``restart.py`` kills, as this project runs it, and as Spark's own source and sink do it."""

from __future__ import annotations

import json
import os
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline

SERVERS, SOURCE, SINK = (os.environ[f"BENCH_{name}"] for name in ("SERVERS", "SOURCE", "SINK"))


@pipeline(
    name="bench-restart",
    source=KafkaSource(SOURCE, schema="id BIGINT NOT NULL, k STRING NOT NULL"),
    sink=KafkaSink(SINK, key="k"),
    output_mode="update",
)
def counts(events: DataFrame) -> DataFrame:
    return events.groupBy("k").agg(F.count("*").alias("n"))


def plain(checkpoint: str) -> None:
    spark = SparkSession.builder.getOrCreate()
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", SERVERS).option("subscribe", SOURCE)
    values = reader.option("startingOffsets", "earliest").load().select(F.col("value").cast("string"))
    rows = values.select(F.from_json("value", "id BIGINT, k STRING").alias("r")).select("r.*")
    counted = rows.groupBy("k").agg(F.count("*").alias("n"))
    written = counted.select(F.col("k").alias("key"), F.to_json(F.struct("k", "n")).alias("value"))
    query = (
        written.writeStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("topic", SINK)
        .option("checkpointLocation", checkpoint)
        .outputMode("update")
        .start()
    )
    print(json.dumps({"query": str(query.id)}), flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        plain(sys.argv[2])
    else:
        counts.main()

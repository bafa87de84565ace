"""The same queries through Spark's own Kafka writer: ``stock_job.py CHECKPOINT``.

It is called from foreachBatch, because a fail point can be put before and after it; a map over the rows that changes
nothing holds a task in the middle of its rows.
"""

import os
import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce import failpoints

sys.path.insert(0, os.path.dirname(__file__))
from shapes_job import OUTPUT_MODE, SCHEMA, result  # noqa: E402

SERVERS = os.environ["TEST_SERVERS"]


def passed_on(number: int) -> "type[object]":
    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_provider_exactlyonce import failpoints

        for batch in batches:
            yield batch
            failpoints.note(batch=number)
            failpoints.reach("during-send")

    return passed  # type: ignore[return-value]


def write(frame: DataFrame, number: int) -> None:
    failpoints.note(batch=number)
    failpoints.reach("after-begin")
    records = frame.select(F.col("k").alias("key"), F.to_json(F.struct("*")).alias("value"))
    records = records.mapInArrow(passed_on(number), records.schema)
    records.write.format("kafka").option("kafka.bootstrap.servers", SERVERS).option(
        "topic", os.environ["TEST_SINK"]
    ).save()
    failpoints.reach("after-commit")


if __name__ == "__main__":
    spark = SparkSession.builder.getOrCreate()
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 5)
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", SERVERS)
        .option("subscribe", os.environ["TEST_SOURCE"])
        .option("startingOffsets", "earliest")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    events = records.select(F.from_json(F.col("value").cast("string"), SCHEMA).alias("e")).select("e.*")
    result(events).writeStream.outputMode(OUTPUT_MODE).option("checkpointLocation", sys.argv[1]).foreachBatch(
        write
    ).start().awaitTermination()

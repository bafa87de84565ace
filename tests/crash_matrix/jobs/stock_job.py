"""The same queries through Spark's own Kafka writer: ``stock_job.py --home DIR …``.

It is called from foreachBatch, because a fail point can be put before and after it; a map over the rows that changes
nothing, through a small buffer, holds a task in the middle of its rows.
"""

import os
import sys
from collections.abc import Callable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce import failpoints

sys.path.insert(0, os.path.dirname(__file__))
from shapes_job import OUTPUT_MODE, SCHEMA, result

SERVERS = os.environ["TEST_SERVERS"]


def passed_on(number: int) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_provider_exactlyonce import failpoints

        for batch in batches:
            yield batch
            failpoints.note(batch=number)
            failpoints.reach("during-send")

    return passed


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
    spark = SparkSession.builder.config("spark.buffer.size", "128").getOrCreate()
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
    query = result(events).writeStream.outputMode(OUTPUT_MODE).foreachBatch(write)
    query.option("checkpointLocation", f"{sys.argv[2]}/checkpoint").start().awaitTermination()

"""The query with Spark's own source and sink; ``--tuned`` sets both."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from benchmarks.engines.assignment import COLUMNS, Assignment
from benchmarks.engines.kafka_clients import CONSUMER, PRODUCER, kafka_options
from benchmarks.engines.queries import QUERIES
from benchmarks.engines.workloads import KEYS, PASSED


def written(result: DataFrame, query: str) -> DataFrame:
    """Return the two columns that Spark's sink writes."""
    if query == PASSED:
        return result
    return result.select(F.col(KEYS[query]).alias("key"), F.to_json(F.struct("*")).alias("value"))


def main() -> None:
    given, tuned = Assignment.given(), "--tuned" in sys.argv
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    source = {"subscribe": given.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(given.batch_rows)}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.servers).options(**source)
    reader = reader.options(**given.batch_options)
    records = reader.options(**kafka_options(CONSUMER if tuned else {})).load()
    if given.query != PASSED:
        values = records.select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("event"))
        records = values.select("event.*")
    result = written(QUERIES[given.query](records), given.query)
    writer = result.writeStream.format("kafka").option("kafka.bootstrap.servers", given.servers)
    writer = writer.option("topic", given.sink).options(**kafka_options(PRODUCER if tuned else {}))
    writer = writer.option("checkpointLocation", str(Path(given.folder, "checkpoint"))).outputMode("append")
    (writer.trigger(availableNow=True) if given.bounded else writer).start().awaitTermination()


if __name__ == "__main__":
    main()

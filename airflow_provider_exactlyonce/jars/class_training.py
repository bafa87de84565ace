"""A query that uses the same parts of Spark as most pipelines, on rows that it makes itself.

``class_training.py FOLDER`` runs it, with its checkpoint in FOLDER, in the JVM whose classes are archived.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LAST_BATCH: Final = 2
_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.unix.domain.socket.dir": "/tmp",
}
_SCHEMA: Final = "id BIGINT, name STRING, at TIMESTAMP, price DECIMAL(12,2), items ARRAY<STRING>"


def _unchanged(batches: Iterable[Any]) -> Iterator[Any]:
    yield from batches


def _collect(rows: DataFrame, _: int) -> None:
    rows.collect()


def run(spark: SparkSession, checkpoint: str) -> None:
    """Run JSON, a filter, windows in RocksDB and a Python stage, for a few batches.

    :param checkpoint: an empty directory, as Spark names it
    """
    from pyspark.sql import functions as F

    numbers = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    row = F.struct(
        F.col("value").alias("id"),
        F.concat(F.lit("k"), F.col("value") % 7).alias("name"),
        F.col("timestamp").alias("at"),
        (F.col("value") / 100).cast("decimal(12,2)").alias("price"),
        F.array(F.lit("a"), F.lit("b")).alias("items"),
    )
    parsed = numbers.select(F.from_json(F.to_json(row), _SCHEMA, {"mode": "PERMISSIVE"}).alias("row")).select("row.*")
    counted = (
        parsed.where("name IS NOT NULL AND price >= 0")
        .withWatermark("at", "1 minute")
        .groupBy(F.window("at", "1 minute"), "name")
        .agg(F.sum("price").alias("total"), F.count("*").alias("n"))
    )
    encoded = counted.select(F.to_json(F.struct("name", "total", "n")).cast("binary").alias("value"))
    query = (
        encoded.mapInArrow(_unchanged, encoded.schema)
        .writeStream.outputMode("update")
        .option("checkpointLocation", checkpoint)
        .foreachBatch(_collect)
        .start()
    )
    while query.isActive and (query.lastProgress is None or query.lastProgress.batchId < _LAST_BATCH):
        time.sleep(0.1)
    query.stop()
    if error := query.exception():
        raise error


def main(folder: str) -> None:
    """Run the query in a session of its own."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName("exactlyonce classes")
    for name, value in _SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    run(spark, f"{folder}/checkpoint")
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])

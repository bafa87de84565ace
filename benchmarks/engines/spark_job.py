"""The query with Spark's own source and sink; ``--tuned`` sets both."""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro, to_avro

from benchmarks.engines.assignment import COLUMNS, Assignment
from benchmarks.engines.avro_values import READ_EVENT, RESULT, WRITTEN_EVENT, header
from benchmarks.engines.kafka_clients import CONSUMER, PRODUCER, kafka_options
from benchmarks.engines.queries import QUERIES
from benchmarks.engines.workloads import KEYS, PASSED


def read(records: DataFrame, given: Assignment) -> DataFrame:
    """Return the events of Kafka's records."""
    if given.query == PASSED:
        return records
    if given.registry:
        options = {"avroSchema": READ_EVENT}
        event = from_avro(F.expr("substring(value, 6)"), WRITTEN_EVENT, options)
    else:
        event = F.from_json(F.col("value").cast("string"), COLUMNS)
    return records.select(event.alias("event")).select("event.*")


def written(result: DataFrame, given: Assignment) -> DataFrame:
    """Return the two columns that Spark's sink writes."""
    if given.query == PASSED:
        return result
    row = F.struct("*")
    avro = F.concat(F.lit(header(given.result_id)), to_avro(row, RESULT)) if given.registry else None
    value = F.to_json(row) if avro is None else avro
    return result.select(F.col(KEYS[given.query]).alias("key"), value.alias("value"))


def main() -> None:
    given, tuned = Assignment.given(), "--tuned" in sys.argv
    spark = SparkSession.builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    source = {"subscribe": given.source, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(given.batch_rows)}
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", given.servers).options(**source)
    reader = reader.options(**given.batch_options)
    records = reader.options(**kafka_options(CONSUMER if tuned else {})).load()
    result = written(QUERIES[given.query](read(records, given)), given)
    writer = result.writeStream.format("kafka").option("kafka.bootstrap.servers", given.servers)
    writer = writer.option("topic", given.sink).options(**kafka_options(PRODUCER if tuned else {}))
    writer = writer.option("checkpointLocation", str(Path(given.folder, "checkpoint"))).outputMode("append")
    (writer.trigger(availableNow=True) if given.bounded else writer).start().awaitTermination()


if __name__ == "__main__":
    main()

"""The Delta sink beside a plain Parquet write of the same rows, and beside Spark's own streaming write to Delta.

Spark's own, with delta-spark's jars from Maven: a stream of the same rows, of which the time that Spark gives for
writing a batch is counted, its own checkpoint not. Then our table gets 10,000 versions with a file each, and commits
are timed again. Run it with ``make bench-lakehouse``; the goal is 0.8 of the plain rate, and 150 ms for a commit into
that table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from benchmarks import sink_batches
from benchmarks.sink_batches import Seconds
from tests import spark_readers

GOAL, GOAL_MILLISECONDS = 0.8, 150
SPARKS_OWN = "Spark's own Delta"


def by_spark(spark: SparkSession, folder: Path, given: argparse.Namespace) -> list[float]:
    """Let Spark stream as many batches to a Delta table; returns the seconds that each was written in."""
    options = {"rowsPerBatch": given.rows, "numPartitions": given.tasks}
    rows = spark.readStream.format("rate-micro-batch").options(**options).load().withColumnRenamed("value", "id")
    writer = (
        rows.selectExpr(*sink_batches.COLUMNS)
        .writeStream.format("delta")
        .option("checkpointLocation", str(folder / "own"))
    )
    query = writer.start(str(folder / "spark"))
    seconds: dict[int, float] = {}
    while len(seconds) < given.batches + sink_batches.WARMING:
        query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress.numInputRows:
                seconds[progress.batchId] = progress.durationMs["addBatch"] / 1000
    query.stop()
    return [seconds[batch] for batch in sorted(seconds)[sink_batches.WARMING : sink_batches.WARMING + given.batches]]


def grown(table: Path, versions: int) -> None:
    """Add versions with a file each, as a pipeline of small batches has made them without any compaction."""
    file_statistics = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    first = DeltaTable(table).version() + 1
    for version in range(first, first + versions):
        add = {"path": f"f{version}.parquet", "partitionValues": {}, "size": 1000, "modificationTime": 0}
        body = {"add": {**add, "dataChange": True, "stats": json.dumps(file_statistics)}}
        information = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}}
        log = table / "_delta_log" / f"{version:020d}.json"
        log.write_text(f"{json.dumps(information)}\n{json.dumps(body)}\n")
    DeltaTable(table).create_checkpoint()


def measure(folder: Path, given: argparse.Namespace) -> tuple[Seconds, dict[str, list[float]]]:
    settings = {
        "spark.sql.parquet.compression.codec": "zstd",
        **spark_readers.DELTA.conf,
        "spark.databricks.delta.snapshotPartitions": str(given.tasks),  # 50 are as many tasks in each commit
    }
    spark = sink_batches.start_spark(given.tasks, settings)
    plain, table = folder / "plain", folder / "table"
    plain.mkdir()
    committer = DeltaSink(name="bench", path=str(table)).open(SinkContext(pipeline="bench", home=folder))
    committer.expect_columns(sink_batches.rows_of(spark, 0, 1, 1).schema)
    open_writer = committer.open_writer()
    committer.claim(1)
    seconds, young = sink_batches.in_turns(spark, given, sink_batches.parquet_in(plain), committer, open_writer)
    seconds[SPARKS_OWN] = by_spark(spark, folder, given)
    spark.stop()
    assert sum(pq.read_metadata(file).num_rows for file in plain.iterdir()) == DeltaTable(table).count()
    grown(table, given.versions)
    committer.claim(1)
    milliseconds = []
    first = given.batches + sink_batches.WARMING + 1
    for number in range(first, first + 50):
        sink_batches.begin(committer, number)
        milliseconds.append(sink_batches.commit(committer, [], number, 0))
    committer.close()
    return seconds, {"young table": young, f"table of {given.versions:,} versions": milliseconds}


def main() -> None:
    parser = sink_batches.arguments(__doc__)
    parser.add_argument("--versions", type=int, default=10_000, help="of the grown table (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, milliseconds = measure(Path(folder), given)
    commits = {name: round(statistics.median(values), 1) for name, values in milliseconds.items()}
    result, ratio = sink_batches.describe(given, seconds, "Parquet")
    ratio_to_sparks_own = statistics.median(seconds[SPARKS_OWN]) / statistics.median(seconds["exactly once"])
    more = {f"of {SPARKS_OWN}": round(ratio_to_sparks_own, 2), "milliseconds a commit (median)": commits}
    sink_batches.publish("lakehouse.json", {**result, **more, "goal": [GOAL, GOAL_MILLISECONDS]}, seconds)
    raise SystemExit(0 if ratio >= GOAL and max(commits.values()) <= GOAL_MILLISECONDS else 1)


if __name__ == "__main__":
    main()

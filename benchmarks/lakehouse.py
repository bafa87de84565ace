"""The Delta sink beside a plain Parquet write of the same rows, and beside Spark's own streaming write to Delta.

Plain: every task writes one Parquet file; nothing says which files count. Ours: begin, the tasks' files with
statistics, pre-commit, a version of the log, settled. Batches of both alternate, so that whatever else the machine
does hits both. Spark's own, with delta-spark's jars from Maven: a stream of the same rows, of which the time that
Spark gives for writing a batch is counted, its own checkpoint not. Then our table gets 10,000 versions with a file
each, and commits are timed again. Run it with ``make bench-lakehouse``; the goal is 0.8 of the plain rate, and 150 ms
for a commit into that table.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.spi import (
    OpenWriter,
    SinkAttempt,
    SinkCommitter,
    SinkContext,
    SinkEntry,
)
from tests import delta_spark

RESULT = Path(__file__).parent / "results" / "lakehouse.json"
GOAL, GOAL_MILLISECONDS = 0.8, 150
WARMING = 2  # batches


COLUMNS = (
    "id",
    "concat('user-', id % 5000) AS k",
    "concat('item ', id % 997, ' with a name') AS item",
    "CAST(id % 10000 AS DECIMAL(12,2)) AS price",
    "timestamp_seconds(1700000000 + id) AS at",
)


def rows_of(spark: SparkSession, batch: int, rows: int, tasks: int) -> DataFrame:
    return spark.range(batch * rows, (batch + 1) * rows, numPartitions=tasks).selectExpr(*COLUMNS)


def by_spark(spark: SparkSession, folder: Path, given: argparse.Namespace) -> list[float]:
    """Let Spark stream as many batches to a Delta table; returns the seconds that each was written in."""
    options = {"rowsPerBatch": given.rows, "numPartitions": given.tasks}
    rows = spark.readStream.format("rate-micro-batch").options(**options).load().withColumnRenamed("value", "id")
    writer = rows.selectExpr(*COLUMNS).writeStream.format("delta").option("checkpointLocation", str(folder / "own"))
    query = writer.start(str(folder / "spark"))
    seconds: dict[int, float] = {}
    while len(seconds) < given.batches + WARMING:
        query.awaitTermination(1)
        for progress in query.recentProgress:
            if progress.numInputRows:
                seconds[progress.batchId] = progress.durationMs["addBatch"] / 1000
    query.stop()
    return [seconds[batch] for batch in sorted(seconds)[WARMING : WARMING + given.batches]]


def plainly(frame: DataFrame, folder: Path) -> None:
    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(batches)
        with (folder / f"{uuid.uuid4().hex}.parquet").open("xb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        yield pa.RecordBatch.from_pydict({"told": [""]})

    frame.mapInArrow(write, "told string").collect()


def exactly_once(
    frame: DataFrame, committer: SinkCommitter, open_writer: OpenWriter, number: int, rows: int
) -> dict[str, float]:
    """Commit a batch; returns the milliseconds of the driver's steps together, and of the commit alone."""
    attempt = SinkAttempt(name=uuid.uuid4().hex, pipeline="bench", commit=number, run=1)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        writer = open_writer(attempt, 0)
        try:
            for batch in batches:
                writer.write(batch)
            told = json.dumps(writer.finish())
        finally:
            writer.close()
        yield pa.RecordBatch.from_pydict({"told": [told]})

    committer.begin(attempt)
    told = [json.loads(row.told) for row in frame.mapInArrow(write, "told string").collect()]
    return commit(committer, told, number, rows)


def commit(committer: SinkCommitter, told: list[Any], number: int, rows: int) -> dict[str, float]:
    began = time.perf_counter()
    committer.pre_commit(told)
    entry = SinkEntry(commit=number, run=1, lineage="bench", batch=number, source={}, rows=rows, digest=0)
    decided = time.perf_counter()
    committer.commit(entry)
    committed = time.perf_counter()
    committer.settled(number)
    return {"driver": (time.perf_counter() - began) * 1000, "commit": (committed - decided) * 1000}


def grown(table: Path, versions: int) -> None:
    """Add versions with a file each, as a pipeline of small batches has made them without any compaction."""
    statistics_of = {"numRecords": 10, "minValues": {"id": 0}, "maxValues": {"id": 9}, "nullCount": {"id": 0}}
    first = DeltaTable(table).version() + 1
    for version in range(first, first + versions):
        add = {"path": f"f{version}.parquet", "partitionValues": {}, "size": 1000, "modificationTime": 0}
        body = {"add": {**add, "dataChange": True, "stats": json.dumps(statistics_of)}}
        information = {"commitInfo": {"timestamp": int(time.time() * 1000), "operation": "WRITE"}}
        log = table / "_delta_log" / f"{version:020d}.json"
        log.write_text(f"{json.dumps(information)}\n{json.dumps(body)}\n")
    DeltaTable(table).create_checkpoint()


def measure(folder: Path, given: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{given.tasks}]")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .config("spark.sql.parquet.compression.codec", "zstd")
        .config(map={**delta_spark.SETTINGS})
        .config("spark.databricks.delta.snapshotPartitions", str(given.tasks))  # 50 are as many tasks in each commit
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    plain, table = folder / "plain", folder / "table"
    plain.mkdir()
    columns = rows_of(spark, 0, 1, 1).schema
    sink = DeltaSink(name="bench", path=str(table))
    committer = sink.open(SinkContext(pipeline="bench", home=folder))
    committer.expect_columns(columns)
    committer.claim(1)
    open_writer = committer.open_writer()
    seconds: dict[str, list[float]] = {"plain": [], "exactly once": [], "Spark's own Delta": []}
    milliseconds: dict[str, list[float]] = {"young table": [], f"table of {given.versions:,} versions": []}
    for number in range(given.batches + WARMING):
        frame = rows_of(spark, number, given.rows, given.tasks)
        began = time.perf_counter()
        plainly(frame, plain)
        between = time.perf_counter()
        told = exactly_once(frame, committer, open_writer, number + 1, given.rows)
        ended = time.perf_counter()
        if number >= WARMING:
            seconds["plain"].append(between - began)
            seconds["exactly once"].append(ended - between)
            milliseconds["young table"].append(told["commit"])
    seconds["Spark's own Delta"] = by_spark(spark, folder, given)
    spark.stop()
    assert sum(pq.read_metadata(file).num_rows for file in plain.iterdir()) == DeltaTable(table).count()
    grown(table, given.versions)
    committer.claim(1)
    for number in range(given.batches + WARMING + 1, given.batches + WARMING + 51):
        committer.begin(SinkAttempt(name=uuid.uuid4().hex, pipeline="bench", commit=number, run=1))
        milliseconds[f"table of {given.versions:,} versions"].append(commit(committer, [], number, 0)["commit"])
    committer.close()
    return seconds, milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="batches of each kind (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks and cores (default: %(default)s)")
    parser.add_argument("--versions", type=int, default=10_000, help="of the grown table (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, milliseconds = measure(Path(folder), given)
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    commits = {name: round(statistics.median(of), 1) for name, of in milliseconds.items()}
    ratio = medians["plain"] / medians["exactly once"]
    result = {
        "rows a batch": given.rows,
        "batches": given.batches,
        "tasks": given.tasks,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "seconds a batch (median)": {name: round(of, 3) for name, of in medians.items()},
        "rows a second": {name: round(given.rows / of) for name, of in medians.items()},
        "of plain Parquet": round(ratio, 2),
        "of Spark's own Delta": round(medians["Spark's own Delta"] / medians["exactly once"], 2),
        "milliseconds a commit (median)": commits,
        "goal": [GOAL, GOAL_MILLISECONDS],
    }
    print(json.dumps(result, indent=2))
    RESULT.write_text(json.dumps({**result, "seconds": seconds}, indent=2) + "\n")
    raise SystemExit(0 if ratio >= GOAL and max(commits.values()) <= GOAL_MILLISECONDS else 1)


if __name__ == "__main__":
    main()

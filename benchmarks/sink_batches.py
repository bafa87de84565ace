"""Batches of a sink and of a plain write of the same rows, from the same tasks, in the same run, in turns.

Alternate batches are hit alike by whatever else the machine does. Plain: every task writes its rows, and nothing says
which of them count. Ours: begin, the tasks' rows, pre-commit, commit, settled.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkCommitter, SinkEntry

WARMING = 2  # batches
COLUMNS = (
    "id",
    "concat('user-', id % 5000) AS k",
    "concat('item ', id % 997, ' with a name') AS item",
    "CAST(id % 10000 AS DECIMAL(12,2)) AS price",
    "timestamp_seconds(1700000000 + id) AS at",
)
Seconds = dict[str, list[float]]


def arguments(description: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="batches of each kind (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks and cores (default: %(default)s)")
    return parser


def start_spark(tasks: int, settings: Mapping[str, str] | None = None) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(f"local[{tasks}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    spark = builder.config(map={**(settings or {})}).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def rows_of(spark: SparkSession, batch: int, rows: int, tasks: int) -> DataFrame:
    return spark.range(batch * rows, (batch + 1) * rows, numPartitions=tasks).selectExpr(*COLUMNS)


def in_turns(
    spark: SparkSession,
    given: argparse.Namespace,
    plainly: Callable[[DataFrame], object],
    committer: SinkCommitter,
    open_writer: OpenWriter,
) -> tuple[Seconds, list[float]]:
    """Measure; returns the seconds of each kind's batches, and the milliseconds of the sink's commits."""
    seconds: Seconds = {"plain": [], "exactly once": []}
    commits = []
    for number in range(given.batches + WARMING):
        frame = rows_of(spark, number, given.rows, given.tasks)
        began = time.perf_counter()
        plainly(frame)
        plain_ended = time.perf_counter()
        milliseconds = exactly_once(frame, committer, open_writer, number + 1, given.rows)
        ended = time.perf_counter()
        if number >= WARMING:
            seconds["plain"].append(plain_ended - began)
            seconds["exactly once"].append(ended - plain_ended)
            commits.append(milliseconds)
    return seconds, commits


def parquet_in(folder: Path) -> Callable[[DataFrame], object]:
    """Return the plain write of a Parquet file by every task."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        table = pa.Table.from_batches(batches)
        with (folder / f"{uuid.uuid4().hex}.parquet").open("xb") as file:
            pq.write_table(table, file, compression="zstd")
            file.flush()
            os.fsync(file.fileno())
        yield pa.RecordBatch.from_pydict({"written": [""]})

    return lambda frame: frame.mapInArrow(write, "written string").collect()


def exactly_once(frame: DataFrame, committer: SinkCommitter, open_writer: OpenWriter, number: int, rows: int) -> float:
    """Commit a batch; returns the milliseconds of the commit alone."""
    attempt = begin(committer, number)

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with closing(open_writer(attempt, 0)) as writer:
            for batch in batches:
                writer.write(batch)
            written = json.dumps(writer.finish())
        yield pa.RecordBatch.from_pydict({"written": [written]})

    written = [json.loads(row.written) for row in frame.mapInArrow(write, "written string").collect()]
    return commit(committer, written, number, rows)


def begin(committer: SinkCommitter, number: int) -> SinkAttempt:
    attempt = SinkAttempt(name=uuid.uuid4().hex, pipeline="bench", commit=number, run=1)
    committer.begin(attempt)
    return attempt


def commit(committer: SinkCommitter, written: Sequence[Any], number: int, rows: int) -> float:
    """Commit what is written; returns the milliseconds of the commit alone."""
    committer.pre_commit(written)
    entry = SinkEntry(commit=number, run=1, lineage="bench", batch=number, source={}, rows=rows, digest=0)
    began = time.perf_counter()
    committer.commit(entry)
    milliseconds = (time.perf_counter() - began) * 1000
    committer.settled(number)
    return milliseconds


def describe(given: argparse.Namespace, seconds: Seconds, plain: str, **more: Any) -> tuple[dict[str, Any], float]:
    """Return the result, and the rate of the sink beside that of the plain write.

    :param plain: what that is
    :param more: of the result
    """
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratio = medians["plain"] / medians["exactly once"]
    result = {
        "rows a batch": given.rows,
        "batches": given.batches,
        "tasks": given.tasks,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "seconds a batch (median)": {name: round(median, 3) for name, median in medians.items()},
        "rows a second": {name: round(given.rows / median) for name, median in medians.items()},
        f"of plain {plain}": round(ratio, 2),
        **more,
    }
    return result, ratio


def publish(file: str, result: Mapping[str, Any], seconds: Seconds) -> None:
    """Print the result, and keep it beside the others."""
    print(json.dumps(result, indent=2))
    results_file = Path(__file__).parent / "results" / file
    results_file.write_text(json.dumps({**result, "seconds": seconds}, indent=2) + "\n")

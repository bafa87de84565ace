"""The Iceberg sink beside a plain Parquet write of the same rows, from the same tasks, in the same run, in turns.

As ``benchmarks/lakehouse.py`` does it: batches of a plain Parquet write and of the sink alternate. Then the table gets
more snapshots with a file each, and commits are timed again; and once more when all but the newest have expired. The
catalog is SQLite, on the table's disk. Run it with ``make bench-iceberg``; the goal is 0.8 of the plain rate.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkContext
from benchmarks.lakehouse import commit, exactly_once, plainly, rows_of

RESULT = Path(__file__).parent / "results" / "iceberg.json"
GOAL = 0.8
COMMITS = 30  # that are timed together
#: The row of a file that is committed again and again.
SAMPLE = {
    "id": 1,
    "k": "user-1",
    "item": "item 1 with a name",
    "price": Decimal("1.00"),
    "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
}


def commits(committer: SinkCommitter, told: list[Any], first: int, count: int, rows: int) -> list[float]:
    """Commit the same files again and again; returns the milliseconds of each commit."""
    milliseconds = []
    for number in range(first, first + count):
        committer.begin(SinkAttempt(name=uuid.uuid4().hex, pipeline="bench", commit=number, run=1))
        milliseconds.append(commit(committer, told, number, rows)["commit"])
    return milliseconds


def measure(folder: Path, given: argparse.Namespace) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{given.tasks}]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    plain = folder / "plain"
    plain.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    sink = IcebergSink("lake.bench.rows", name="bench", catalog_properties=catalog)
    committer = sink.open(SinkContext(pipeline="bench", home=folder))
    committer.expect_columns(rows_of(spark, 0, 1, 1).schema)
    open_writer = committer.open_writer()
    committer.claim(1)
    seconds: dict[str, list[float]] = {"plain": [], "exactly once": []}
    milliseconds: dict[str, list[float]] = {"young table": []}
    for number in range(given.batches + 2):
        frame = rows_of(spark, number, given.rows, given.tasks)
        began = time.perf_counter()
        plainly(frame, plain)
        between = time.perf_counter()
        told = exactly_once(frame, committer, open_writer, number + 1, given.rows)
        ended = time.perf_counter()
        if number >= 2:  # the first batches warm up
            seconds["plain"].append(between - began)
            seconds["exactly once"].append(ended - between)
            milliseconds["young table"].append(told["commit"])
    spark.stop()
    table = load_catalog("lake", **catalog).load_table("bench.rows")
    assert sum(pq.read_metadata(file).num_rows for file in plain.iterdir()) == table.scan().count()
    following = given.batches + 3
    attempt = SinkAttempt(name=uuid.uuid4().hex, pipeline="bench", commit=following, run=1)
    with closing(open_writer(attempt, 0)) as writer:
        for batch in pa.Table.from_pylist([SAMPLE]).to_batches():
            writer.write(batch)
        told_files = [writer.finish()]
    for size in given.snapshots:
        count = size - following
        commits(committer, told_files, following, count, 1)
        milliseconds[f"table of {size:,} snapshots"] = commits(committer, told_files, size, COMMITS, 1)
        following = size + COMMITS
    table.refresh()
    table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()
    milliseconds["when they have expired"] = commits(committer, told_files, following, COMMITS, 1)
    committer.close()
    return seconds, milliseconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="batches of each kind (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks and cores (default: %(default)s)")
    parser.add_argument(
        "--snapshots", type=int, nargs="*", default=[250, 1000], help="of the grown table (default: %(default)s)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, milliseconds = measure(Path(folder), given)
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    ratio = medians["plain"] / medians["exactly once"]
    result = {
        "rows a batch": given.rows,
        "batches": given.batches,
        "tasks": given.tasks,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "seconds a batch (median)": {name: round(of, 3) for name, of in medians.items()},
        "rows a second": {name: round(given.rows / of) for name, of in medians.items()},
        "of plain Parquet": round(ratio, 2),
        "milliseconds a commit (median)": {name: round(statistics.median(of), 1) for name, of in milliseconds.items()},
        "milliseconds a commit (least)": {name: round(min(of), 1) for name, of in milliseconds.items()},
        "goal": GOAL,
    }
    print(json.dumps(result, indent=2))
    RESULT.write_text(json.dumps({**result, "seconds": seconds}, indent=2) + "\n")
    raise SystemExit(0 if ratio >= GOAL else 1)


if __name__ == "__main__":
    main()

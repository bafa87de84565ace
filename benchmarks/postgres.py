"""The PostgreSQL sink beside a plain COPY of the same rows, from the same tasks, in the same run, in turns.

Plain: every task copies its rows straight into the table and commits; nothing is exactly once. Ours: begin, the tasks'
COPY into staging, pre-commit, commit, settled. Both tables are alike and have a primary key; batches alternate, so that
whatever else the machine does hits both. Run it with ``make bench-postgres``; the goal is 0.7 of the plain rate.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import platform
import statistics
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkContext, SinkEntry
from tests import postgres

RESULT = Path(__file__).parent / "results" / "postgres.json"
TABLE = "(id bigint PRIMARY KEY, k text NOT NULL, item text, price numeric(12,2) NOT NULL, at timestamptz NOT NULL)"
GOAL = 0.7


def rows_of(spark: SparkSession, batch: int, rows: int, tasks: int) -> DataFrame:
    return spark.range(batch * rows, (batch + 1) * rows, numPartitions=tasks).selectExpr(
        "id",
        "concat('user-', id % 5000) AS k",
        "concat('item ', id % 997, ' with a name') AS item",
        "CAST(id % 10000 AS DECIMAL(12,2)) AS price",
        "timestamp_seconds(1700000000 + id) AS at",
    )


def plainly(frame: DataFrame, parameters: dict[str, Any]) -> None:
    statement = "COPY plain (id, k, item, price, at) FROM STDIN (FORMAT csv)"

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with psycopg.connect("", **parameters) as connection, connection.cursor().copy(statement) as into:
            for batch in batches:
                text = io.BytesIO()
                csv.write_csv(batch, text, csv.WriteOptions(include_header=False))
                into.write(text.getvalue())
        yield pa.RecordBatch.from_pydict({"told": [""]})

    frame.mapInArrow(copy, "told string").collect()


def exactly_once(frame: DataFrame, committer: Any, open_writer: OpenWriter, number: int, rows: int) -> None:
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
    committer.pre_commit(told)
    entry = SinkEntry(commit=number, run=1, lineage="bench", batch=number, source={}, rows=rows, digest=0)
    committer.commit(entry)
    committer.settled(number)


def measure(parameters: dict[str, Any], batches: int, rows: int, tasks: int) -> dict[str, list[float]]:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{tasks}]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    os.environ.update(postgres.environment(parameters))
    committer = PostgresSink(name="bench", table="ours").open(SinkContext(pipeline="bench", home=Path("/nowhere")))
    committer.claim(1)
    open_writer = committer.open_writer()
    seconds: dict[str, list[float]] = {"plain": [], "exactly once": []}
    for number in range(batches + 2):
        frame = rows_of(spark, number, rows, tasks)
        began = time.perf_counter()
        plainly(frame, parameters)
        between = time.perf_counter()
        exactly_once(frame, committer, open_writer, number + 1, rows)
        ended = time.perf_counter()
        if number >= 2:  # the first batches warm up
            seconds["plain"].append(between - began)
            seconds["exactly once"].append(ended - between)
    committer.close()
    spark.stop()
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000, help="rows a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=15, help="batches of each kind (default: %(default)s)")
    parser.add_argument("--tasks", type=int, default=2, help="tasks and cores (default: %(default)s)")
    given = parser.parse_args()
    with postgres.running() as server:
        parameters = dict(server.create_database("bench"))
        with server.connect(parameters) as connection:
            for name in ("plain", "ours"):
                connection.execute(f"CREATE TABLE {name} {TABLE}")
        seconds = measure(parameters, given.batches, given.rows, given.tasks)
        with server.connect(parameters) as connection:
            same = connection.execute("SELECT count(*) FROM plain NATURAL JOIN ours").fetchone()
            version = connection.execute("SHOW server_version").fetchone()
    assert same == (given.rows * (given.batches + 2),), "both tables have the same rows"
    medians = {name: statistics.median(of) for name, of in seconds.items()}
    ratio = medians["plain"] / medians["exactly once"]
    result = {
        "rows a batch": given.rows,
        "batches": given.batches,
        "tasks": given.tasks,
        "PostgreSQL": version[0] if version else None,
        "machine": f"{os.cpu_count()} cores, {platform.machine()}",
        "seconds a batch (median)": {name: round(of, 3) for name, of in medians.items()},
        "rows a second": {name: round(given.rows / of) for name, of in medians.items()},
        "of plain COPY": round(ratio, 2),
        "goal": GOAL,
    }
    print(json.dumps(result, indent=2))
    RESULT.write_text(json.dumps({**result, "seconds": seconds}, indent=2) + "\n")
    raise SystemExit(0 if ratio >= GOAL else 1)


if __name__ == "__main__":
    main()

"""The PostgreSQL sink beside a plain COPY of the same rows, from the same tasks, in the same run, in turns.

Plain: every task copies its rows straight into the table and commits. Both tables are alike and have a primary key. Run
it with ``make bench-postgres``; the goal is 0.7 of the plain rate.
"""

from __future__ import annotations

import argparse
import io
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from pyarrow import csv
from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming.sinks.postgres.sink import PostgresSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from benchmarks import sink_batches
from benchmarks.sink_batches import Seconds
from tests import postgres

TABLE = "(id bigint PRIMARY KEY, k text NOT NULL, item text, price numeric(12,2) NOT NULL, at timestamptz NOT NULL)"
GOAL = 0.7


def plainly(frame: DataFrame, parameters: dict[str, Any]) -> None:
    statement = "COPY plain (id, k, item, price, at) FROM STDIN (FORMAT csv)"

    def copy(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with psycopg.connect("", **parameters) as connection, connection.cursor().copy(statement) as copy_stream:
            for batch in batches:
                text = io.BytesIO()
                csv.write_csv(batch, text, csv.WriteOptions(include_header=False))
                copy_stream.write(text.getvalue())
        yield pa.RecordBatch.from_pydict({"written": [""]})

    frame.mapInArrow(copy, "written string").collect()


def measure(parameters: dict[str, Any], given: argparse.Namespace) -> Seconds:
    spark = sink_batches.start_spark(given.tasks)
    os.environ.update(postgres.environment(parameters))
    committer = PostgresSink(name="bench", table="ours").open(SinkContext(pipeline="bench", home=Path("/nowhere")))
    committer.claim(1)
    plain = partial(plainly, parameters=parameters)
    seconds, _ = sink_batches.in_turns(spark, given, plain, committer, committer.open_writer())
    committer.close()
    spark.stop()
    return seconds


def main() -> None:
    given = sink_batches.arguments(__doc__).parse_args()
    with postgres.running() as server:
        parameters = dict(server.create_database("bench"))
        with server.connect(parameters) as connection:
            for name in ("plain", "ours"):
                connection.execute(f"CREATE TABLE {name} {TABLE}")
        seconds = measure(parameters, given)
        with server.connect(parameters) as connection:
            same = connection.execute("SELECT count(*) FROM plain NATURAL JOIN ours").fetchone()
            version = connection.execute("SHOW server_version").fetchone()
    assert same == (given.rows * (given.batches + sink_batches.WARMING),), "both tables have the same rows"
    result, ratio = sink_batches.describe(given, seconds, "COPY", PostgreSQL=version[0] if version else None, goal=GOAL)
    sink_batches.publish("postgres.json", result, seconds)
    raise SystemExit(0 if ratio >= GOAL else 1)


if __name__ == "__main__":
    main()

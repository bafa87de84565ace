"""The Iceberg sink beside a plain Parquet write of the same rows, from the same tasks, in the same run, in turns.

Then the table gets more snapshots with a file each, and commits are timed again; and once more when all but the newest
have expired. The catalog is SQLite, on the table's disk. Run it with ``make bench-iceberg``; the goal is 0.8 of the
plain rate.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkContext
from benchmarks import sink_batches
from benchmarks.sink_batches import Seconds

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


def commits(committer: SinkCommitter, written: list[Any], first: int, count: int) -> list[float]:
    """Commit the same file again and again; returns the milliseconds of each commit."""
    milliseconds = []
    for number in range(first, first + count):
        sink_batches.begin(committer, number)
        milliseconds.append(sink_batches.commit(committer, written, number, 1))
    return milliseconds


def measure(folder: Path, given: argparse.Namespace) -> tuple[Seconds, dict[str, list[float]]]:
    spark = sink_batches.start_spark(given.tasks)
    plain = folder / "plain"
    plain.mkdir()
    catalog = {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    sink = IcebergSink("lake.bench.rows", name="bench", catalog_properties=catalog)
    committer = sink.open(SinkContext(pipeline="bench", home=folder))
    committer.expect_columns(sink_batches.rows_of(spark, 0, 1, 1).schema)
    open_writer = committer.open_writer()
    committer.claim(1)
    seconds, young = sink_batches.in_turns(spark, given, sink_batches.parquet_in(plain), committer, open_writer)
    milliseconds = {"young table": young}
    spark.stop()
    table = load_catalog("lake", **catalog).load_table("bench.rows")
    assert sum(pq.read_metadata(file).num_rows for file in plain.iterdir()) == table.scan().count()
    following = given.batches + sink_batches.WARMING + 1
    attempt = SinkAttempt(name="again", pipeline="bench", commit=following, run=1)
    with closing(open_writer(attempt, 0)) as writer:
        for batch in pa.Table.from_pylist([SAMPLE]).to_batches():
            writer.write(batch)
        written = [writer.finish()]
    for size in given.snapshots:
        commits(committer, written, following, size - following)
        milliseconds[f"table of {size:,} snapshots"] = commits(committer, written, size, COMMITS)
        following = size + COMMITS
    table.refresh()
    table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()
    milliseconds["when they have expired"] = commits(committer, written, following, COMMITS)
    committer.close()
    return seconds, milliseconds


def main() -> None:
    parser = sink_batches.arguments(__doc__)
    parser.add_argument(
        "--snapshots", type=int, nargs="*", default=[250, 1000], help="of the grown table (default: %(default)s)"
    )
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, milliseconds = measure(Path(folder), given)
    result, ratio = sink_batches.describe(given, seconds, "Parquet")
    for name, figure in (("median", statistics.median), ("least", min)):
        result[f"milliseconds a commit ({name})"] = {kind: round(figure(of), 1) for kind, of in milliseconds.items()}
    sink_batches.publish("iceberg.json", {**result, "goal": GOAL}, seconds)
    raise SystemExit(0 if ratio >= GOAL else 1)


if __name__ == "__main__":
    main()

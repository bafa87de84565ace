"""The Iceberg sink beside a plain Parquet write of the same rows, from the same tasks, in the same run, in turns.

Then the table gets 1,000 snapshots with a file each, by commits, then 10,000 snapshots, and commits are timed again;
and once more when all but the newest have expired. A hundred commits are timed, so that one of them merges manifests.
The catalog is SQLite, on the table's disk. Run it with ``make bench-iceberg``; the goal is 0.8 of the plain rate, and
150 ms for a commit.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableUpdate

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkContext
from benchmarks import sink_batches
from benchmarks.sink_batches import Seconds

GOAL, GOAL_MILLISECONDS = 0.8, 150
COMMITS = 100  # that are timed together
#: The row of a file that is committed again and again.
SAMPLE = {
    "id": 1,
    "k": "user-1",
    "item": "item 1 with a name",
    "price": Decimal("1.00"),
    "at": datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
}


@dataclass
class Commits:
    """Of each kind of table the milliseconds of its commits, and the mean of their CPU."""

    milliseconds: dict[str, list[float]]
    cpu: dict[str, float] = field(default_factory=dict)

    def time(self, kind: str, committer: SinkCommitter, written: list[Any], first: int) -> None:
        began = time.process_time()
        self.milliseconds[kind] = commits(committer, written, first, COMMITS)
        self.cpu[kind] = round((time.process_time() - began) * 1000 / COMMITS, 1)


def commits(committer: SinkCommitter, written: list[Any], first: int, count: int) -> list[float]:
    """Commit the same file again and again; returns the milliseconds of each commit."""
    milliseconds = []
    for number in range(first, first + count):
        sink_batches.begin(committer, number)
        milliseconds.append(sink_batches.commit(committer, written, number, 1))
    return milliseconds


def grow(table: Table, size: int) -> None:
    """Give a table as many snapshots as if batches had been committed for long, each with the files of the newest."""
    newest = table.current_snapshot()
    assert newest is not None
    updates: list[TableUpdate] = []
    for _ in range(size - len(table.snapshots())):
        next_snapshot = {
            "snapshot_id": table.metadata.new_snapshot_id(),
            "parent_snapshot_id": newest.snapshot_id,
            "sequence_number": (newest.sequence_number or 0) + 1,
        }
        newest = newest.model_copy(update=next_snapshot)
        main = {"ref-name": "main", "type": SnapshotRefType.BRANCH, "snapshot-id": newest.snapshot_id}
        updates += [AddSnapshotUpdate(snapshot=newest), SetSnapshotRefUpdate.model_validate(main)]
    table.catalog.commit_table(table, (), tuple(updates))


def measure(folder: Path, given: argparse.Namespace) -> tuple[Seconds, Commits]:
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
    timed = Commits({"young table": young})
    spark.stop()
    table = load_catalog("lake", **catalog).load_table("bench.rows")
    assert sum(pq.read_metadata(file).num_rows for file in plain.iterdir()) == table.scan().count()
    next_commit = given.batches + sink_batches.WARMING + 1
    attempt = SinkAttempt(name="again", pipeline="bench", commit=next_commit, run=1)
    with closing(open_writer(attempt, 0)) as writer:
        for batch in pa.Table.from_pylist([SAMPLE]).to_batches():
            writer.write(batch)
        written = [writer.finish()]
    commits(committer, written, next_commit, given.commits - next_commit)
    timed.time(f"table of {given.commits:,} commits", committer, written, given.commits)
    next_commit = given.commits + COMMITS
    grow(table.refresh(), given.snapshots)
    commits(committer, written, next_commit, 1)  # the first one encodes all snapshots
    timed.time(f"table of {given.snapshots:,} snapshots", committer, written, next_commit + 1)
    next_commit += COMMITS + 1
    table.refresh()
    table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()
    timed.time("when they have expired", committer, written, next_commit)
    committer.close()
    return seconds, timed


def main() -> None:
    parser = sink_batches.arguments(__doc__)
    parser.add_argument("--commits", type=int, default=1000, help="of the grown table (default: %(default)s)")
    parser.add_argument("--snapshots", type=int, default=10_000, help="of the old table (default: %(default)s)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds, timed = measure(Path(folder), given)
    result, ratio = sink_batches.describe(given, seconds, "Parquet")
    for name, figure in (("median", statistics.median), ("least", min), ("most", max)):
        result[f"milliseconds a commit ({name})"] = {
            kind: round(figure(values), 1) for kind, values in timed.milliseconds.items()
        }
    result["CPU milliseconds a commit"] = timed.cpu
    sink_batches.publish("iceberg.json", {**result, "goal": [GOAL, GOAL_MILLISECONDS]}, seconds)
    slowest = max(statistics.median(values) for values in timed.milliseconds.values())
    raise SystemExit(0 if ratio >= GOAL and slowest <= GOAL_MILLISECONDS else 1)


if __name__ == "__main__":
    main()

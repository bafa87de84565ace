"""How long a savepoint takes, and what it does to the query beside it, against ``cp -r`` of the same checkpoint.

For each size of state: a query builds it in its first batch and goes on with small batches, one after the other. Beside
it, in turn: a savepoint, as a driver takes it; ``cp -r`` of the checkpoint, and what it takes to have that copy on disk
too, as a savepoint is; ``cp -r`` of no more than the files that the savepoint holds.

Run: ``make bench-savepoint``. The goals are a tenth of ``cp -r``, and no batch later by more than a batch's time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.ledger.records import CommitRecord, LedgerPointer
from airflow_provider_exactlyonce.streaming import StateBackend
from benchmarks.local_session import open_session

PAYLOAD_BYTES = 1024
SMALL_ROWS = 500
RETAINED_BATCHES = 40  # Spark keeps the files of 100: these are on the way there
RETAINED_BYTES = 4 << 30  # what batches of much state leave would fill the disk
QUIET_BATCHES = 3
PATIENCE_SECONDS = 900.0
SETTINGS = {
    **StateBackend.rocksdb().conf,
    "spark.driver.memory": "3g",
    "spark.sql.shuffle.partitions": "4",
}


class Query:
    """A query with state of ``rows`` x 1 KB, made in its first batch; then batches of a few rows, without a pause."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.ends: list[float] = []
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self._spark = spark
        self._rows = rows
        self._writer(rows).trigger(once=True).start().awaitTermination()
        self.query = self._writer(SMALL_ROWS).trigger(processingTime="0 seconds").start()

    def _writer(self, rows_per_batch: int) -> DataStreamWriter:
        numbers = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows_per_batch)
        events = numbers.option("numPartitions", 2).load().select((F.col("value") % self._rows).alias("id"))
        words = [F.unhex(F.sha2(F.concat_ws("-", "id", F.lit(word)), 512)) for word in range(PAYLOAD_BYTES // 64)]
        state = events.groupBy("id").agg(F.max(F.concat(*words)).alias("payload"))
        writer = state.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint.path))
        return writer.foreachBatch(self._batch)

    def _batch(self, frame: DataFrame, number: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        self.ends.append(time.monotonic())

    def wait_for(self, batches: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.ends) < batches:
            if self.query.exception() is not None or time.monotonic() > deadline:
                raise SystemExit(f"batch {batches} did not end: {self.query.exception()}")
            time.sleep(0.02)

    def wait_for_more(self) -> None:
        self.wait_for(len(self.ends) + QUIET_BATCHES)

    def gaps(self, intervals: Sequence[tuple[float, float]]) -> list[float]:
        """Return the times between the ends of batches, of those that touch one of the intervals."""
        return [
            later - earlier
            for earlier, later in itertools.pairwise(self.ends)
            if any(later > since and earlier < until for since, until in intervals)
        ]


def record_of(checkpoint: Checkpoint, batch: int) -> CommitRecord:
    """Return what a ledger would have of a batch."""
    offsets = checkpoint.offsets(batch)
    assert offsets is not None
    return CommitRecord(
        pipeline="bench",
        commit=batch + 1,
        lineage=str(checkpoint.query_id()),
        batch=batch,
        run=1,
        version="bench",
        source={},
        source_topic_ids={},
        sink={},
        offsets=offsets.text,
        watermark=0,
        batch_timestamp=0,
        rows=0,
        digest=0,
        producer_id=0,
        epoch=0,
        started=0,
        committed=0,
        before=LedgerPointer(),
    )


HEADER = (
    "                               savepoint      checkpoint    cp -r  savepoint/cp  cp -r of    "
    " from batch to batch\n"
    "   state          bytes  files    median           bytes   median   plain flushed its files  usual longest"
    "  saving    cp -r"
)


@dataclass
class Timings:
    """One thing that was done beside a query, several times."""

    intervals: list[tuple[float, float]] = field(default_factory=list)

    def time(self, work: Callable[[], None]) -> None:
        began = time.monotonic()
        work()
        self.intervals.append((began, time.monotonic()))

    @property
    def seconds(self) -> list[float]:
        return [ended - began for began, ended in self.intervals]

    def figures(self, query: Query) -> dict[str, Any]:
        gaps = query.gaps(self.intervals)
        return {"seconds": self.seconds, "longest_gap_seconds": max(gaps), "gaps_seconds": gaps}


def flush(directory: Path) -> None:
    subprocess.run(["find", directory, "-exec", "sync", "{}", "+"], check=True)


def empty(directory: Path) -> None:
    """Free the space of files, and keep them: ext4 looks past each inode that was deleted within the last minute."""
    for file in directory.rglob("*"):
        if file.is_file():
            os.truncate(file, 0)


def copy(source: Path, target: Path) -> None:
    """Copy as a shell would; what vanishes beside it, such as Spark's temporary files, is left out."""
    subprocess.run(["cp", "-r", source, target], check=False, stderr=subprocess.DEVNULL)


def measure(spark: SparkSession, folder: Path, megabytes: int, rounds: int) -> dict[str, Any]:
    folder.mkdir()
    query = Query(spark, folder, megabytes * 1024 * 1024 // PAYLOAD_BYTES)
    query.wait_for(1 + min(RETAINED_BATCHES, RETAINED_BYTES // (megabytes << 20)))
    store, savepoints = Savepoints(folder / "savepoints"), []
    quiet, saving, copying, flushing, copying_needed = (Timings() for _ in range(5))

    def save() -> None:
        batch = query.checkpoint.newest_commit()
        assert batch is not None
        savepoints.append(store.take(query.checkpoint, batch, record_of(query.checkpoint, batch), None))

    for _ in range(rounds):
        quiet.time(query.wait_for_more)
        saving.time(save)
        query.wait_for_more()
        needed = store.directory / savepoints[-1].id
        for timings, source in ((copying, query.checkpoint.path), (copying_needed, needed)):
            target = folder / f"copy-{len(list(folder.iterdir()))}"
            timings.time(partial(copy, source, target))
            if timings is copying:
                flushing.time(partial(flush, target))
            empty(target)
            query.wait_for_more()
    query.query.stop()
    defects = [defect for savepoint in savepoints for defect in store.verify(savepoint.id)]
    assert defects == [], "the savepoints are whole"
    usual = query.gaps([(began + 0.001, ended - 0.001) for began, ended in quiet.intervals])
    return {
        "megabytes": megabytes,
        "checkpoint_bytes": sum(file.stat().st_size for file in query.checkpoint.path.rglob("*") if file.is_file()),
        "savepoint_bytes": [savepoint.size for savepoint in savepoints],
        "savepoint_files": [len(savepoint.files) for savepoint in savepoints],
        "usual_gaps_seconds": usual,
        "savepoint": saving.figures(query),
        "batches": len(query.ends),
        "cp": copying.figures(query),
        "flush_of_cp_seconds": flushing.seconds,
        "cp_of_what_the_savepoint_holds": copying_needed.figures(query),
    }


def line(found: dict[str, Any]) -> str:
    """Return one size's figures as a line of the table."""
    saved, cp = found["savepoint"], found["cp"]
    save, copied = statistics.median(saved["seconds"]), statistics.median(cp["seconds"])
    on_disk = statistics.median(map(sum, zip(cp["seconds"], found["flush_of_cp_seconds"], strict=True)))
    needed = statistics.median(found["cp_of_what_the_savepoint_holds"]["seconds"])
    usual = found["usual_gaps_seconds"]
    return (
        f"{found['megabytes']:>5} MB  {found['savepoint_bytes'][-1]:>13,}  {found['savepoint_files'][-1]:>5}  "
        f"{save:>6.3f}s  {found['checkpoint_bytes']:>14,}  {copied:>6.3f}s  {save / copied:>6.1%}  "
        f"{save / on_disk:>6.1%}  {needed:>6.3f}s  {statistics.median(usual):>5.2f}s {max(usual):>6.2f}s  "
        f"{saved['longest_gap_seconds']:>6.2f}s  {cp['longest_gap_seconds']:>6.2f}s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1024], help="sizes of state")
    parser.add_argument("--rounds", type=int, default=5, help="savepoints and copies of each size (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures")
    parser.add_argument("--folder", type=Path, help="where checkpoints are made (default: a temporary folder)")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = open_session(SETTINGS)
    results = []
    print(HEADER)
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for megabytes in given.megabytes:
            results.append(measure(spark, Path(folder) / str(megabytes), megabytes, given.rounds))
            print(line(results[-1]), flush=True)
    given.output.mkdir(exist_ok=True)
    (given.output / "savepoint.json").write_text(json.dumps(results, indent=1))
    print(f"raw figures: {given.output}/savepoint.json")
    spark.stop()


if __name__ == "__main__":
    main()

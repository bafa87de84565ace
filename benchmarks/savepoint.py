"""How long a savepoint takes, and what it does to the query beside it, against ``cp -r`` of the same checkpoint.

For each size of state: a query builds it in its first batch and goes on with small batches; meanwhile two savepoints
are taken as a driver takes them, the second of which knows the first; then the checkpoint is copied. Run it with
``make bench-savepoint``; the goals are a tenth of ``cp -r``, and no batch that is later by more than a batch's time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoint, Savepoints
from airflow_provider_exactlyonce.ledger.records import CommitRecord, Place
from airflow_provider_exactlyonce.streaming import StateBackend

PAYLOAD_BYTES = 1024
SMALL_ROWS = 500
WARM_UP_BATCHES = 3
PATIENCE_SECONDS = 900.0


class Query:
    """A query with state of about ``rows`` x 1 KB, fed with one file a batch."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int) -> None:
        self.ends: list[float] = []
        self.checkpoint = Checkpoint(folder / "checkpoint")
        self._input = folder / "in"
        self._input.mkdir()
        self._spark = spark
        self._fed = 0
        self._more = threading.Event()
        self._feed(rows)
        events = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(str(self._input))
        words = [F.unhex(F.sha2(F.concat_ws("-", "id", F.lit(word)), 512)) for word in range(PAYLOAD_BYTES // 64)]
        state = events.groupBy("id").agg(F.max(F.concat(*words)).alias("payload"))
        writer = state.writeStream.outputMode("update").option("checkpointLocation", str(self.checkpoint.path))
        self.query = writer.foreachBatch(self._batch).trigger(processingTime="0 seconds").start()

    def _feed(self, rows: int) -> None:
        hidden = self._input / f".{self._fed}"
        self._spark.range(rows).write.json(str(hidden))
        (part,) = sorted(hidden.glob("part-*.json"))[:1]
        if rows > SMALL_ROWS:  # one file, so that it is one batch
            with part.open("ab") as whole:
                for other in sorted(hidden.glob("part-*.json"))[1:]:
                    whole.write(other.read_bytes())
        part.rename(self._input / f"{self._fed:05d}.json")
        shutil.rmtree(hidden)
        self._fed += 1

    def _batch(self, frame: DataFrame, number: int) -> None:
        frame.write.format("noop").mode("overwrite").save()
        self.ends.append(time.monotonic())

    def feed_small(self, files: int) -> None:
        lines = "\n".join(json.dumps({"id": number}) for number in range(SMALL_ROWS))
        for _ in range(files):
            hidden = self._input / f".{self._fed}"
            hidden.write_text(lines)
            hidden.rename(self._input / f"{self._fed:05d}.json")
            self._fed += 1

    def wait_for(self, batches: int) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.ends) < batches:
            if self.query.exception() is not None or time.monotonic() > deadline:
                raise SystemExit(f"batch {batches} did not end: {self.query.exception()}")
            time.sleep(0.02)

    def gaps(self, since: float, until: float) -> list[float]:
        """Return the times between the ends of batches, as far as they touch an interval."""
        pairs = zip(self.ends, self.ends[1:], strict=False)
        return [later - earlier for earlier, later in pairs if later > since and earlier < until]


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
        before=Place(),
    )


def timed_savepoint(store: Savepoints, query: Query) -> tuple[Savepoint, float, float]:
    """Take a savepoint of the newest batch; returns it, and when it began and ended."""
    began = time.monotonic()
    batch = query.checkpoint.newest_commit()
    assert batch is not None
    taken = store.take(query.checkpoint, batch, record_of(query.checkpoint, batch), None)
    return taken, began, time.monotonic()


def measure(spark: SparkSession, folder: Path, megabytes: int) -> dict[str, Any]:
    folder.mkdir()
    query = Query(spark, folder, megabytes * 1024 * 1024 // PAYLOAD_BYTES)
    query.wait_for(1)
    query.feed_small(60)
    query.wait_for(1 + WARM_UP_BATCHES)
    settled = time.monotonic()
    query.wait_for(len(query.ends) + 8)
    usual = query.gaps(settled, time.monotonic())
    store = Savepoints(folder / "savepoints")
    figures: dict[str, Any] = {"megabytes": megabytes, "usual_gap_seconds": statistics.median(usual)}
    figures["usual_gap_longest_seconds"] = max(usual)
    for name in ("first", "second"):
        query.wait_for(len(query.ends) + 2)
        taken, began, ended = timed_savepoint(store, query)
        query.wait_for(len(query.ends) + 2)
        gaps = query.gaps(began, ended)
        figures[name] = {
            "seconds": ended - began,
            "bytes": taken.size,
            "files": len(taken.files),
            "longest_gap_seconds": max(gaps),
        }
        assert store.verify(taken.id) == [], "the savepoint is whole"
    query.query.stop()
    began = time.monotonic()
    subprocess.run(["cp", "-r", query.checkpoint.path, folder / "copy"], check=True)
    figures["cp_seconds"] = time.monotonic() - began
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, nargs="+", default=[10, 100, 1024], help="sizes of state")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures")
    parser.add_argument("--folder", type=Path, help="where checkpoints are made (default: a temporary folder)")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        **StateBackend.rocksdb().conf,
        "spark.driver.memory": "3g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "4",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    results = []
    print("   state          bytes  files    first   second    cp -r  first/cp  gap usual, longest during")
    for megabytes in given.megabytes:
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            found = measure(spark, Path(folder) / "run", megabytes)
        results.append(found)
        first, second, cp_seconds = found["first"], found["second"], found["cp_seconds"]
        gap = max(first["longest_gap_seconds"], second["longest_gap_seconds"])
        print(
            f"{megabytes:>5} MB  {first['bytes']:>13,}  {first['files']:>5}  {first['seconds']:>6.3f}s  "
            f"{second['seconds']:>6.3f}s  {cp_seconds:>6.2f}s  {first['seconds'] / cp_seconds:>8.1%}  "
            f"{found['usual_gap_seconds']:.2f}s, {gap:.2f}s",
            flush=True,
        )
    given.output.mkdir(exist_ok=True)
    (given.output / "savepoint.json").write_text(json.dumps(results, indent=1))
    spark.stop()


if __name__ == "__main__":
    main()

"""Where a source reads: Spark's connector in the JVM, or a source in the Python worker.

One session and one topic; the readers take turns, and each has had a first run before any is counted. All read the
same JSON records, decode them, filter and project them as the job ``json`` of ``make bench-peers``, and hand the rows
to a Python worker, as the sink's rows are. There they are counted and summed up, and compared with what was fed.

Run: ``make bench-source``, or ``python benchmarks/source.py --help``.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.job.json_values import JsonValues
from benchmarks.engines import worker_source
from benchmarks.engines.assignment import COLUMNS, HEAP_MEGABYTES
from benchmarks.engines.kafka_clients import CONSUMER, kafka_options
from benchmarks.engines.process_tree import cpu_seconds
from benchmarks.engines.queries import projected
from benchmarks.engines.runs import Runs
from benchmarks.engines.workloads import WORKLOADS, Workload
from benchmarks.local_session import open_session

WORKLOAD: Final = WORKLOADS[0]  # the job ``json``
WARM_UP_ROUNDS: Final = 1
SLOW_BATCHES: Final = 2  # the first ones of a query, whose workers start
PATIENCE_SECONDS: Final = 300.0


def connected(spark: SparkSession, servers: str) -> DataFrame:
    """Return the records of Spark's connector, tuned as this project sets it."""
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers)
    reader = reader.option("subscribe", WORKLOAD.source).option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", WORKLOAD.batch_rows)
    return reader.options(**kafka_options({**CONSUMER, "isolation.level": "read_committed"})).load()


def in_blocks(spark: SparkSession, servers: str) -> DataFrame:
    return JsonValues(cast("StructType", StructType.fromDDL(COLUMNS))).fitted(connected(spark, servers))


def by_from_json(spark: SparkSession, servers: str) -> DataFrame:
    event = F.from_json(F.col("value").cast("string"), COLUMNS)
    return connected(spark, servers).select(event.alias("event")).select("event.*")


def in_the_worker(spark: SparkSession, servers: str) -> DataFrame:
    spark.dataSource.register(worker_source.WorkerSource)
    options = {
        worker_source.SERVERS: servers,
        worker_source.TOPIC: WORKLOAD.source,
        worker_source.BATCH_ROWS: str(WORKLOAD.batch_rows),
    }
    return spark.readStream.format(worker_source.NAME).schema(COLUMNS).options(**options).load()


READERS: Final[Mapping[str, Callable[[SparkSession, str], DataFrame]]] = {
    "this project: connector, blocks": in_blocks,
    "a worker that reads, blocks": in_the_worker,
    "connector, from_json": by_from_json,
}


def summed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the number of rows, the sum of their numbers, and that of their hundredths; called in a task."""
    for batch in batches:
        sums = [pc.sum(batch.column("event_id")).as_py(), pc.sum(batch.column("total")).as_py()]
        if batch.num_rows:
            columns = [pa.array([value], pa.int64()) for value in (batch.num_rows, sums[0], int(sums[1] * 100))]
            yield pa.RecordBatch.from_arrays(columns, ["n", "numbers", "hundredths"])


def run(spark: SparkSession, frame: DataFrame, folder: Path, broker_pid: int) -> dict[str, float]:
    """Read the topic to its end once; returns rows and CPU a million rows.

    :raises RuntimeError: when other rows came out than were fed
    """
    taken = [0, 0, 0]

    def take(batch: DataFrame, _: int) -> None:
        for row in batch.mapInArrow(summed, "n BIGINT, numbers BIGINT, hundredths BIGINT").collect():
            taken[:] = [before + more for before, more in zip(taken, row, strict=True)]

    expected = expected_sums(WORKLOAD)
    began = spent(broker_pid)
    writer = projected(frame).writeStream.foreachBatch(take)
    query = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while taken[0] < expected[0] and query.isActive and time.monotonic() < deadline:
        time.sleep(0.05)
    query.processAllAvailable()
    cpu = spent(broker_pid) - began
    progress = [trigger for trigger in query.recentProgress if trigger.numInputRows]
    query.stop()
    shutil.rmtree(folder)
    if taken != expected:
        raise RuntimeError(f"rows, numbers and hundredths are {taken} instead of {expected}")
    counted = [trigger for trigger in progress[SLOW_BATCHES:] if trigger.numInputRows >= WORKLOAD.batch_rows]
    seconds = sum(trigger.durationMs["triggerExecution"] for trigger in counted) / 1_000
    return {
        "rows_per_second": sum(trigger.numInputRows for trigger in counted) / seconds,
        "cpu_seconds_per_million_rows": cpu * 1_000_000 / WORKLOAD.rows,
    }


def expected_sums(workload: Workload) -> list[int]:
    rows = workload.expected()
    return [len(rows), int(rows[:, 0].sum()), int(rows[:, 3].sum())]


def spent(broker_pid: int) -> float:
    """Return the CPU seconds of this process, its JVM and the workers."""
    return cpu_seconds(os.getpid()) - cpu_seconds(broker_pid)


def table(figures: Mapping[str, list[dict[str, float]]]) -> str:
    lines = [f"{'what reads and decodes':<34}{'rows/s':>10}{'CPU s / M rows':>17}"]
    for reader, rounds in figures.items():
        rows, cpu = (
            statistics.median(measured[name] for measured in rounds)
            for name in ("rows_per_second", "cpu_seconds_per_million_rows")
        )
        lines.append(f"{reader:<34}{rows:>10,.0f}{cpu:>17.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds (default: 5)")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given.output.mkdir(exist_ok=True)
    figures: dict[str, list[dict[str, Any]]] = {reader: [] for reader in READERS}
    with tempfile.TemporaryDirectory(prefix="bench-") as work, EmbeddedBroker(Path(work) / "broker") as broker:
        Runs(broker, Path(work)).feed(WORKLOAD)
        spark = open_session(
            {
                **settings.submit_settings({}),
                "spark.jars": ",".join(map(str, spark_connector_jars())),
                "spark.driver.memory": f"{HEAP_MEGABYTES}m",
            }
        )
        for number in range(WARM_UP_ROUNDS + given.rounds):
            turn = number % len(READERS)
            readers = list(READERS.items())
            for reader, read in readers[turn:] + readers[:turn]:
                frame = read(spark, broker.bootstrap_servers)
                measured = run(spark, frame, Path(work, "run"), broker.pid)
                if number >= WARM_UP_ROUNDS:
                    figures[reader].append({**measured, "load": os.getloadavg()[0]})
            (given.output / "source.json").write_text(json.dumps(figures, indent=1))
        spark.stop()
    print(table(figures))
    print(f"raw figures: {given.output}/source.json")


if __name__ == "__main__":
    main()

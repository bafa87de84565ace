"""Measure what keyed state costs: Spark's own aggregation, hand-written transformWithState, and this project's layers.

Each variant sums a column by key over the same files, in one session and turn by turn; a variant's figure is the median
of its batches, the first of each query left out. It wants two idle cores: look at the load in its answer.

    python benchmarks/state.py --rows 500000 --keys 10000 200
"""

from __future__ import annotations

import argparse
import json
import operator
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from airflow_provider_exactlyonce.state import (
    Aggregation,
    BroadcastProcessFunction,
    BroadcastState,
    Context,
    KeyedProcessFunction,
    ReducingState,
)
from airflow_provider_exactlyonce.streaming import connect, key_by, settings
from benchmarks.local_session import open_session

OUTPUT = "k BIGINT, total BIGINT"


class HandWritten(StatefulProcessor):
    """As one writes it: one read, one write and one row a key and batch."""

    def init(self, handle: Any) -> None:
        self._total = handle.getValueState("total", "value BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
        stored = self._total.get()
        total = stored[0] if stored else 0
        for row in rows:
            total += row.v
        self._total.update((total,))
        yield Row(k=key[0], total=total)

    def close(self) -> None:
        pass


class Function(KeyedProcessFunction[Any, Any]):
    output = OUTPUT
    total: ReducingState[int] = ReducingState("BIGINT", reduce=operator.add)

    def process_element(self, value: Any, context: Context) -> None:
        self.total.add(value.v)

    def finish_batch(self, context: Context) -> Iterator[Any]:
        yield context.key.k, self.total.get()


REDUCTION = Aggregation.reducing("v", "BIGINT", operator.add)
ROW_BY_ROW = Aggregation(
    accumulator="BIGINT",
    create=int,
    add=lambda before, row: before + row.v,
    get=lambda total: (total,),
    output="total BIGINT",
)

VARIANTS: Mapping[str, Callable[[DataFrame], DataFrame]] = {
    "spark sql": lambda frame: frame.groupBy("k").agg(F.sum("v").alias("total")),
    "aggregate, sql": lambda frame: key_by(frame, "k").aggregate("sum(v) AS total"),
    "transformWithState": lambda frame: frame.groupBy("k").transformWithState(HandWritten(), OUTPUT, "update", "none"),
    "process": lambda frame: key_by(frame, "k").process(Function()),
    "aggregate, python": lambda frame: key_by(frame, "k").aggregate(ROW_BY_ROW),
    "aggregate, python, merged": lambda frame: key_by(frame, "k").aggregate(REDUCTION),
}
#: They take a tenth of the others' time, so each round measures them more often.
QUICK = ("spark sql", "aggregate, sql")
QUICK_TIMES = 3
#: What each is compared with, and the least that it may reach of it.
FLOORS: Mapping[str, tuple[str, float]] = {
    "aggregate, sql": ("spark sql", 0.9),
    "process": ("transformWithState", 0.9),
}


class Ruled(BroadcastProcessFunction[Any, Any, Any]):
    """Looks a rule up for each row."""

    output = "name STRING, known BOOLEAN"
    rules: BroadcastState[str, str] = BroadcastState("STRING", "STRING")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        yield value.name, self.rules.contains(value.name)

    def process_broadcast_element(self, value: Any, context: Context) -> None:
        self.rules.put(value.name, value.text)


#: What 1 MB of rules may cost a batch.
RULES_MILLISECONDS_MAX = 50


@dataclass(frozen=True)
class Load:
    rows: int
    keys: int
    batches: int
    rounds: int


def write(spark: SparkSession, load: Load, folder: Path) -> None:
    """Write each batch as two files of equal size, which two tasks read."""
    rows = spark.range(load.rows).select((F.xxhash64("id") % load.keys).alias("k"), (F.col("id") % 1000).alias("v"))
    rows.repartition(2).write.parquet(str(folder / "rows"))
    files = sorted((folder / "rows").glob("*.parquet"))
    (folder / "in").mkdir()
    for batch in range(load.batches):
        for number, file in enumerate(files):
            copy = folder / "in" / f"{batch}-{number}.parquet"
            os.link(file, copy)


def cpu_seconds() -> float:
    """Return what this process and all below it have used: JVM and Python workers."""
    parents, used = {}, {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended meanwhile
                continue
            parents[int(folder.name)] = int(fields[1])
            used[int(folder.name)] = sum(map(int, fields[11:15]))  # its own, and that of those that it waited for
    pids = {os.getpid()}
    while children := {pid for pid, parent in parents.items() if parent in pids} - pids:
        pids |= children
    return sum(used[pid] for pid in pids) / os.sysconf("SC_CLK_TCK")


@dataclass
class Speed:
    """Rows a second of each batch but the first, and rows a second of CPU over them."""

    wall: list[float]
    cpu: list[float]


def speed(spark: SparkSession, load: Load, folder: Path, variant: str) -> Speed:
    frame = spark.readStream.schema("k BIGINT, v BIGINT").option("maxFilesPerTrigger", 2).parquet(str(folder / "in"))
    with tempfile.TemporaryDirectory(dir=folder) as checkpoint:
        stream = (
            VARIANTS[variant](frame)
            .writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        while not stream.recentProgress and stream.isActive:
            stream.awaitTermination(0.01)  # type: ignore[arg-type]  # PySpark takes fractions
        before = cpu_seconds()
        stream.awaitTermination()
        used = cpu_seconds() - before
        batches = [progress for progress in stream.recentProgress if progress.numInputRows]
    assert len(batches) == load.batches, f"{variant}: {len(batches)} batches"
    counted = batches[1:]
    return Speed(
        [progress.numInputRows * 1000 / progress.durationMs["addBatch"] for progress in counted],
        [sum(progress.numInputRows for progress in counted) / used],
    )


def rules_milliseconds(spark: SparkSession, rules: int, batches: int) -> list[float]:
    """Return how long batches of 1,000 rows take after one with so many rules of 100 bytes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "in").mkdir()
        names = F.lpad(F.col("id").cast("string"), 20, "0").alias("name")
        for batch in range(batches + 1):
            is_rule = batch == 0
            rows = spark.range(rules if is_rule else 1000).select(F.lit(is_rule).alias("is_rule"), names)
            rows = rows.withColumn("text", F.lit("x" * 80) if is_rule else F.lit(""))
            rows.coalesce(1).write.parquet(str(folder / f"{batch}"))
            (file,) = (folder / f"{batch}").glob("*.parquet")
            file.rename(folder / "in" / f"{batch}.parquet")
            os.utime(folder / "in" / f"{batch}.parquet", (1_700_000_000 + batch,) * 2)
        schema = "is_rule BOOLEAN, name STRING, text STRING"
        frame = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(folder / "in"))
        answered = connect(frame.where("NOT is_rule").select("name"), frame.where("is_rule").select("name", "text"))
        writer = answered.process(Ruled()).writeStream.format("noop").trigger(availableNow=True)
        stream = writer.option("checkpointLocation", str(folder / "checkpoint")).start()
        stream.awaitTermination()
        return [float(progress.durationMs["addBatch"]) for progress in stream.recentProgress if progress.batchId][2:]


def measure(spark: SparkSession, load: Load) -> dict[str, Speed]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(spark, load, folder)
        speeds = {variant: Speed([], []) for variant in VARIANTS}
        turn_variants = [*VARIANTS, *QUICK * (QUICK_TIMES - 1)]
        for turn in range(load.rounds):
            for variant in turn_variants if turn % 2 == 0 else reversed(turn_variants):
                measured = speed(spark, load, folder, variant)
                speeds[variant].wall += measured.wall
                speeds[variant].cpu += measured.cpu
    return speeds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=500_000, help="of a batch")
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 200])
    parser.add_argument("--batches", type=int, default=3, help="of a query; the first is not counted")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = open_session({**settings.submit_settings({}), "spark.sql.shuffle.partitions": "2"}, log_level="OFF")
    figures: dict[str, Any] = {"load": os.getloadavg()[0], "rows_a_second": {}, "rows_a_cpu_second": {}}
    fails = []
    for keys in given.keys:
        load = Load(rows=given.rows, keys=keys, batches=given.batches, rounds=given.rounds)
        speeds = measure(spark, load)
        wall = {variant: statistics.median(measured.wall) for variant, measured in speeds.items()}
        cpu = {variant: statistics.median(measured.cpu) for variant, measured in speeds.items()}
        figures["rows_a_second"][str(keys)] = {variant: round(median) for variant, median in wall.items()}
        figures["rows_a_cpu_second"][str(keys)] = {variant: round(median) for variant, median in cpu.items()}
        print(f"{given.rows:,} rows and {keys:,} keys a batch: rows a second, and rows a second of CPU")
        for variant in VARIANTS:
            base, floor = FLOORS.get(variant, (variant, 0.0))
            shares = wall[variant] / wall[base], cpu[variant] / cpu[base]
            comparison = f"   {shares[0]:.2f} and {shares[1]:.2f} of {base}" if base != variant else ""
            print(f"  {variant:28}{wall[variant]:12,.0f}{cpu[variant]:12,.0f}{comparison}", flush=True)
            if max(shares) < floor:  # a busy machine spoils the one, threads that compile the other
                fails.append(f"{variant} with {keys:,} keys: {shares[0]:.2f} of {base}, at least {floor} is wanted")
    batches: dict[int, list[float]] = {1: [], 10_000: []}
    for turn in range(2 * given.rounds):
        for rules in sorted(batches, reverse=turn % 2 == 1):
            batches[rules] += rules_milliseconds(spark, rules, 10)
    few, many = map(statistics.median, batches.values())
    figures["rules_milliseconds"] = many - few
    print(f"1 MB of rules: {many - few:.0f} ms a batch, of {many:.0f} ms")
    if figures["rules_milliseconds"] > RULES_MILLISECONDS_MAX:
        fails.append(f"rules: at most {RULES_MILLISECONDS_MAX} ms are wanted")
    print(
        f"load at the start {figures['load']:.1f}; median of at least {(given.batches - 1) * given.rounds} batches each"
    )
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(*fails, sep="\n", end="\n" if fails else "")
    spark.stop()
    return 1 if fails else 0


if __name__ == "__main__":
    sys.exit(main())

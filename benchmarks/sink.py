"""The sink against Spark's own Kafka sink: one broker, one session, one run, the variants interleaved.

Each variant is a stream that stays; they are fed in turn, a batch each. What is measured is Spark's own ``addBatch``
and ``triggerExecution`` of each trigger. The topics are read back by Spark's Kafka source, at read_committed, and rows
and content hash are compared with the input.

Run: ``make bench-sink``, or ``python benchmarks/sink.py --help``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from benchmarks.local_session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FILES = 4
TUNED = {"kafka.linger.ms": "50", "kafka.batch.size": "1048576"}
SPARK, SPARK_TUNED, OURS = "spark", "spark tuned", "exactly once"
VARIANTS = (SPARK, SPARK_TUNED, OURS)
WARM_UP_ROUNDS = 8  # a stream runs for days: the JVM's compilers have done their work
CHECKED_BYTES = 500_000_000


@dataclass(frozen=True, kw_only=True)
class Case:
    """One cell of the matrix.

    :param size: bytes of a value; the key has 16 more
    :param lengths: ``fixed`` or ``variable`` (half to one and a half of the size)
    """

    source: str = "parquet"
    rows: int = 100_000
    size: int = 100
    lengths: str = "fixed"
    partitions: int = 4
    codec: str = "none"
    keyed: bool = True

    def __str__(self) -> str:
        keyed = "keyed" if self.keyed else "keyless"
        return (
            f"{self.rows:>9,} rows, {self.size:>6,} B {self.lengths:<8} {self.partitions:>2} partitions, "
            f"{self.codec:<4} {keyed:<7} from {self.source}"
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One trigger."""

    variant: str
    add_batch_milliseconds: int
    trigger_milliseconds: int


def all_cases() -> Iterator[Case]:
    """Yield every combination of which a batch takes at most a gigabyte."""
    for source, size, rows, lengths, partitions, codec, keyed in itertools.product(
        ("parquet", "kafka"),
        (100, 1_000, 10_000),
        (1_000, 10_000, 100_000, 1_000_000),
        ("fixed", "variable"),
        (4, 32),
        ("none", "lz4", "zstd"),
        (True, False),
    ):
        if size * rows <= 1_000_000_000:
            yield Case(
                source=source,
                rows=rows,
                size=size,
                lengths=lengths,
                partitions=partitions,
                codec=codec,
                keyed=keyed,
            )


def usual_cases() -> Iterator[Case]:
    """Yield one factor at a time around the usual case."""
    base = Case()
    for rows in (100_000, 1_000_000, 10_000, 1_000):  # small batches once the JVM's compilers have seen large ones
        yield replace(base, rows=rows)
    yield replace(base, lengths="variable")
    yield replace(base, keyed=False)
    yield replace(base, partitions=32)
    yield replace(base, source="kafka")
    for codec in ("lz4", "zstd"):
        yield replace(base, codec=codec)
    for size, rows in ((1_000, 100_000), (10_000, 20_000)):
        for codec in ("none", "lz4", "zstd"):
            yield replace(base, size=size, rows=rows, codec=codec)
        yield replace(base, size=size, rows=rows, lengths="variable")
        yield replace(base, size=size, rows=rows, source="kafka")


class Bench:
    """A broker, a session and a work directory."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, work: Path) -> None:
        from confluent_kafka.admin import AdminClient

        self.spark, self.broker, self.work = spark, broker, work
        self.config = {"bootstrap.servers": broker.bootstrap_servers}
        self.admin = AdminClient(dict(self.config))
        self.listener = SequencerListener(settings.SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1"))

    def measure(self, case: Case, rounds: int) -> list[Measured]:
        """Run one case: three streams that stay, fed in turn with one batch each; the first rounds aren't counted."""
        name = f"bench-{uuid.uuid4().hex[:8]}"
        folder = self.work / name
        expected = self._make_input(case, folder)
        topics = {variant: f"{name}-{number}" for number, variant in enumerate(VARIANTS)}
        self._create_topics([*topics.values()], case.partitions)
        run, sink = self._sink(case, name, topics[OURS], folder)
        measured, queries, unread = [], {}, 0
        newest = dict.fromkeys(VARIANTS, -1)
        try:
            for variant in VARIANTS:
                queries[variant] = self._start(case, folder, variant, topics[variant], sink)
            for number in range(WARM_UP_ROUNDS + rounds):
                turn = number % len(VARIANTS)
                for variant in VARIANTS[turn:] + VARIANTS[:turn]:
                    self._feed(case, folder, variant, number)
                    newest[variant], measurement = self._batch(queries[variant], case, variant, newest[variant])
                    if number >= WARM_UP_ROUNDS:
                        measured.append(measurement)
                unread += 1
                if unread * case.rows * case.size > CHECKED_BYTES or number == WARM_UP_ROUNDS + rounds - 1:
                    for variant in VARIANTS:
                        self._check(topics[variant], expected, unread, case, variant)
                    unread = 0
        finally:
            for query in queries.values():
                query.stop()
            run.close()
            sources = [self._source_topic(folder, variant) for variant in VARIANTS] if case.source == "kafka" else []
            self._delete_topics([*topics.values(), *sources])
            shutil.rmtree(folder)
        return measured

    def _make_input(self, case: Case, folder: Path) -> tuple[int, int]:
        """Write the batch that all variants write; returns (rows, content hash)."""
        from pyspark.sql import functions as F

        words = case.size // 16 + 1
        text = F.concat(
            *[F.substring(F.sha1(F.concat("id", F.lit(str(word)))), 1, 16) for word in range(min(words, 8))]
        )
        value = F.substring(F.repeat(text, case.size // 128 + 2), F.lit(1), F.lit(case.size))
        if case.lengths == "variable":
            long = F.substring(F.repeat(text, 2 * case.size // 128 + 3), F.lit(1), F.lit(2 * case.size))
            value = long.substr(F.lit(1), (F.lit(case.size // 2) + F.col("id") * 7919 % case.size).cast("int"))
        numbers = self.spark.range(case.rows, numPartitions=FILES).withColumn("id", F.col("id").cast("string"))
        rows = numbers.select(F.lpad("id", 16, "k").alias("key"), value.alias("value"))
        rows.write.parquet(str(folder / "rows"))
        rows_written = self.spark.read.parquet(str(folder / "rows"))
        if case.source == "kafka":
            self._create_topics([self._source_topic(folder, variant) for variant in VARIANTS], 4)
        return self._summary(rows_written, case)

    def _summary(self, rows: DataFrame, case: Case) -> tuple[int, int]:
        from pyspark.sql import functions as F

        key = [F.col("key").cast("binary")] if case.keyed else []
        hashed = F.xxhash64(*key, F.col("value").cast("binary")).cast("decimal(38,0)")
        row = rows.agg(F.count("*"), F.sum(hashed)).collect()[0]
        return int(row[0]), int(row[1] or 0)

    def _source_topic(self, folder: Path, variant: str) -> str:
        return f"{folder.name}-source-{VARIANTS.index(variant)}"

    def _feed(self, case: Case, folder: Path, variant: str, number: int) -> None:
        """Give a stream its next batch."""
        if case.source == "kafka":
            rows = self.spark.read.parquet(str(folder / "rows"))
            options = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, **TUNED}
            rows.write.format("kafka").options(**options).option("topic", self._source_topic(folder, variant)).save()
            return
        directory = folder / f"in-{variant}"
        staging = folder / f"next-{variant}"
        staging.mkdir()
        for file in (folder / "rows").glob("*.parquet"):
            os.link(file, staging / file.name)
        staging.rename(directory / f"batch={number}")  # all files at once

    def _stream(self, case: Case, folder: Path, variant: str) -> DataFrame:
        columns = ["key", "value"] if case.keyed else ["value"]
        if case.source == "kafka":
            options = {
                "kafka.bootstrap.servers": self.broker.bootstrap_servers,
                "subscribe": self._source_topic(folder, variant),
                "startingOffsets": "earliest",
                "minOffsetsPerTrigger": str(case.rows),
                "maxTriggerDelay": "1h",
            }
            return self.spark.readStream.format("kafka").options(**options).load().select(*columns)
        directory = folder / f"in-{variant}"
        directory.mkdir()
        reader = self.spark.readStream.schema("key STRING, value STRING, batch INT")
        return reader.parquet(str(directory)).select(*columns)

    def _start(self, case: Case, folder: Path, variant: str, topic: str, sink: BatchTransaction) -> StreamingQuery:
        frame, checkpoint = self._stream(case, folder, variant), folder / f"checkpoint-{variant}"
        if variant == OURS:
            writer = sink.prepare(frame).writeStream.foreachBatch(self._coordinator(sink, checkpoint).process)
        else:
            writer = self._stock(frame.writeStream, case, topic, tuned=variant == SPARK_TUNED)
        return writer.option("checkpointLocation", str(checkpoint)).start()

    def _stock(self, writer: DataStreamWriter, case: Case, topic: str, *, tuned: bool) -> DataStreamWriter:
        options = {"kafka.bootstrap.servers": self.broker.bootstrap_servers, "topic": topic}
        options |= {"kafka.compression.type": case.codec, **(TUNED if tuned else {})}
        return writer.format("kafka").options(**options)

    def _sink(self, case: Case, name: str, topic: str, folder: Path) -> tuple[Run, BatchTransaction]:
        run = Run(
            Home(folder / "home"),
            name,
            RunOptions(config=self.config, token=name, version="bench", transaction_timeout_milliseconds=300_000),
        )
        options = TransactionOptions(definition=KafkaSink(topic, **sink_options(case)))
        targets = preflight.check_topics(run.client, sinks=[topic])
        attempt = BatchAttempt(run, options, targets, self.listener)
        sink = BatchTransaction(attempt, TransactionalWriter(attempt), lambda: False)
        run.start()
        self.lineage = run.lineage.id
        return run, sink

    def _coordinator(self, sink: BatchTransaction, checkpoint: Path) -> CommitCoordinator:
        def plan(number: int) -> Batch:
            offsets = Checkpoint(checkpoint).offsets(number)
            assert offsets is not None
            return Batch(lineage=self.lineage, number=number, offsets=offsets, source={}, source_topic_ids={})

        callbacks = Callbacks(plan=plan, stop_reason=lambda: None, committed=lambda *_: None)
        return CommitCoordinator(sink, callbacks, max_batch_attempts=1)

    def _batch(self, query: StreamingQuery, case: Case, variant: str, before: int) -> tuple[int, Measured]:
        """Wait for the next batch with rows (Kafka's source begins with one without); return its id and what it took.

        :param before: the id of the batch before it
        """
        deadline = time.monotonic() + 300
        while True:
            progress = query.lastProgress
            if progress is not None and progress["batchId"] > before and progress["numInputRows"]:
                number = progress["batchId"]
                if progress["numInputRows"] != case.rows:
                    raise RuntimeError(f"{variant}, {case}: batch {number} has {progress['numInputRows']} rows")
                duration = progress["durationMs"]
                return number, Measured(
                    variant=variant,
                    add_batch_milliseconds=duration["addBatch"],
                    trigger_milliseconds=duration["triggerExecution"],
                )
            if not query.isActive or time.monotonic() > deadline:
                raise RuntimeError(f"{variant}, {case}: {query.exception() or 'no batch within 300 s'}")
            time.sleep(0.1)  # asking costs the driver time that its sink needs

    def _check(self, topic: str, expected: tuple[int, int], batches: int, case: Case, variant: str) -> None:
        """Read so many batches back, compare them, and delete them."""
        from confluent_kafka import TopicPartition
        from confluent_kafka.admin import OffsetSpec

        options = {
            "kafka.bootstrap.servers": self.broker.bootstrap_servers,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "kafka.isolation.level": "read_committed",
        }
        found = self._summary(self.spark.read.format("kafka").options(**options).load(), case)
        wanted = expected[0] * batches, expected[1] * batches
        if found != wanted:
            raise RuntimeError(f"{variant}, {case}: wrote (rows, hash) {found}, expected {wanted}")
        topic_partitions = [TopicPartition(topic, partition) for partition in range(case.partitions)]
        ends = self.admin.list_offsets({topic_partition: OffsetSpec.latest() for topic_partition in topic_partitions})
        upto = [
            TopicPartition(topic_partition.topic, topic_partition.partition, ends[topic_partition].result().offset)
            for topic_partition in topic_partitions
        ]
        for future in self.admin.delete_records(upto).values():
            future.result(30)

    def _create_topics(self, names: list[str], partitions: int) -> None:
        from confluent_kafka.admin import NewTopic

        new_topics = [NewTopic(name, partitions, 1, config={"segment.bytes": str(128 << 20)}) for name in names]
        for future in self.admin.create_topics(new_topics).values():
            future.result(30)

    def _delete_topics(self, names: list[str]) -> None:
        for future in self.admin.delete_topics(names).values():
            future.result(30)


def sink_options(case: Case) -> dict[str, Any]:
    """Return what this sink is declared with."""
    return {"compression": case.codec} if case.codec != "none" else {}


def report(case: Case, measured: list[Measured]) -> dict[str, Any]:
    """Return the medians and their ratios to Spark's tuned sink."""
    medians = {
        variant: {
            "add_batch_milliseconds": statistics.median(
                trigger.add_batch_milliseconds for trigger in measured if trigger.variant == variant
            ),
            "trigger_milliseconds": statistics.median(
                trigger.trigger_milliseconds for trigger in measured if trigger.variant == variant
            ),
        }
        for variant in VARIANTS
    }
    ours, tuned = medians[OURS], medians[SPARK_TUNED]
    return {
        "case": asdict(case),
        "medians": medians,
        "ratio_to_spark_tuned": round(tuned["add_batch_milliseconds"] / ours["add_batch_milliseconds"], 3),
        "trigger_longer_by_milliseconds": ours["trigger_milliseconds"] - tuned["trigger_milliseconds"],
        "raw": [asdict(trigger) for trigger in measured],
    }


def line(result: dict[str, Any]) -> str:
    """Return a result as a line of text."""
    medians = result["medians"]
    rate = "  ".join(f"{medians[variant]['add_batch_milliseconds']:>7,.0f}" for variant in VARIANTS)
    return (
        f"{Case(**result['case'])}  {rate}  {result['ratio_to_spark_tuned']:>5.2f}x  "
        f"{result['trigger_longer_by_milliseconds']:>+6,.0f} ms"
    )


def draw(results: list[dict[str, Any]], path: Path) -> None:
    """Draw each case's ratio, with a dot for every round."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1.2 + 0.34 * len(results)))
    for row, result in enumerate(reversed(results)):
        tuned = result["medians"][SPARK_TUNED]["add_batch_milliseconds"]
        ratio = result["ratio_to_spark_tuned"]
        axes.barh(row, ratio, color="tab:green" if ratio >= 1 else "tab:orange", height=0.6)
        rounds = [tuned / trigger["add_batch_milliseconds"] for trigger in result["raw"] if trigger["variant"] == OURS]
        axes.plot(rounds, [row] * len(rounds), "k.", markersize=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(
        range(len(results)), [str(Case(**result["case"])) for result in reversed(results)], family="monospace"
    )
    axes.set_xlabel("speed of this sink / speed of Spark's own Kafka sink, tuned (addBatch, medians; dots: rounds)")
    figure.savefig(path, dpi=80, bbox_inches="tight")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds a case (default: 7)")
    parser.add_argument("--full", action="store_true", help="all combinations: hours")
    parser.add_argument("--only", default="", help="a Python expression over the case's fields, such as 'size == 100'")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures and plot")
    given = parser.parse_args()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    given.output.mkdir(exist_ok=True)
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="bench-") as work, EmbeddedBroker(Path(work) / "broker") as broker:
        spark = open_session(
            {
                **settings.submit_settings({}),
                "spark.jars": ",".join(map(str, spark_connector_jars())),
                "spark.driver.memory": "4g",
                "spark.sql.streaming.pollingDelay": "200ms",  # two streams wait while the third is measured
            }
        )
        bench = Bench(spark, broker, Path(work))
        print(f"{'addBatch, median ms':<72}{SPARK:>12} {'tuned':>8} {'ours':>8}   ratio  trigger")
        for case in all_cases() if given.full else usual_cases():
            if given.only and not eval(given.only, {}, asdict(case)):
                continue
            results.append(report(case, bench.measure(case, given.rounds)))
            print(line(results[-1]), flush=True)
            (given.output / "sink.json").write_text(json.dumps(results, indent=1))
        spark.stop()
    draw(results, given.output / "sink.png")
    print(f"raw figures and plot: {given.output}/sink.json, {given.output}/sink.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

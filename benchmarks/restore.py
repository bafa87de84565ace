"""How long a restore takes, and how fast the replay is against the original processing of the same batches.

Run: ``python benchmarks/restore.py [small] [large]``. Starts a broker and a Spark of its own. Two sizes of batches:
small ones show the fixed cost of a batch, large ones what a row costs.
"""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.driver import Driver, DriverOptions

PARTITIONS = 2
SAVEPOINT_AT = 2
GOAL_SECONDS = 0.3
SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false", "spark.master": "local[2]"}


@dataclass(frozen=True)
class Size:
    """A kind of batch."""

    name: str
    rows: int
    batches: int


SIZES = (Size("small", 200, 40), Size("large", 200_000, 12))


class Stopping(Driver):
    """A driver that stops after the commit of which the savepoint is taken."""

    def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
        super()._on_commit(record, seconds, before)
        if record.commit == SAVEPOINT_AT:
            self._signal = "the savepoint"


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy((F.hash("value") % 1000).alias("k")).agg(F.count("*").alias("n")).select(F.col("k"), "n")


def run(kind: type[Driver], name: str, topics: tuple[str, str], home: Home, config: dict[str, str], limit: int) -> None:
    source = KafkaSource(topics[0], max_offsets_per_trigger=limit)
    declared = pipeline(name=name, source=source, sink=KafkaSink(topics[1]), output_mode="update")(counted)
    options = DriverOptions(home=home, config=config, token=str(uuid.uuid4()), until="available")
    code = kind(declared, options).run()
    if code:
        sys.exit(f"the driver ended with {code}")


def measure(size: Size, config: dict[str, str], folder: Path) -> None:
    name, topics = f"bench-{size.name}", (f"in-{size.name}", f"out-{size.name}")
    admin, home = AdminClient(dict(config)), Home(folder / name)
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics]).values():
        future.result()
    producer = Producer({**config, "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})
    for row in range(size.rows * size.batches):
        producer.produce(topics[0], b"%012d" % row, partition=row % PARTITIONS)
        if row % 100_000 == 0:
            producer.flush()
    producer.flush()
    run(Stopping, name, topics, home, config, size.rows)
    with LedgerReader(config, name) as reader:
        tail = reader.tail()
    lineage = home.current()
    assert tail is not None
    assert tail.commit is not None
    assert lineage is not None
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    saved = Savepoints(home.savepoints).take(checkpoint, SAVEPOINT_AT - 1, tail.commit, None)
    run(Driver, name, topics, home, config, size.rows)
    with LedgerReader(config, name) as reader:
        commits = list(reader.commits(SAVEPOINT_AT + 1))
    live = (commits[-1].committed - commits[0].committed) / 1000 / (len(commits) - 1)
    began = time.monotonic()
    restore(home, name, config, RestoreRequest(savepoint=saved.id))
    made = time.monotonic() - began
    run(Driver, name, topics, home, config, size.rows)
    told = status.read(home.status)
    assert told is not None
    assert told.replay is not None
    replayed = told.replay.seconds / len(commits)
    print(
        f"{size.name}: {size.rows:,} rows a batch, {len(commits)} batches replayed. Restore {made:.2f} s. "
        f"Replay {1 / replayed:.1f} batches/s, {size.rows / replayed:,.0f} rows/s, {replayed:.3f} s a batch; "
        f"originally {1 / live:.1f} batches/s, {size.rows / live:,.0f} rows/s, {live:.3f} s a batch: "
        f"{live / replayed:.2f} times as fast"
        + (f" (goal: about {GOAL_SECONDS} s fixed cost a batch)" if size is SIZES[0] else " (goal: 1 or more)"),
        flush=True,
    )


def main() -> None:
    arguments = ["--jars", ",".join(map(str, spark_connector_jars()))]
    for name, value in SETTINGS.items():
        arguments += ["--conf", f"{name}={value}"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(arguments)} pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkSession.stop = lambda _: None  # type: ignore[method-assign]  # the drivers share a warm one
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder, "broker")) as broker:
        for size in (one for one in SIZES if one.name in (sys.argv[1:] or [one.name])):
            measure(size, {"bootstrap.servers": broker.bootstrap_servers}, Path(folder))


if __name__ == "__main__":
    main()

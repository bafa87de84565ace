"""How long a restore takes, and how fast its replay is against the original processing of the same batches.

Two sizes of batches: small ones show the fixed cost of a batch, large ones what a row costs. Live processing and replay
take turns in one session: new batches are committed after a savepoint, then it is restored and they are replayed, then
come the next. The first turns warm the JVM up and are not counted. A batch's time is from the end of the one before it.

Run: ``make bench-restore``. The goals are a replay not slower than the original, and about 0.3 s fixed cost a batch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.declaration import Pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions

PARTITIONS = 2
SETTINGS = {
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


@dataclass(frozen=True)
class Size:
    """A kind of batch.

    :param batches: of one round
    """

    name: str
    rows: int
    batches: int


SIZES = (Size("small", 200, 20), Size("large", 200_000, 6))


class Timed(Driver):
    """A driver that notes when each batch ends."""

    def __init__(self, declared: Pipeline, options: DriverOptions) -> None:
        super().__init__(declared, options)
        self.ends: list[float] = []

    def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
        super()._on_commit(record, seconds, before)
        self.ends.append(time.monotonic())

    def batch_seconds(self, batches: int) -> list[float]:
        assert len(self.ends) == batches, f"{len(self.ends)} batches instead of {batches}"
        return [later - earlier for earlier, later in itertools.pairwise(self.ends)]


def counted(events: DataFrame) -> DataFrame:
    return events.groupBy((F.hash("value") % 1000).alias("k")).agg(F.count("*").alias("n")).select(F.col("k"), "n")


class Bench:
    """One pipeline with batches of one size."""

    def __init__(self, size: Size, config: dict[str, str], folder: Path) -> None:
        self._size = size
        self._config = config
        self._name = f"bench-{size.name}"
        self._home = Home(folder / self._name)
        self._source, sink = f"in-{size.name}", f"out-{size.name}"
        admin = AdminClient(dict(config))
        for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in (self._source, sink)]).values():
            future.result()
        source = KafkaSource(self._source, max_offsets_per_trigger=size.rows)
        self._pipeline = pipeline(name=self._name, source=source, sink=KafkaSink(sink), output_mode="update")(counted)

    def live(self) -> list[float]:
        """Commit new batches after a savepoint; returns the seconds of each."""
        if self._home.current() is not None:
            self._saved = self._save()
        self._feed()
        return self._run().batch_seconds(self._size.batches)

    def replay(self) -> dict[str, Any]:
        """Restore the savepoint, and replay what was committed after it."""
        began = time.monotonic()
        restore(self._home, self._name, self._config, RestoreRequest(savepoint=self._saved.id))
        restore_seconds = time.monotonic() - began
        replayed = self._run().batch_seconds(self._size.batches)
        driver_status = status.read(self._home.status)
        assert driver_status is not None
        assert driver_status.replay is not None
        assert driver_status.replay.last - driver_status.replay.first + 1 == self._size.batches
        return {
            "restore_seconds": restore_seconds,
            "replay_seconds": driver_status.replay.seconds,
            "batch_seconds": replayed,
        }

    def _feed(self) -> None:
        producer = Producer({**self._config, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000})
        for row in range(self._size.rows * self._size.batches):
            producer.produce(self._source, b"%012d" % row, partition=row % PARTITIONS)
            if row % 100_000 == 0:
                producer.flush()
        producer.flush()

    def _save(self) -> Savepoint:
        with LedgerReader(self._config, self._name) as reader:
            tail = reader.tail()
        lineage = self._home.current()
        assert tail is not None
        assert tail.commit is not None
        assert lineage is not None
        checkpoint = Checkpoint(self._home.checkpoint(lineage.id))
        batch = checkpoint.newest_commit()
        assert batch is not None
        return Savepoints(self._home.savepoints).take(checkpoint, batch, tail.commit, None)

    def _run(self) -> Timed:
        options = DriverOptions(home=self._home, config=self._config, token=str(uuid.uuid4()), until="available")
        driver = Timed(self._pipeline, options)
        if code := driver.run():
            sys.exit(f"the driver ended with {code}")
        return driver


HEADER = """\
                                            live                            replayed
              rows  batches   restore   s a batch  batches/s     rows/s   s a batch  batches/s     rows/s   speed"""


def measure(bench: Bench, rounds: int) -> dict[str, Any]:
    """Let live processing and replay take turns; begin and end with live processing, as all gets faster with time."""
    for _ in range(2):  # what comes before the first savepoint can't be replayed
        bench.live()
    bench.replay()
    live, replays = [bench.live()], []
    for _ in range(rounds):
        replays.append(bench.replay())
        live.append(bench.live())
    return {"live_batch_seconds": live, "replays": replays}


def line(size: Size, found: dict[str, Any]) -> str:
    """Return one size's figures as a line of the table."""
    live = statistics.median(itertools.chain(*found["live_batch_seconds"]))
    replayed = statistics.median(itertools.chain(*(replay["batch_seconds"] for replay in found["replays"])))
    restored = statistics.median(replay["restore_seconds"] for replay in found["replays"])
    columns = "".join(
        f"  {seconds:>9.3f}s  {1 / seconds:>9.2f}  {size.rows / seconds:>9,.0f}" for seconds in (live, replayed)
    )
    return f"{size.name:<8} {size.rows:>9,}  {size.batches:>7}  {restored:>7.2f}s{columns}  {live / replayed:>5.2f}x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    names = [size.name for size in SIZES]
    parser.add_argument("--sizes", nargs="+", choices=names, default=names, help="of batches (default: all)")
    parser.add_argument("--rounds", type=int, default=2, help="counted replays of each size (default: 2)")
    parser.add_argument("--output", type=Path, default=Path("bench-report"), help="folder for the raw figures")
    given = parser.parse_args()
    arguments = ["--jars", ",".join(map(str, spark_connector_jars()))]
    for name, value in SETTINGS.items():
        arguments += ["--conf", f"{name}={value}"]
    os.environ["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(arguments)} pyspark-shell"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    SparkSession.stop = lambda _: None  # type: ignore[assignment, method-assign]  # the drivers share a warm one
    results = []
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder, "broker")) as broker:
        for size in (candidate for candidate in SIZES if candidate.name in given.sizes):
            bench = Bench(size, {"bootstrap.servers": broker.bootstrap_servers}, Path(folder))
            figures = measure(bench, given.rounds)
            results.append({"size": asdict(size), **figures})
            print(line(size, figures), flush=True)
    given.output.mkdir(exist_ok=True)
    (given.output / "restore.json").write_text(json.dumps(results, indent=1))
    print(f"raw figures: {given.output}/restore.json")


if __name__ == "__main__":
    main()

"""One run of one engine: to the end, killed once, or fed small batches."""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from benchmarks.engines.assignment import Assignment
from benchmarks.engines.engines import Engine
from benchmarks.engines.figures import outage, steady
from benchmarks.engines.outputs import Difference, Outputs
from benchmarks.engines.process_tree import ProcessTree
from benchmarks.engines.watch import Sample, Watch
from benchmarks.engines.workloads import PARTITIONS, PROJECTED, Workload

PATIENCE_SECONDS: Final = 420.0
#: When an engine is killed: after that share of the output, and then not between two batches.
KILLED_AT_SHARE, KILLED_AFTER_SECONDS = 0.4, 1.0
SMALL_BATCH: Final = 1_000
PAUSE_SECONDS: Final = 0.25  # between two small batches
WARM_UP_BATCHES: Final = 60  # of Java's compiler


class Starts(Protocol):
    """What says how an engine is started: itself, or what starts it under something else."""

    def command(self, given: Assignment) -> list[str]: ...

    def environment(self, given: Assignment) -> Mapping[str, str]: ...


@dataclass(frozen=True, kw_only=True)
class Watched:
    """One run to the end.

    :param visible: how many records could be read at each sample
    :param seconds: with the start
    :param difference: what the output lacks
    """

    samples: Sequence[Sample]
    visible: Sequence[int]
    seconds: float
    difference: Difference


class Runs:
    """All runs on one broker; the inputs are fed once and stay.

    :param folder: for homes and checkpoints, which are removed after each run
    """

    def __init__(self, broker: EmbeddedBroker, folder: Path) -> None:
        self._broker, self._folder = broker, folder
        self._servers = broker.bootstrap_servers
        self._admin = AdminClient({"bootstrap.servers": self._servers})
        self._fed: set[str] = set()

    def feed(self, workload: Workload) -> None:
        """Make the workload's source and write its input, unless that was done."""
        if workload.source in self._fed:
            return
        self._create([workload.source])
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 50, "batch.size": 1 << 20})

        def produce(records: Iterator[tuple[int, bytes, bytes]]) -> None:
            for partition, key, value in records:
                producer.produce(workload.source, value, key, partition=partition)
            producer.flush()

        for first in range(0, workload.rows, 20_000):
            produce(workload.records(first, min(first + 20_000, workload.rows)))
        produce(workload.last_records())
        self._fed.add(workload.source)

    def to_the_end(self, engine: Starts, workload: Workload) -> dict[str, Any]:
        """Run once; returns the steady state, the seconds with the start, and what the output lacks."""
        run = self.watched(engine, workload)
        return {
            **asdict(steady(run.samples, run.visible, workload.rows)),
            "seconds_with_start": run.seconds,
            **asdict(run.difference),
            "load": os.getloadavg()[0],
        }

    def watched(self, engine: Starts, workload: Workload) -> Watched:
        """Run once."""
        with self._assigned(workload) as given:
            began = time.monotonic()
            tree = start(engine, given)
            try:
                with self._watch(given, tree) as watch:
                    self._wait(lambda: tree.exit_code() == 0, tree)
                    ended = time.monotonic()
                    time.sleep(0.5)  # one more look
            finally:
                tree.kill()
            outputs = Outputs(self._servers, given.sink, workload)
        return Watched(
            samples=watch.samples,
            visible=outputs.visible(watch.samples),
            seconds=ended - began,
            difference=outputs.difference(),
        )

    def killed(self, engine: Engine, workload: Workload) -> dict[str, Any]:
        """Run, kill it with all its processes once, start it again at once; returns what readers saw of it."""
        with self._assigned(workload) as given:
            tree = start(engine, given)
            try:
                with self._watch(given, tree) as watch:
                    threshold = KILLED_AT_SHARE * len(workload.expected())
                    self._wait(lambda: watch.visible() >= threshold, tree)
                    time.sleep(KILLED_AFTER_SECONDS)
                    tree.kill()
                    killed = time.monotonic()
                    tree = start(engine, given)
                    watch.engine = tree.pid
                    # Flink's source of a topic's records up to now does not end once it was restored.
                    self._wait(lambda: tree.exit_code() == 0 or watch.stands_still(len(workload.expected())), tree)
                    time.sleep(0.5)
            finally:
                tree.kill()
            outputs = Outputs(self._servers, given.sink, workload)
        outage_figures = outage(watch.samples, outputs.visible(watch.samples), killed)
        return {**asdict(outage_figures), **asdict(outputs.difference()), "load": os.getloadavg()[0]}

    def small_batches(self, engine: Engine, batches: int) -> dict[str, Any]:
        """Feed a running engine small batches; returns the milliseconds from acknowledged to read for each."""
        workload = Workload(name="small batches", query=PROJECTED, rows=SMALL_BATCH * (WARM_UP_BATCHES + batches))
        milliseconds = []
        with self._assigned(workload, live=True) as given:
            tree = start(engine, given)
            producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 5})
            reader = Consumer({"bootstrap.servers": self._servers, "group.id": given.sink, "fetch.wait.max.ms": 50})
            reader.assign([TopicPartition(given.sink, partition, 0) for partition in range(PARTITIONS)])
            try:
                for first in range(0, workload.rows, SMALL_BATCH):
                    for partition, key, value in workload.records(first, first + SMALL_BATCH):
                        producer.produce(given.source, value, key, partition=partition)
                    producer.flush()
                    acknowledged, missing = time.monotonic(), SMALL_BATCH * 9 // 10
                    deadline = acknowledged + PATIENCE_SECONDS
                    while missing > 0:
                        missing -= sum(not message.error() for message in reader.consume(missing, 0.05))
                        if tree.exit_code() is not None or time.monotonic() > deadline:
                            raise RuntimeError(f"{engine.name} did not write a small batch:\n{tree.tail()}")
                    milliseconds.append(1_000 * (time.monotonic() - acknowledged))
                    time.sleep(PAUSE_SECONDS)
            finally:
                reader.close()
                tree.kill()
        counted = sorted(milliseconds[WARM_UP_BATCHES:])
        p50, p99 = (counted[round(share * (len(counted) - 1))] for share in (0.5, 0.99))
        return {"p50_milliseconds": p50, "p99_milliseconds": p99, "all": counted, "load": os.getloadavg()[0]}

    @contextmanager
    def _assigned(self, workload: Workload, *, live: bool = False) -> Iterator[Assignment]:
        """Make the topics and the folder of one run.

        :param live: the input is fed while it runs, into a topic of its own
        """
        name = f"peer-{uuid.uuid4().hex[:8]}"
        source = f"{name}-source" if live else workload.source
        self._create([name, *([source] if live else [])])
        if not live:
            self.feed(workload)
        folder = self._folder / name
        folder.mkdir()
        yield Assignment(
            servers=self._servers,
            query=workload.query,
            source=source,
            sink=name,
            batch_rows=SMALL_BATCH if live else workload.batch_rows,
            bounded=not live,
            folder=str(folder),
            registry=workload.avro.url if workload.avro else None,
            result_id=workload.avro.result_id if workload.avro else 0,
        )
        shutil.rmtree(folder)
        topics = self._admin.list_topics(timeout=30).topics
        for future in self._admin.delete_topics([topic for topic in topics if name in topic]).values():
            future.result(30)

    def _create(self, topics: list[str]) -> None:
        new_topics = [NewTopic(topic, PARTITIONS, 1, config={"segment.bytes": str(128 << 20)}) for topic in topics]
        for future in self._admin.create_topics(new_topics).values():
            future.result(30)

    def _watch(self, given: Assignment, tree: ProcessTree) -> Watch:
        return Watch(self._servers, given.sink, engine=tree.pid, broker=self._broker.pid)

    def _wait(self, condition: Callable[[], bool], tree: ProcessTree) -> None:
        """Wait for a condition of a run that goes well."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            time.sleep(0.05)
            if tree.exit_code() not in (None, 0) or time.monotonic() > deadline:
                raise RuntimeError(f"exit code {tree.exit_code()}:\n{tree.tail()}")


def start(engine: Starts, given: Assignment) -> ProcessTree:
    return ProcessTree(engine.command(given), engine.environment(given), Path(given.folder, "log"))

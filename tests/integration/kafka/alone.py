"""The protocol without Spark: real runs, sessions and coordinators; a batch is rows that this process writes."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, invariant
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord, SinkRange, ledger_topic
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from tests.integration.kafka.proxy import Proxy
from tests.integration.streaming.harness import open_transactions, read_committed
from tests.waiting import eventually

ROWS = 12


def rows_of(number: int) -> list[tuple[bytes, bytes]]:
    """Return what batch ``number`` writes: (key, value); row i goes to partition i modulo their number."""
    return [(b"k%d" % row, b"batch %d row %d" % (number, row)) for row in range(ROWS)]


class PlainWriter(TransactionalWriter):
    """The writer with a loop in place of Spark's stage."""

    def write(self, frame: Any) -> None:
        assert self._definition is not None
        topic = self._definition.topics[0]
        written: dict[int, SinkRange] = {}
        self._ranges = {topic: written}
        for row, (key, value) in enumerate(frame):
            partition = row % self._attempt.targets[topic].partitions
            offset = self._attempt.run.session.write(topic, partition, key, value)
            before = written.get(partition)
            first, rows = (before.first, before.rows) if before else (offset, 0)
            written[partition] = SinkRange(first=first, last=offset, rows=rows + 1, digest=0)


class PlainSink(BatchTransaction):
    """The Kafka sink, whose replays write nothing and compare little."""

    def rebuild(self, frame: Any, record: CommitRecord, diverged: Any) -> None:
        invariant(record.rows == len(frame), "a batch is the same every time")


@dataclass
class Pipeline:
    """One driver without Spark.

    :param config: how the driver reaches the cluster, which may be by way of a proxy
    :param events: what the coordinator told, in order: (batch, whether it had been committed before)
    """

    run: Run
    coordinator: CommitCoordinator
    events: list[tuple[int, bool]] = field(default_factory=list)
    stop: str | None = None

    def process(self, *numbers: int) -> None:
        """Run batches as Spark would."""
        for number in numbers:
            self.coordinator.process(cast(Any, rows_of(number)), number)


def planned(run: Run, number: int) -> Batch:
    text = f'v1\n{{"batchWatermarkMs":0,"batchTimestampMs":0}}\n{{"source":{{"0":{ROWS * (number + 1)}}}}}'
    return Batch(
        lineage=run.lineage.id,
        number=number,
        offsets=parse_offsets(text),
        source={"source": {0: (ROWS * number, ROWS * (number + 1))}},
        source_topic_ids={},
    )


@contextmanager
def started(
    config: Mapping[str, str],
    home: Path,
    pipeline: str,
    topic: str,
    *,
    token: str = "t",
    timeout_seconds: int = 60,
    max_batch_attempts: int = 3,
    sink: type[PlainSink] = PlainSink,
) -> Iterator[Pipeline]:
    """Claim the pipeline and make it ready for batches."""
    options = RunOptions(
        config=dict(config), token=token, version="v", transaction_timeout_milliseconds=timeout_seconds * 1000
    )
    run = Run(Home(home), pipeline, options)
    try:
        definition = KafkaSink(topic, transaction_timeout_seconds=timeout_seconds)
        targets = preflight.check_topics(run.client, sinks=[topic])
        attempt = BatchAttempt(run, TransactionOptions(definition=definition), targets, cast(Any, None))
        made = sink(attempt, PlainWriter(attempt), lambda: alone.stop is not None)
        callbacks = Callbacks(
            plan=lambda number: planned(run, number),
            stop_reason=lambda: alone.stop,
            committed=lambda record, seconds, before: alone.events.append((record.batch, before)),
        )
        alone = Pipeline(run, CommitCoordinator(made, callbacks, max_batch_attempts=max_batch_attempts))
        run.start()
        yield alone
    finally:
        run.close()


@dataclass
class Stage:
    """A run that reaches its broker through a proxy, and what the broker itself must hold in the end.

    :param config: how the judge reaches the broker, past the proxy
    :param batches: how many batches were processed
    :param claims: how many claims the run has made, the first at its start
    """

    proxy: Proxy
    config: Mapping[str, str]
    topic: str
    alone: Pipeline
    batches: int = 0
    claims: int = 1

    def process(self, batches: int = 1) -> None:
        """Process the next batches; each is told as committed once."""
        for _ in range(batches):
            self.batches += 1
            self.alone.process(self.batches - 1)
            assert self.alone.events[-1] == (self.batches - 1, False)

    def check(self, *, more_claims: int) -> None:
        """Judge by the broker itself.

        :param more_claims: how many since the last check; one for each recovery
        """
        assert self.proxy.pending == 0, "a fault has not acted"
        self.claims += more_claims
        check(self.config, self.alone.run.pipeline, self.topic, self.batches, [1] * self.claims)


@contextmanager
def on_stage(proxy: Proxy, config: Mapping[str, str], home: Path, topic: str, **options: Any) -> Iterator[Stage]:
    """Start a run that reaches its broker through a proxy."""
    with started(proxy.config, home, f"p-{topic}", topic, **options) as alone:
        yield Stage(proxy, config, topic, alone)


def check(config: Mapping[str, str], pipeline: str, topic: str, batches: int, claims: list[int]) -> None:
    """Each batch is readable exactly once and in the ledger exactly once, and nothing of ours is open.

    :param claims: the run number of each claim, oldest first
    """
    assert claims_after(config, pipeline, topic, batches) == claims


def claims_after(config: Mapping[str, str], pipeline: str, topic: str, batches: int) -> list[int]:
    """Check the same of the batches; returns the run number of each claim, oldest first."""
    for name in (topic, ledger_topic(pipeline)):
        eventually(lambda name=name: open_transactions(config, name) == {}, f"nothing holds {name} back")  # type: ignore[misc]
    quick = {**config, "fetch.wait.max.ms": "20"}
    actual = Counter((record.key, record.value) for record in read_committed(quick, topic))
    assert actual == Counter(row for number in range(batches) for row in rows_of(number))
    with LedgerReader(config, pipeline) as reader:
        records = [record for _, record in reader.records()]
    commits = [record for record in records if isinstance(record, CommitRecord)]
    assert [(record.commit, record.batch) for record in commits] == [(n + 1, n) for n in range(batches)]
    return [record.run for record in records if isinstance(record, ClaimRecord)]


def main() -> None:
    """Run batches until something ends it; exit with the code of what that was. For tests that freeze a process."""
    config, home, pipeline, topic = sys.argv[1:]
    try:
        with started(json.loads(config), Path(home), pipeline, topic, token="first") as alone:
            for number in range(1000):
                alone.process(number)
    except ExactlyOnceError as error:
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()

"""What a batch costs beyond its rows: begin, pre-commit and commit; and how soon a reader sees it.

The sink's own begin, pre-commit and commit, with four partitions in source and sink; only the tasks are replaced, by
one row that the driver writes. In pre-commit are the look at the topics' ids and the ledger's record. A consumer with
read_committed polls beside it all the time. Run it with ``make bench-commit``; the goals are 15 ms for the three steps
together (median) and 100 ms for the reader (p99).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.ledger.records import SinkRange
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.settings import SequencerEndpoint
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink

TOPIC, SOURCE = "rows", "events"
PARTITIONS = 4
PIPELINE = "bench-commit"
WARM_UP = 50


class OneRow(TransactionalWriter):
    """The writer with one row in place of what tasks write; the frame is its number."""

    def write(self, frame: int) -> None:  # type: ignore[override]
        offset = self._attempt.run.session.write(TOPIC, 0, b"k", b"%d" % frame)
        self._ranges = {TOPIC: {0: SinkRange(first=offset, last=offset, rows=1, digest=frame)}}


def one_row_sink(run: Run, target: TopicFacts, listener: SequencerListener) -> BatchTransaction:
    attempt = BatchAttempt(run, TransactionOptions(definition=KafkaSink(TOPIC)), {TOPIC: target}, listener)
    return BatchTransaction(attempt, OneRow(attempt), lambda: False)


class Reader:
    """Notes when each row is readable."""

    def __init__(self, servers: str) -> None:
        self.seen: dict[int, float] = {}
        self._ended = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "bench",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 10,
            }
        )
        self._consumer.subscribe([TOPIC])
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def wait_for(self, number: int) -> None:
        deadline = time.monotonic() + 60
        while number not in self.seen and time.monotonic() < deadline:
            time.sleep(0.001)

    def end(self) -> None:
        self._ended.set()
        self._thread.join()
        self._consumer.close()

    def _read(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen[int(message.value() or 0)] = time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds between two batches")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, EmbeddedBroker(Path(folder, "broker")) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(dict(config))
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (TOPIC, SOURCE)]).values():
            future.result(30)
        run = Run(
            Home(Path(folder, "home")),
            PIPELINE,
            RunOptions(config=config, token="bench", version="v", transaction_timeout_milliseconds=60_000),
        )
        run.start()
        reader = Reader(broker.bootstrap_servers)
        try:
            report(measure(run, reader, options.batches, options.pause))
            print(f"load of the machine: {os.getloadavg()[0]:.1f}")
        finally:
            reader.end()
            run.close()


def measure(run: Run, reader: Reader, batches: int, pause: float) -> dict[str, list[float]]:
    """Run batches; returns {what: milliseconds of each}."""
    topics = preflight.check_topics(run.client, sinks=[TOPIC], sources=[SOURCE])
    milliseconds: dict[str, list[float]] = {"begin": [], "pre-commit": [], "commit": [], "all three": [], "visible": []}
    with SequencerListener(SequencerEndpoint(host="127.0.0.1", bind_address="127.0.0.1")) as listener:
        sink = one_row_sink(run, topics[TOPIC], listener)
        for number in range(WARM_UP + batches):
            batch = batch_of(run.lineage.id, number, topics[SOURCE].topic_id)
            start = time.perf_counter()
            sink.begin(batch)
            begun = time.perf_counter()
            sink.write(number)  # type: ignore[arg-type]
            written = time.perf_counter()
            sink.pre_commit(0)
            pre_committed = time.perf_counter()
            sink.commit()
            committed = time.perf_counter()
            reader.wait_for(number)
            if number >= WARM_UP:
                steps = (begun - start, pre_committed - written, committed - pre_committed)
                values = (*steps, sum(steps), reader.seen[number] - committed)
                for name, seconds in zip(milliseconds, values, strict=True):
                    milliseconds[name].append(seconds * 1000)
            time.sleep(pause)
    return milliseconds


def batch_of(lineage: str, number: int, source_topic_id: str) -> Batch:
    """Return a batch of ten thousand records from each partition of the source."""
    ends = dict.fromkeys(range(PARTITIONS), 10_000 * (number + 1))
    texts = ({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}, {SOURCE: ends})
    return Batch(
        lineage=lineage,
        number=number,
        offsets=parse_offsets("\n".join(["v1", *map(json.dumps, texts)])),
        source={SOURCE: {partition: (end - 10_000, end) for partition, end in ends.items()}},
        source_topic_ids={SOURCE: source_topic_id},
    )


def report(found: dict[str, list[float]]) -> None:
    print(f"{'milliseconds':<14}{'median':>8}{'p90':>8}{'p99':>8}{'max':>8}   of {len(found['begin'])} batches")
    for name, values in found.items():
        cuts = statistics.quantiles(values, n=100)
        print(f"{name:<14}{statistics.median(values):>8.1f}{cuts[89]:>8.1f}{cuts[98]:>8.1f}{max(values):>8.1f}")
    print("visible: from the commit's answer to the row in the hands of a read_committed reader")


if __name__ == "__main__":
    main()

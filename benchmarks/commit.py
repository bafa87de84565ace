"""What a batch costs beyond its rows: begin, pre-commit and commit; and how soon a reader sees it.

Each batch has one row and its ledger record; a consumer with read_committed polls beside it all the time. Run it with
``make bench-commit``; the goals are 15 ms for the three steps together (median) and 100 ms for the reader (p99).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from pathlib import Path

from confluent_kafka import Consumer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.streaming.run import Run, RunOptions

TOPIC = "rows"
PIPELINE = "bench-commit"
RECORD = b"x" * 1200  # about a commit record of a pipeline with four partitions


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
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        run = Run(
            Home(Path(folder, "home")),
            PIPELINE,
            RunOptions(config=config, token="bench", version="v", transaction_timeout_milliseconds=60_000),
        )
        run.start()
        reader = Reader(broker.bootstrap_servers)
        try:
            report(measure(run, reader, options.batches, options.pause))
        finally:
            reader.end()
            run.close()


def measure(run: Run, reader: Reader, batches: int, pause: float) -> dict[str, list[float]]:
    """Run batches; returns {what: milliseconds of each}."""
    session = run.session
    found: dict[str, list[float]] = {"begin": [], "pre-commit": [], "commit": [], "all three": [], "visible": []}
    warm_up = 50
    for number in range(warm_up + batches):
        start = time.perf_counter()
        session.begin()
        begun = time.perf_counter()
        session.write(TOPIC, 0, b"k", b"%d" % number)
        written = time.perf_counter()
        session.write(ledger_topic(PIPELINE), 0, b"commit/1", RECORD)
        pre_committed = time.perf_counter()
        session.commit()
        committed = time.perf_counter()
        reader.wait_for(number)
        if number >= warm_up:
            steps = (begun - start, pre_committed - written, committed - pre_committed)
            values = (*steps, sum(steps), reader.seen[number] - committed)
            for name, seconds in zip(found, values, strict=True):
                found[name].append(seconds * 1000)
        time.sleep(pause)
    return found


def report(found: dict[str, list[float]]) -> None:
    print(f"{'milliseconds':<14}{'median':>8}{'p90':>8}{'p99':>8}{'max':>8}   of {len(found['begin'])} batches")
    for name, values in found.items():
        cuts = statistics.quantiles(values, n=100)
        print(f"{name:<14}{statistics.median(values):>8.1f}{cuts[89]:>8.1f}{cuts[98]:>8.1f}{max(values):>8.1f}")
    print("visible: from the commit's answer to the row in the hands of a read_committed reader")


if __name__ == "__main__":
    main()

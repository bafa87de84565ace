"""Runs whole drivers in this process, one after the other in one JVM, and compares what two pipelines wrote."""

from __future__ import annotations

import contextlib
import json
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restore import Restored, RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming.declaration import Pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.integration.streaming.harness import check_tiles, clean_audit, read_committed, rows_by_commit
from tests.integration.streaming.replay.shapes import ROWS_A_BATCH, SHAPES, Input, Shape, declare


def client_threads() -> int:
    """Return how many threads of this process belong to clients of librdkafka."""
    names = []
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            names.append((thread / "comm").read_text())
    return sum(name.startswith("rdk:") for name in names)


class StoppingDriver(Driver):
    """A driver that stops right after a commit: what comes next is planned and has not begun."""

    stop_at = 0

    def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
        super()._on_commit(record, seconds, before)
        if record.commit == self.stop_at:
            self._lifecycle.stop.request(f"commit {record.commit}")


@dataclass
class Case:
    """One pipeline with its home."""

    config: Mapping[str, str]
    shape: Shape
    name: str
    topics: Mapping[str, str]
    sink: str
    home: Home
    options: dict[str, Any] = field(default_factory=dict)

    def pipeline(self, **sink_options: Any) -> Pipeline:
        return declare(self.shape, self.name, self.topics, self.sink, **{**self.options, **sink_options})

    def run(
        self, *, stop_at: int = 0, expected: int = 0, driver: Any = StoppingDriver, **changes: Any
    ) -> status.Status:
        """Run a driver until all that is there is committed, or it stops right after a commit."""
        options_of_the_driver = ("accept_nondeterminism", "allow_empty_state", "interval", "until")
        given = {name: changes.pop(name) for name in options_of_the_driver if name in changes}
        options = DriverOptions(
            **{
                "home": self.home,
                "config": dict(self.config),
                "token": str(uuid.uuid4()),
                "until": "available",
                **given,
            }
        )
        made = driver(self.pipeline(**changes), options)
        self.home.status.unlink(missing_ok=True)
        made.stop_at = stop_at
        handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        before = client_threads()
        code = made.run()
        assert expected or client_threads() <= before, "a driver that has run closes its clients"
        for number, handler in handlers.items():
            signal.signal(number, handler)
        assert code == expected
        last_status = status.read(self.home.status)
        return last_status or status.Status(pipeline=self.name, token="", state=status.DriverState.FAILED)

    def save(self) -> str:
        """Take a savepoint of the newest commit; returns its id."""
        current, tail = self.home.current(), self.tail()
        assert current is not None
        assert tail.commit is not None
        checkpoint = Checkpoint(self.home.checkpoint(current.id))
        return (
            Savepoints(self.home.savepoints).take(checkpoint, current.batch_of(tail.place.commit), tail.commit, None).id
        )

    def restore(self, savepoint: str | None = None, **request: Any) -> Restored:
        return restore(self.home, self.name, self.config, RestoreRequest(savepoint=savepoint, **request))

    def tail(self) -> LedgerTail:
        with LedgerReader(self.config, self.name) as reader:
            tail = reader.tail()
        assert tail is not None
        return tail

    def commits(self) -> list[CommitRecord]:
        with LedgerReader(self.config, self.name) as reader:
            return list(reader.commits())

    def written(self) -> Counter[str]:
        """Return the sink's rows as an independent reader sees them, without the time at which they were processed."""
        rows = [json.loads(record.value or b"") for record in read_committed(self.config, self.sink)]
        return Counter(json.dumps({**row, "seen": None}, sort_keys=True) for row in rows)


@dataclass
class Bench:
    """Makes pipelines and their input."""

    config: Mapping[str, str]
    folder: Path
    make_topic: Callable[..., str]

    def topics(self, shape: str, partitions: int = 2) -> dict[str, str]:
        return {source: self.make_topic(partitions=partitions) for source in SHAPES[shape].sources}

    def case(self, shape: str | Shape, topics: Mapping[str, str], **options: Any) -> Case:
        name = f"p-{uuid.uuid4().hex[:8]}"
        sink = self.make_topic(partitions=2)
        kind = shape if isinstance(shape, Shape) else SHAPES[shape]
        return Case(self.config, kind, name, topics, sink, Home(self.folder / name), options)

    def input(self, rows: int = ROWS_A_BATCH) -> Input:
        return Input(self.config, rows=rows)


def check_content(case: Case) -> None:
    """Recompute each commit's rows from its source ranges, and compare them with the sink record by record.

    The shape is ``update``.
    """
    commits = case.commits()
    events = {
        (topic, record.partition, record.offset): json.loads(record.value or b"")
        for topic in case.topics.values()
        for record in read_committed(case.config, topic)
    }
    check_tiles(commits)
    totals: Counter[str] = Counter()
    sums: Counter[str] = Counter()
    expected = []
    for commit in commits:
        touched = set()
        for topic, ranges in commit.source.items():
            for partition, (start, end) in ranges.items():
                for offset in range(start, end):
                    event = events[topic, partition, offset]
                    touched.add(event["k"])
                    totals[event["k"]] += 1
                    sums[event["k"]] += event["id"]
        expected += [(commit.commit, k, totals[k], sums[k]) for k in touched]
    assert sum(totals.values()) == len(events), "all input is committed"
    written = []
    for number, record in rows_by_commit(case.config, case.sink, commits):
        row = json.loads(record.value or b"")
        written.append((number, row["k"], row["n"], row["s"]))
    assert sorted(written) == sorted(expected)
    clean_audit(case.config, case.name)

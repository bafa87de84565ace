"""One pipeline that goes through faults: what it is sent, its driver, and what was found of it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import cast

import psutil
from confluent_kafka import KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.ledger import topic as ledger_settings
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, ledger_topic
from tests.crash_matrix.observer import QUIET, STABLE, Observer
from tests.crash_matrix.shapes import NO_DATA, WITH_WATERMARK, Event, Model, burst
from tests.crash_matrix.table import TABLES
from tests.crash_matrix.verdict import Findings, Judge
from tests.integration.streaming.harness import Driver, World

JOBS = Path(__file__).parent / "jobs"
PATIENCE_SECONDS = 600.0
#: As a replication factor.
BROKERS_DEFAULT = -1
#: Exit codes after which a supervisor would not start the driver again.
FINAL_CODES = frozenset({64, 65, 66, 67, 70})


class HangingError(Exception):
    """Something that must come did not, within a patience that is longer than every time-out of the protocol."""


@dataclass(kw_only=True)
class Pipeline:
    """A pipeline under test.

    :param shape: one of :data:`tests.crash_matrix.shapes.SHAPES`
    :param beside: the topic there is a table too, one of :data:`tests.crash_matrix.table.TABLES`
    """

    config: Mapping[str, str]
    name: str
    shape: str
    folder: Path
    beside: str | None = None
    restarts: int = 0
    events: dict[tuple[int, int], Event] = field(default_factory=dict)
    bursts: int = 0
    sent_ends: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.source, self.sink = f"{self.name}.in", f"{self.name}.out"
        partitions = 1 if self.shape in WITH_WATERMARK else 3
        admin = AdminClient({**self.config, **QUIET})
        for topic, count in ((self.source, partitions), (self.sink, 4)):
            admin.create_topics([NewTopic(topic, count, BROKERS_DEFAULT)])[topic].result(30)
        ledger_settings.ensure(dict(self.config), self.name)
        self.hold, self.plan = self.folder / "hold", self.folder / "plan"
        self.world = World(
            config=self.config,
            pipeline=self.name,
            source=self.source,
            sink=self.sink,
            home=self.folder / "home",
            job=str(JOBS / "shapes_job.py"),
        )
        self._producer = Producer({**self.config, "transactional.id": f"feed-{self.name}", **QUIET})
        self._producer.init_transactions(30)
        self.observer = Observer(self.config, self.sink, ledger_topic(self.name))
        self._model = Model(self.shape)
        self._judge = Judge(self.source, self.sink, self._owed)
        self._table = None if self.beside is None else TABLES[self.beside](self.folder / "table", self.shape)
        self._judged = 0
        self.driver: Driver | None = None
        self.timeout_seconds = 0

    @property
    def last_batch(self) -> int:
        """Number of the last batch that was committed, -1 for none."""
        return self.observer.commits[-1].batch if self.observer.commits else -1

    def start(self, timeout_seconds: int, arm: str | None = None) -> None:
        """Start a driver.

        :param timeout_seconds: transaction time-out
        :param arm: fail point, see :meth:`arm`
        """
        self.timeout_seconds = timeout_seconds
        if arm is not None:
            self.arm(arm)
        environment = {
            "TEST_SHAPE": self.shape,
            "TEST_TRANSACTION_TIMEOUT": str(timeout_seconds),
            "TEST_SERVERS": self.config["bootstrap.servers"],
        }
        if self._table is not None:
            environment |= {"TEST_BESIDE": str(self.beside), "TEST_TABLE": str(self._table.folder)}
        conf = {"spark.sql.streaming.noDataMicroBatches.enabled": str(self.shape == NO_DATA).lower()}
        self.driver = self.world.start(until="forever", failpoints=f"@{self.plan}", conf=conf, environment=environment)

    def arm(self, step: str) -> None:
        """Hold the driver at a fail point, once; see :mod:`airflow_provider_exactlyonce.failpoints`."""
        beside = self.plan.with_suffix(".new")
        beside.write_text(f"{step}:hold={self.hold}")
        beside.replace(self.plan)

    def wait_for_hold(self, what: str) -> None:
        """Wait until the driver is held."""
        self.wait(self.hold.exists, what)

    def release(self) -> None:
        """Let the held driver go on."""
        self.hold.unlink()

    def send(self, count: int) -> None:
        """Send one burst, in one transaction; in another one when brokers that fail abort the first."""
        events = burst(self.bursts, len(self.events), count)
        self.bursts += 1
        while (places := self._sent(events)) is None:
            self._producer.abort_transaction(60)
        self.events.update(places)
        for partition, offset in places:
            self.sent_ends[partition] = max(offset + 1, self.sent_ends.get(partition, 0))

    def _sent(self, events: Sequence[Event]) -> dict[tuple[int, int], Event] | None:
        """Return where the events are once they are committed, None when their transaction must be aborted."""
        places: dict[tuple[int, int], Event] = {}

        def note(event: Event, error: object, message: Message) -> None:
            if error is None:
                places[cast(tuple[int, int], (message.partition(), message.offset()))] = event

        try:
            self._producer.begin_transaction()
            for event in events:
                self._producer.produce(
                    self.source, key=event.k, value=json.dumps(asdict(event)), on_delivery=partial(note, event)
                )
            self._producer.commit_transaction(60)
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                return None
            raise
        assert len(places) == len(events)
        return places

    def _owed(self, ranges: Mapping[int, tuple[int, int]]) -> Counter[str]:
        rows = self._model.rows(self._events(ranges))
        if self._table is not None:
            self._table.expect(rows)
        return rows

    def _events(self, ranges: Mapping[int, tuple[int, int]]) -> list[Event]:
        places = ((partition, offset) for partition, (start, end) in ranges.items() for offset in range(start, end))
        return [self.events[place] for place in places if place in self.events]  # the others are markers

    def is_complete(self, batch: int) -> bool:
        """Tell whether everything that was sent is committed, the batch too, and the one without data that follows."""
        if self.last_batch < batch:
            return False
        ranges = self.observer.commits[-1].source.get(self.source, {})
        if self.shape == NO_DATA and any(start != end for start, end in ranges.values()):
            return False
        return all(ranges.get(partition, (0, 0))[1] >= end for partition, end in self.sent_ends.items())

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, and start the driver again when it has ended by itself, as a supervisor would.

        :raises HangingError: when it does not come true
        """
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            self.observer.poll()
            if time.monotonic() > deadline:
                raise HangingError(f"not within {PATIENCE_SECONDS:.0f} s: {what}; {self._state()}")
            if self.driver is not None and (code := self.driver.process.poll()) is not None:
                if code in FINAL_CODES:
                    raise HangingError(f"the driver ended with {code} while {what} was waited for")
                self.restarts += 1
                self.start(self.timeout_seconds)

    def _state(self) -> str:
        seen = f"read up to {self.observer.positions()}, batch {self.last_batch}, {self.restarts} restarts"
        try:
            return f"{seen}; hidden: {self.observer.held_back()}; ends {self.observer.ends(STABLE)}"
        except KafkaException as error:
            return f"{seen}; {error}"

    def settle(self, batch: int) -> Findings:
        """Wait until all is committed and nothing is open, and judge what is new.

        :param batch: a batch that must be committed by then
        """
        self.wait(lambda: self.is_complete(batch), f"batch {batch} and all that was sent are committed")
        self.wait(self._is_at_rest, "no transaction is open")
        new = self.observer.commits[self._judged :]
        self._judged = len(self.observer.commits)
        findings = self._judge.judge(new, self.observer.rows)
        if (table := self._table) is not None:
            newest = self.observer.commits[-1].commit
            self.wait(lambda: table.commit() >= newest, f"the table has commit {newest}")
            findings.compare("the table", table.owed, table.rows())
        return findings

    def _is_at_rest(self) -> bool:
        """Read up to the end; true when nothing is open, and nothing moved meanwhile."""
        before = self.observer.decided_ends()
        if before is None:
            return False
        self.observer.catch_up(before)
        return self.observer.decided_ends() == before

    def newest_claim(self) -> ClaimRecord | None:
        """Return the newest run's claim."""
        claim = self.observer.runs[-1] if self.observer.runs else None
        return claim if isinstance(claim, ClaimRecord) else None

    def kill(self) -> None:
        """Do what a lost machine does to the driver."""
        assert self.driver is not None
        for pid in {self.driver.process.pid, *self.workers()}:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL) if pid == self.driver.process.pid else os.kill(pid, signal.SIGKILL)
        self.driver.process.wait()
        self.driver = None
        self.plan.unlink(missing_ok=True)
        self.hold.unlink(missing_ok=True)

    def workers(self) -> list[int]:
        """Return the process ids of Spark's Python workers, their daemon last."""
        assert self.driver is not None
        parents: dict[int, int] = {}
        for process in psutil.process_iter():
            with contextlib.suppress(ProcessLookupError, psutil.Error):  # one that ends meanwhile
                if os.getsid(process.pid) == self.driver.process.pid and "pyspark.worker" in process.cmdline():
                    parents[process.pid] = process.ppid()
        return sorted(parents, key=lambda pid: (parents[pid] not in parents, pid))

    def stop(self) -> None:
        """Stop the driver in order.

        :raises HangingError: when it doesn't end well
        """
        if self.driver is None:
            return
        driver, self.driver = self.driver, None
        code = self.world.stop(driver)
        if code != 0:
            raise HangingError(f"the driver ended with {code} when it was stopped")

    def close(self) -> None:
        """End what runs."""
        self.world.end()
        self.observer.close()

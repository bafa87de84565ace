"""A windowed pipeline under load, its versions, and a model of Spark's that says what it must have written."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease, processes, releases, status, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.upgrade_plan import Plan
from tests import commands
from tests.integration.streaming.harness import CONF, World, check_ledger, clean_audit, read_committed, rows_by_commit
from tests.waiting import eventually

FIRST = Path(__file__).parent / "jobs" / "windows.py"
WINDOW_SECONDS, LATENESS_SECONDS = 10, 2
_EPOCH = 1_700_000_000
SHOUT = {'"total", "n")': '"total", "n", F.concat("k", F.lit("!")).alias("shout"))'}
#: The right second version: a stricter filter, and a column more.
SECOND = {"v >= 1": "v >= 3", **SHOUT}
_SLEEP = "F.udf(lambda v: __import__('time').sleep(3600) or True, 'boolean')('v')"
#: What each version makes of the first one's text.
CHANGES: dict[str, list[dict[str, str]]] = {
    "first": [],
    "shouts": [SHOUT],
    "second": [SECOND],
    "incompatible": [SECOND, {"F.sum(": "F.max("}],
    "elsewhere": [SHOUT, {'conn_id=os.environ.get("TEST_CONN_ID")': "conn_id=None"}],
    "wrong": [SECOND, {'"total", "n"': '(F.col("total") + 1).alias("total"), "n"'}],
    # Its first batches, which close no window, are committed.
    "crashes": [
        SECOND,
        {'"total", "n"': '"total", F.when(F.col("n") > 0, F.raise_error(F.lit("no idea"))).alias("n")'},
    ],
    "never": [SECOND, {"kept = events": f"kept = events.where({_SLEEP})"}],
}


def version(folder: Path, name: str) -> Path:
    """Write a version's file, and return it."""
    text = FIRST.read_text()
    for changes in CHANGES[name]:
        for old, new in changes.items():
            assert old in text
            text = text.replace(old, new)
    file = folder / f"{name}.py"
    file.write_text(f"{text}\n# {name}\n")
    return file


@dataclass
class Story:
    """One pipeline with its versions.

    :param world: its topics and home
    :param folder: for the files of its versions
    """

    world: World
    folder: Path
    versions: dict[str, str] = field(default_factory=dict)
    sent: int = 0

    @property
    def home(self) -> Home:
        return Home(self.world.home)

    def file(self, name: str) -> str:
        return str(version(self.folder, name))

    def run(
        self, *arguments: str, conf: Mapping[str, str] | None = None, code: int = 0, failpoints: str = ""
    ) -> commands.Said:
        """Run a subcommand as people do; it may be killed."""
        words = [arguments[0], self.world.pipeline, *arguments[1:], "--json"]
        if arguments[0] in ("upgrade", "rollback"):
            words += ["--master", "local[2]"]
            for name, value in {**CONF, **(conf or {})}.items():
                words += ["--conf", f"{name}={value}"]
        given = {**os.environ, "EXACTLYONCE_KAFKA": json.dumps(dict(self.world.config)), **self.world.names}
        return commands.run_apart(*words, code=code, failpoints=failpoints, environment=given)

    def upgrade(self, name: str, *arguments: str, **options: Any) -> commands.Said:
        return self.run("upgrade", self.file(name), *arguments, **options)

    def start(self) -> None:
        """Start the first version and wait for its first commit."""
        self.world.job = self.file("first")
        self.world.start("--interval", "3 seconds", until="forever")  # under load a batch takes half a core
        eventually(lambda: self.world.commits() >= 1, "it commits")

    def plan(self) -> Plan:
        plan = upgrade_plan.read(self.home)
        assert plan is not None
        return plan

    def in_use(self) -> str | None:
        """Return the name of the version in use, by its file."""
        release = releases.read(self.home)
        if release is None:
            return None
        known = releases.application(self.home, release.version)
        assert known is not None
        return Path(known.path).stem

    def state(self) -> status.Status:
        driver_status = status.read(self.home.status)
        assert driver_status is not None
        return driver_status

    def end(self) -> None:
        """End whatever runs, at once."""
        self.world.end()
        held, intent, plan = lease.read(self.home.lease), intents.read(self.home.intent), upgrade_plan.read(self.home)
        for token in {owner.token for owner in (held, intent, plan) if owner is not None and owner.token}:
            processes.kill_leftovers(token)

    def send(self, producer: Producer, records: int) -> None:
        """Produce records whose times rise by 50 ms each, on three keys."""
        for number in range(self.sent, self.sent + records):
            seconds = _EPOCH + number / 20
            row = {"id": number, "k": f"k{number % 3}", "v": f"{number % 8}.50", "ts": f"{_time(seconds)}"}
            producer.produce(self.world.source, key=f"k{number % 3}", value=json.dumps(row), partition=number % 2)
        assert producer.flush(30) == 0
        self.sent += records

    def producer(self) -> Producer:
        return Producer({**self.world.source_config, "enable.idempotence": True})

    def give(self, records: int) -> None:
        """Produce as much at once."""
        self.send(self.producer(), records)

    @contextmanager
    def load(self, records_per_second: int = 80) -> Iterator[None]:
        """Produce all the time."""
        producer, over = self.producer(), threading.Event()

        def work() -> None:
            while not over.wait(0.25):
                self.send(producer, records_per_second // 4)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def drain(self) -> None:
        """Wait until all that was sent is committed."""

        def all_is_in() -> bool:
            ends: dict[int, int] = {}
            for commit in self.world.ledger()[0]:
                ends |= {partition: end for partition, (_, end) in commit.source.get(self.world.source, {}).items()}
            return sum(ends.values()) == self.sent

        eventually(all_is_in, "all is committed")

    def names(self) -> dict[str, str]:
        """Return which version has which name, from the copies in the home."""
        names = {}
        for directory in (self.home.path / "applications").iterdir():
            known = releases.application(self.home, directory.name)
            assert known is not None
            names[directory.name] = Path(known.path).stem
        return names

    def check(self) -> list[str]:
        """Compare the sink with what the right versions give, record by record; returns the versions' names in order.

        A model of the windows computes it from the source's records, each with the version and the watermark of the
        commit that has read it.
        """
        commits, names = check_ledger(self.world), self.names()
        source = {
            (record.partition, record.offset): json.loads(record.value or b"")
            for record in read_committed(self.world.source_config, self.world.source)
        }
        sums: dict[tuple[int, str], list[Decimal]] = defaultdict(list)
        expected: list[tuple[int, dict[str, Any]]] = []
        order: list[str] = []
        right = "first"
        for commit in commits:
            name = names[commit.version]
            order += [name] if order[-1:] != [name] else []
            if name == "crashes":  # it has written no window, and a right version has run its commits again
                name = right
            right = name
            watermark = commit.watermark / 1000
            for partition, (start, end) in commit.source[self.world.source].items():
                for offset in range(start, end):
                    event = source[partition, offset]
                    begin = _EPOCH + int(event["id"] / 20) // WINDOW_SECONDS * WINDOW_SECONDS
                    least = 1 if name in ("first", "shouts") else 3
                    if Decimal(event["v"]) >= least and begin + WINDOW_SECONDS > watermark:
                        sums[begin, event["k"]].append(Decimal(event["v"]))
            for place in sorted(place for place in sums if place[0] + WINDOW_SECONDS <= watermark):
                begin, key = place
                values = sums.pop(place)
                row: dict[str, Any] = {"k": key, "start": begin, "total": sum(values), "n": len(values)}
                expected.append((commit.commit, row if name == "first" else {**row, "shout": f"{key}!"}))
        written = [
            (number, json.loads(record.value or b"", parse_float=Decimal))
            for number, record in rows_by_commit(self.world.config, self.world.sink, commits)
        ]
        assert len(expected) > 10, "the windows close"
        assert sorted(written, key=str) == sorted(expected, key=str)
        clean_audit(self.world.config, self.world.pipeline)
        return order


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds % 1 * 1000):03d}Z"

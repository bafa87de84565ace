"""Starts real drivers, and judges what they wrote with readers that share nothing with the code under test."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import IO, Any, cast

from confluent_kafka import OFFSET_BEGINNING, Consumer, IsolationLevel, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.audit.findings import Report
from airflow_provider_exactlyonce.cli.submission import submit_command
from airflow_provider_exactlyonce.control import lease, requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import OUTPUT_VARIABLE
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import ClaimRecord, CommitRecord
from airflow_provider_exactlyonce.storage.opening import store_of
from tests import class_archives
from tests.processes import is_stopped
from tests.shared_jvm import DriverProcess, SharedJvm
from tests.waiting import HANG_SECONDS, eventually

JOBS = Path(__file__).parent / "jobs"
#: The connection through which jobs read a source that is elsewhere.
CONN_ID = "orders_kafka"
CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.driver.extraJavaOptions": class_archives.SHORT_LIVED,
    # These too let short lives start faster:
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@dataclass
class Driver:
    """One driver process, in a session of its own.

    :ivar owns_jvm: whether its JVM lives and ends with it
    """

    process: DriverProcess
    log: Path
    owns_jvm: bool

    def wait(self) -> int:
        return self.process.wait()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def freeze(self, home: Path) -> None:
        """Stop the whole driver, but not while it holds the lock of its lease: a successor on this host wants it."""
        assert self.owns_jvm, "what is stopped is the whole driver: start(own_jvm=True)"
        with store_of(home).holding(Home(home).lease, seconds=HANG_SECONDS):
            os.killpg(self.process.pid, signal.SIGSTOP)
            eventually(lambda: is_stopped(self.process.pid), "the driver is frozen")

    def thaw(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class World:
    """One pipeline with its topics and its home.

    :ivar jvm: for drivers which need none of their own
    :ivar elsewhere: the source's cluster, None where it is the sink's
    """

    config: Mapping[str, str]
    pipeline: str
    source: str
    sink: str
    home: Path
    job: str = "counts.py"
    jvm: SharedJvm | None = None
    elsewhere: Mapping[str, str] | None = None
    drivers: list[Driver] = field(default_factory=list)
    sent: int = 0

    @property
    def source_config(self) -> Mapping[str, str]:
        """The configuration of the cluster that the source is on."""
        return self.elsewhere or self.config

    @property
    def connections(self) -> dict[str, str]:
        """The environment in which jobs, and commands, find the source's cluster."""
        if self.elsewhere is None:
            return {}
        return {"TEST_CONN_ID": CONN_ID, "EXACTLYONCE_SOURCES": json.dumps({CONN_ID: dict(self.elsewhere)})}

    @property
    def names(self) -> dict[str, str]:
        """The environment in which jobs find the pipeline's name, its topics, and the source's cluster."""
        topics = {"TEST_PIPELINE": self.pipeline, "TEST_SOURCE": self.source, "TEST_SINK": self.sink}
        return {**topics, **self.connections}

    @property
    def servers(self) -> list[str]:
        """The option by which commands find the cluster."""
        return ["--bootstrap-servers", self.config["bootstrap.servers"]]

    @property
    def at_home(self) -> list[str]:
        """The options by which commands find home and cluster."""
        return ["--home", str(self.home), *self.servers]

    def send(self, records: int, keys: int = 37) -> None:
        """Produce more input; record ``id`` has key ``k<id % keys>`` and value ``id / 100``."""
        producer = Producer({**self.source_config, "partitioner": "murmur2", "enable.idempotence": True})
        for number in range(self.sent, self.sent + records):
            key = f"k{number % keys}"
            producer.produce(self.source, key=key, value=json.dumps({"id": number, "k": key, "v": number / 100}))
        assert producer.flush(30) == 0
        self.sent += records

    def start(self, *arguments: str, own_jvm: bool = False, **how: Any) -> Driver:
        """Start a driver; other arguments as of :meth:`command`.

        :param own_jvm: whether its JVM dies with it, or prints into its log
        """
        log = self.home.with_name(f"driver-{len(self.drivers)}.log")
        command, added = self.command(*arguments, **how)
        environment = {**os.environ, OUTPUT_VARIABLE: str(log), **added}
        own_jvm = own_jvm or self.jvm is None or not self.jvm.can_run(command)
        start = _launch if own_jvm or self.jvm is None else self.jvm.start
        with log.open("wb") as output:
            process = start(command, environment, output)
        driver = Driver(process, log, own_jvm)
        self.drivers.append(driver)
        return driver

    def command(
        self,
        *arguments: str,
        master: str = "local[2]",
        failpoints: str | None = None,
        until: str = "available",
        home: Path | str | None = None,
        conf: Mapping[str, str] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> tuple[list[str], dict[str, str]]:
        """Return the command line that starts a driver, and what its environment has besides."""
        command = submit_command(
            str(JOBS / self.job),
            ["--home", str(home or self.home), "--until", until, *arguments],
            master=master,
            conf={**CONF, **(conf or {})},
        )
        return command, {
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            **class_archive.environment(os.environ, conf or {}),
            "EXACTLYONCE_KAFKA": json.dumps(dict(self.config)),
            **self.names,
            **({FAILPOINTS: failpoints} if failpoints else {}),
            **(environment or {}),
        }

    def stop(self, driver: Driver) -> int:
        held = lease.read(Home(self.home).lease)
        assert held is not None
        requests.request_stop(Home(self.home), held.token, reason="test")
        return driver.wait()

    def end(self) -> None:
        for driver in self.drivers:
            driver.end()

    def ledger(self) -> tuple[list[CommitRecord], list[ClaimRecord]]:
        with LedgerReader(self.config, self.pipeline) as reader:
            records = [record for _, record in reader.records()] if reader.tail() else []
        commits = [record for record in records if isinstance(record, CommitRecord)]
        return commits, [record for record in records if isinstance(record, ClaimRecord)]

    def commits(self) -> int:
        return len(self.ledger()[0])


def _launch(command: list[str], environment: Mapping[str, str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        env=environment,
        stdout=output,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


@dataclass(frozen=True)
class Record:
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


def end_offsets(config: Mapping[str, str], topic: str, isolation: IsolationLevel) -> dict[int, int]:
    admin = AdminClient(dict(config))
    partitions = admin.list_topics(topic).topics[topic].partitions
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in partitions}
    futures = admin.list_offsets(asked, isolation_level=isolation)
    return {place.partition: future.result().offset for place, future in futures.items()}


def open_transactions(config: Mapping[str, str], topic: str) -> dict[int, tuple[int, int]]:
    """Return the partitions whose last stable offset is behind the high watermark."""
    stable = end_offsets(config, topic, IsolationLevel.READ_COMMITTED)
    high = end_offsets(config, topic, IsolationLevel.READ_UNCOMMITTED)
    return {
        partition: (stable[partition], high[partition]) for partition in high if stable[partition] != high[partition]
    }


def read_committed(config: Mapping[str, str], topic: str) -> list[Record]:
    """Read a whole topic with an ordinary read_committed consumer."""
    consumer = Consumer(
        {
            **config,
            "group.id": "independent-reader",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is told after an empty fetch
        }
    )
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    records: list[Record] = []
    ended: set[int | None] = set()
    deadline = time.monotonic() + HANG_SECONDS
    while len(ended) < len(partitions):
        assert time.monotonic() < deadline, f"no end of {topic} in sight"
        message = consumer.poll(1.0)
        if message is None:
            continue
        if error := message.error():
            assert error.code() == KafkaError._PARTITION_EOF, error
            ended.add(message.partition())
        else:
            place = cast(tuple[int, int], (message.partition(), message.offset()))
            headers = cast(tuple[tuple[str, bytes], ...], tuple(message.headers() or ()))
            records.append(Record(*place, message.key(), message.value(), headers))
    consumer.close()
    return records


def check_ledger(
    world: World, begins: Mapping[tuple[str, int], int] | None = None, *, reclaims: int = 0
) -> list[CommitRecord]:
    """I4: commits are gapless and their source ranges tile the source; runs only rise, and each is one driver's.

    :param reclaims: how often drivers have claimed again under their numbers
    """
    commits, runs = world.ledger()
    assert [record.commit for record in commits] == list(range(1, len(commits) + 1))
    assert runs == sorted(runs, key=lambda record: record.run)
    numbers, drivers = {record.run for record in runs}, {(record.run, record.host, record.pid) for record in runs}
    assert len(runs) - reclaims == len(numbers) == len(drivers)
    check_tiles(commits, begins)
    return commits


def check_tiles(commits: Iterable[CommitRecord], begins: Mapping[tuple[str, int], int] | None = None) -> None:
    """Each commit begins where the one before it ended, in each partition of a source."""
    ends = dict(begins or {})
    for record in commits:
        for topic, ranges in record.source.items():
            for partition, (start, end) in ranges.items():
                assert start == ends.get((topic, partition), 0), f"commit {record.commit} leaves a gap or overlaps"
                ends[topic, partition] = end


def rows_by_commit(
    config: Mapping[str, str], topic: str, commits: Iterable[CommitRecord]
) -> Iterator[tuple[int, Record]]:
    """Yield a sink's records, each with the commit whose ledger record has its offset: each must have one."""
    places = {
        (partition, offset): commit.commit
        for commit in commits
        for partition, written in commit.sink.get(topic, {}).items()
        for offset in range(written.first, written.last + 1)
    }
    return ((places[record.partition, record.offset], record) for record in read_committed(config, topic))


def clean_audit(config: Mapping[str, str], pipeline: str) -> Report:
    """Return what an audit says, which must have found nothing."""
    report = audit(config, pipeline, AuditOptions(patience_seconds=10))
    assert report.is_clean, [str(violation) for violation in report.found]
    return report


def check_counts(world: World, *, complete: bool = True) -> None:
    """Compare the sink with a recomputation from the source, record by record.

    Each commit's source ranges are summed here, with Python's own Decimal; each output record must be what its batch
    gives, written once, at an offset within what the ledger says.
    """
    commits = check_ledger(world)
    source = {
        (record.partition, record.offset): json.loads(record.value or b"")
        for record in read_committed(world.source_config, world.source)
    }
    totals: Counter[str] = Counter()
    sums: dict[str, Decimal] = {}
    expected: list[tuple[int, dict[str, Any]]] = []
    used = 0
    for commit in commits:
        touched = set()
        for partition, (start, end) in commit.source[world.source].items():
            for offset in range(start, end):
                event = source[partition, offset]
                used += 1
                touched.add(event["k"])
                totals[event["k"]] += 1
                sums[event["k"]] = sums.get(event["k"], Decimal(0)) + Decimal(str(event["v"]))
        expected += [(commit.commit, {"k": k, "total": sums[k], "n": totals[k]}) for k in touched]
    written = []
    for number, record in rows_by_commit(world.config, world.sink, commits):
        value = json.loads(record.value or b"", parse_float=Decimal)
        assert record.key == value["k"].encode()
        written.append((number, {**value, "total": Decimal(value["total"])}))
    order = lambda item: (item[0], item[1]["k"])  # noqa: E731
    assert sorted(written, key=order) == sorted(expected, key=order)
    if complete:
        assert used == world.sent, f"{world.sent - used} records are not in a commit"
        assert clean_audit(world.config, world.pipeline).rows == len(written)

"""Topics of one prefix, a pipeline that counts what is in them, and a reader of its own that recomputes its rows."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.driver.backfill_driver import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.integration.streaming.harness import check_tiles, clean_audit, read_committed, rows_by_commit
from tests.waiting import eventually


@dataclass
class Topics:
    """Topics of one prefix."""

    config: Mapping[str, str]
    prefix: str = field(default_factory=lambda: f"t{uuid.uuid4().hex[:8]}")
    sent: Counter[str] = field(default_factory=Counter)

    def name(self, topic: str) -> str:
        return f"{self.prefix}.{topic}"

    @property
    def pattern(self) -> TopicPattern:
        return TopicPattern(rf"{self.prefix}\..*")

    def make(self, *names: str, partitions: int = 2) -> list[str]:
        admin, made = AdminClient(dict(self.config)), [self.name(name) for name in names]
        for future in admin.create_topics([NewTopic(name, partitions, 1) for name in made]).values():
            future.result(30)
        eventually(
            lambda: all(admin.list_topics(name, timeout=30).topics[name].error is None for name in made),
            "topics that are known",
        )
        return made

    def delete(self, topic: str) -> None:
        admin, name = AdminClient(dict(self.config)), self.name(topic)
        admin.delete_topics([name])[name].result(30)
        eventually(lambda: name not in admin.list_topics(timeout=30).topics, f"the end of {name}")

    def add_partition(self, topic: str, total: int) -> None:
        admin, name = AdminClient(dict(self.config)), self.name(topic)
        admin.create_partitions([NewPartitions(name, total)])[name].result(30)
        eventually(
            lambda: len(admin.list_topics(name, timeout=30).topics[name].partitions) == total,
            f"{name} with more partitions",
        )

    def send(self, records: int, *names: str, partition: int = -1) -> None:
        producer = Producer(dict(self.config))
        for name in names:
            for _ in range(records):
                number = self.sent[name]
                producer.produce(self.name(name), json.dumps({"id": number}), str(number), partition=partition)
                self.sent[name] += 1
        assert producer.flush(30) == 0


def count_by_topic(events: DataFrame) -> DataFrame:
    return events.groupBy("source").agg(F.sum("id").alias("total"), F.count("*").alias("n"))


@dataclass
class Case:
    """A pipeline that counts by topic, whose drivers run in this process.

    :ivar conn_id: the connection through which it reads, None for its own cluster's
    """

    config: Mapping[str, str]
    sink: str
    home: Home
    log: pytest.LogCaptureFixture
    name: str = field(default_factory=lambda: f"p-{uuid.uuid4().hex[:8]}")
    conn_id: str | None = None

    def declared(self, source: str | Sequence[str] | TopicPattern, **more: Any) -> Any:
        read = KafkaSource(source, schema="id BIGINT NOT NULL", topic_column="source", conn_id=self.conn_id, **more)
        sink = KafkaSink(self.sink, key="source")
        return pipeline(name=self.name, source=read, sink=sink, output_mode="update")(count_by_topic)

    def run(self, source: str | Sequence[str] | TopicPattern, *, expected: int = 0, **more: Any) -> str:
        """Run a driver until all that is there is committed; returns why it failed, if it did."""
        self.log.clear()
        options = DriverOptions(home=self.home, config=dict(self.config), token=str(uuid.uuid4()), until="available")
        code = Driver(self.declared(source, **more), options).run()
        assert code == expected, status.read(self.home.status)
        return "".join(record.getMessage() for record in self.log.records if record.levelname == "ERROR")

    def backfill(self, source: str | Sequence[str] | TopicPattern, topic: str, **asked: Any) -> list[bytes]:
        """Run a range again into another topic; returns the values that it has then."""
        home = workspace.make(self.home, self.name, BackfillRequest.parse(**asked, output=f"topic={topic}"))
        options = DriverOptions(home=home, config=dict(self.config), token=str(uuid.uuid4()), backfill=True)
        assert BackfillDriver(self.declared(source), options).run() == 0, status.read(home.status)
        return sorted(record.value or b"" for record in read_committed(self.config, topic))

    def commits(self) -> list[CommitRecord]:
        with LedgerReader(self.config, self.name) as reader:
            return list(reader.commits())

    def plan_without(self, topic: str) -> None:
        """Plan a batch that ends where the newest commit did, without one topic."""
        current, newest = self.home.current(), self.commits()[-1]
        assert current is not None
        version, header, line = newest.offsets.split("\n")
        line = json.dumps({name: of for name, of in json.loads(line).items() if name != topic})
        checkpoint = Checkpoint(self.home.checkpoint(current.id))
        checkpoint.write_offsets(current.batch_of(newest.commit) + 1, "\n".join([version, header, line]))

    def save(self) -> str:
        current, newest = self.home.current(), self.commits()[-1]
        assert current is not None
        checkpoint = Checkpoint(self.home.checkpoint(current.id))
        taken = Savepoints(self.home.savepoints).take(checkpoint, current.batch_of(newest.commit), newest, None)
        return taken.id


def check(
    config: Mapping[str, str],
    sink: str,
    commits: Sequence[CommitRecord],
    sent: Mapping[str, int],
    source_config: Mapping[str, str],
    elsewhere: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
) -> None:
    """Recompute each commit's rows from its source ranges, and compare them with the sink record by record.

    :param sent: {topic: how many records}, all of which must have been read
    :param elsewhere: {topic: its cluster} of those that are not on the sources' one
    """
    events = {
        (topic, record.partition, record.offset): json.loads(record.value or b"")["id"]
        for topic in {topic for commit in commits for topic in commit.source}
        for record in read_committed(elsewhere.get(topic, source_config), topic)
    }
    check_tiles(commits)
    totals: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    expected = []
    for commit in commits:
        touched = set()
        for topic, ranges in commit.source.items():
            for partition, (start, end) in ranges.items():
                for offset in range(start, end):
                    touched.add(topic)
                    totals[topic] += events[topic, partition, offset]
                    numbers[topic] += 1
        expected += [(commit.commit, topic, totals[topic], numbers[topic]) for topic in touched]
    written = []
    for number, record in rows_by_commit(config, sink, commits):
        row = json.loads(record.value or b"")
        written.append((number, row["source"], row["total"], row["n"]))
    assert sorted(written) == sorted(expected)
    assert dict(numbers) == {topic: count for topic, count in sent.items() if count}


def check_case(case: Case, topics: Topics) -> None:
    sent = {topics.name(name): count for name, count in topics.sent.items()}
    check(case.config, case.sink, case.commits(), sent, topics.config)
    clean_audit(case.config, case.name)


def check_backfills(case: Case, topics: Topics, both: list[str] | TopicPattern, make_topic: Callable[..., str]) -> None:
    """Run commits 2 and 3 again, and a range of offsets; compare with what was written, and with what was sent."""
    written = {
        commit.commit: [
            record.value or b""
            for record in read_committed(case.config, case.sink)
            if (span := commit.sink[case.sink].get(record.partition)) and span.first <= record.offset <= span.last
        ]
        for commit in case.commits()
    }
    assert case.backfill(both, make_topic(partitions=1), commits="2..3", state="savepoint") == sorted(
        written[2] + written[3]
    )
    offsets = {topics.name("a"): {0: [0, 5]}, topics.name("b"): {0: [3, 4], 1: [0, 2]}}
    again = case.backfill(both, make_topic(partitions=1), offsets=offsets, state="empty")
    assert [(row["source"], row["n"]) for row in map(json.loads, again)] == [
        (topics.name("a"), 5),
        (topics.name("b"), 3),
    ]

"""The source beside a reference consumer, over topics to which anything happens, at random.

Transactions that are committed, aborted or open while a driver runs; compaction and deletion that leave holes; topics
and partitions that are empty or that come later. After each run the consumer reads all topics anew, and each commit has
exactly the records that it finds in the commit's ranges.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from tests.integration.streaming.harness import check_tiles, clean_audit, read_committed, rows_by_commit
from tests.integration.streaming.source_topics import Case, Topics
from tests.kafka_settings import setting
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("signals_as_before")]

ROUNDS = 6
KEYS = 5
_HOUR = 3_600_000
#: {(topic, partition, offset): the record's id}
Seen = dict[tuple[str, int, int], int]
_NEVER = str(10**15)
#: What is older than a record by half an hour may be compacted or deleted, as soon as the test allows it.
BROKER = {
    "log.cleaner.backoff.ms": "100",  # it looks for something to compact all the time
    "log.cleaner.min.cleanable.ratio": "0.01",
    "log.cleaner.min.compaction.lag.ms": _NEVER,
    "log.cleanup.policy": "compact,delete",
    "log.message.timestamp.after.max.ms": _NEVER,
    "log.retention.ms": "-1",
    "log.roll.ms": str(_HOUR // 2),
}


def passed_through(events: DataFrame) -> DataFrame:
    return events.select("source", "id")


class PassingCase(Case):
    """A pipeline that writes what it reads."""

    def declared(self, source: Any, **more: Any) -> Any:
        read = KafkaSource(source, schema="id BIGINT NOT NULL", topic_column="source", **more)
        return pipeline(name=self.name, source=read, sink=KafkaSink(self.sink, key="source"))(passed_through)


@dataclass
class Logs:
    """Topics of one prefix, and what may happen to their logs while no driver runs."""

    topics: Topics
    chance: random.Random
    partitions: dict[str, int] = field(default_factory=dict)
    #: Of transactions that are neither committed nor aborted yet.
    undecided: list[Producer] = field(default_factory=list)
    #: Of the records, in milliseconds. Not of the markers of transactions: these have the time of day.
    clock: int = field(default_factory=lambda: int(time.time() * 1000))
    number: int = 0

    @property
    def config(self) -> dict[str, str]:
        return dict(self.topics.config)

    def make(self, name: str) -> None:
        self.partitions[name] = self.chance.randint(1, 3)
        self.topics.make(name, partitions=self.partitions[name])

    def some(self) -> str:
        return self.chance.choice(list(self.partitions))

    def send(self, producer: Producer, name: str, records: int) -> None:
        for _ in range(records):
            self.number += 1
            self.clock += 1
            value = json.dumps({"id": self.number})
            partition = self.chance.randrange(self.partitions[name])
            key = f"{partition}-{self.chance.randrange(KEYS)}"
            producer.produce(self.topics.name(name), value, key, partition=partition, timestamp=self.clock)
        assert producer.flush(30) == 0

    def plain(self) -> None:
        self.send(Producer(self.config), self.some(), self.chance.randint(1, 40))

    def transaction(self) -> Producer:
        producer = Producer({**self.config, "transactional.id": f"t{uuid.uuid4().hex}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        for _ in range(self.chance.randint(1, 2)):
            self.send(producer, self.some(), self.chance.randint(1, 20))
        return producer

    def committed(self) -> None:
        self.transaction().commit_transaction(30)

    def aborted(self) -> None:
        self.transaction().abort_transaction(30)

    def begun(self) -> None:
        self.undecided.append(self.transaction())

    def decided(self) -> None:
        for producer in self.undecided:
            self.chance.choice([producer.commit_transaction, producer.abort_transaction])(30)
        self.undecided.clear()

    def compacted(self) -> None:
        """Let the broker keep the newest record of each key, in all segments but those that are written to."""
        self.decided()  # behind an open transaction nothing is compacted
        name = self.some()
        self.clock += _HOUR
        closing = Producer(self.config)
        for partition in range(self.partitions[name]):
            self.number += 1
            value = json.dumps({"id": self.number})
            closing.produce(
                self.topics.name(name), value, f"end-{self.number}", partition=partition, timestamp=self.clock
            )
        assert closing.flush(30) == 0

        def is_compacted() -> bool:
            keys = [(record.partition, record.key) for record in read_committed(self.config, self.topics.name(name))]
            return len(keys) == len(set(keys))

        with setting(self.config, self.topics.name(name), min_compaction_lag_ms="0"):
            eventually(is_compacted, f"a compacted log of {name}", poll_seconds=0.3)

    def expired(self, read: Mapping[TopicPartition, int]) -> None:
        """Delete a part of what has been read."""
        begins = [
            confluent_kafka.TopicPartition(topic, partition, self.chance.randint(end // 2, end))
            for (topic, partition), end in read.items()
            if end and self.chance.random() < 0.5
        ]
        if begins:
            admin = AdminClient(dict(self.topics.config))
            for future in admin.delete_records(begins).values():
                future.result(30)

    def widened(self) -> None:
        name = self.some()
        self.partitions[name] += 1
        self.topics.add_partition(name, self.partitions[name])

    def seen(self) -> Seen:
        """Read all that is committed, as an ordinary consumer does."""
        return {
            (self.topics.name(name), record.partition, record.offset): json.loads(record.value or b"")["id"]
            for name in self.partitions
            for record in read_committed(self.config, self.topics.name(name))
        }


def check(case: Case, commits: Sequence[CommitRecord], seen: Seen, after: int) -> None:
    """Compare what later commits have written with what the consumer has seen in their ranges."""
    expected = [
        (commit.commit, topic, identity)
        for commit in commits[after:]
        for (topic, partition, offset), identity in seen.items()
        if (span := commit.source.get(topic, {}).get(partition)) and span[0] <= offset < span[1]
    ]
    written = []
    for number, record in rows_by_commit(case.config, case.sink, commits):
        row = json.loads(record.value or b"")
        written.append((number, row["source"], row["id"]))
    assert sorted(row for row in written if row[0] > after) == sorted(expected)


@pytest.fixture(scope="module")
def compacting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Give a broker whose topics may be compacted, and their records deleted by request, when the test wants it."""
    with EmbeddedBroker(tmp_path_factory.mktemp("compacting"), properties=BROKER) as broker:
        yield broker


@pytest.mark.parametrize("seed", range(4))
def test_each_commit_has_the_records_that_a_reference_consumer_finds_in_its_ranges(
    jvm: None, compacting: EmbeddedBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture, seed: int
) -> None:
    chance = random.Random(seed)
    topics = Topics({"bootstrap.servers": compacting.bootstrap_servers})
    [sink] = Topics(topics.config, prefix=f"sink{uuid.uuid4().hex[:8]}").make("s")
    logs = Logs(topics, chance)
    case = PassingCase(topics.config, sink, Home(tmp_path / "home"), caplog)
    logs.make("first")
    judged = 0
    read: dict[TopicPartition, int] = {}
    for turn in range(ROUNDS):
        happens = chance.choices(
            [logs.plain, logs.committed, logs.aborted, logs.begun, logs.decided, logs.compacted, logs.widened],
            weights=[4, 3, 3, 2, 2, 2, 1],
            k=5,
        )
        for happening in happens:
            happening()
        if chance.random() < 0.3:
            logs.make(f"later-{turn}")
        logs.expired(read)
        case.run(topics.pattern, starting_offsets="earliest", max_offsets_per_trigger=chance.choice([None, 7, 50]))
        commits, seen = case.commits(), logs.seen()
        check(case, commits, seen, after=judged)
        judged = len(commits)
        read = {place: end for commit in commits for place, end in commit.ends.items()}
        assert all(offset < read[topic, partition] for topic, partition, offset in seen), "some are in no commit"
    check_tiles(case.commits())
    clean_audit(case.config, case.name)

"""A pipeline that commits at random, others that write to its topics, and what a reader of all that can see."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)

from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger import topic as ledger_topics
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.records import (
    LedgerPointer,
    SinkRange,
    backfill_pipeline,
    commit_key,
    encode,
    ledger_topic,
)
from tests.integration.streaming.harness import end_offsets
from tests.ledger_records import claim_record, commit_record
from tests.waiting import eventually

SOURCE_PARTITIONS = 2
START_MILLISECONDS = 1_700_000_000_000
UNREACHABLE = 10**9


@dataclass(frozen=True)
class World:
    """How one world differs from others.

    :param tells_topics: records name all topics ever written to, as this release's do
    :param is_backfill: the ledger is that of a pipeline's backfills
    :param guarantees: those with which batches are committed, at random
    :param loses: retention and compaction take old commits
    """

    tells_topics: bool = True
    is_backfill: bool = False
    guarantees: tuple[str, ...] = ("exactly_once",)
    loses: bool = True


@dataclass(frozen=True)
class Commit:
    """What is true of one commit.

    :param rows: {(topic, partition, value)}
    :param ends: source ends
    """

    number: int
    rows: frozenset[tuple[str, int, bytes]]
    ends: Mapping[int, int]
    watermark: int
    ledger_offset: int


class Reader:
    """An independent reader at read_committed."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"reference-{uuid.uuid4()}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 1,
            }
        )
        self._places: dict[tuple[str, int], int] = {}
        self.seen: set[tuple[str, int, bytes]] = set()

    def close(self) -> None:
        self._consumer.close()

    def read_on(self, partitions: Mapping[str, int]) -> None:
        """Read all that can be read now."""
        places = [(topic, number) for topic, count in partitions.items() for number in range(count)]
        self._consumer.assign([TopicPartition(*place, self._places.get(place, 0)) for place in places])
        left = set(places)
        deadline = time.monotonic() + 60
        while left:
            assert time.monotonic() < deadline, f"no end of {sorted(left)} in sight"
            message = self._consumer.poll(1.0)
            if message is None:
                continue
            place = (str(message.topic()), int(message.partition() or 0))
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                left.discard(place)
            else:
                self.seen.add((*place, message.value() or b""))
                self._places[place] = int(message.offset() or 0) + 1
        self._consumer.unassign()


class GateWorld:
    """Takes random steps.

    :param make_topic: makes a topic and returns its name
    """

    def __init__(self, config: Mapping[str, str], make_topic: Callable[..., str], random: Random, world: World) -> None:
        self.config, self.random, self.world = dict(config), random, world
        self.admin = AdminClient(dict(self.config))
        self.offsets = StableOffsets(self.config)
        self.source = make_topic(partitions=SOURCE_PARTITIONS)
        self.partitions = {make_topic(partitions=count): count for count in (3, 2, 1)}
        self.topic_ids = {topic: of.topic_id for topic, of in self.offsets.describe(self.partitions).items()}
        name = f"gates-{uuid.uuid4().hex[:8]}"
        self.pipeline = backfill_pipeline(name) if world.is_backfill else name
        self.ledger = ledger_topic(self.pipeline)
        ledger_topics.ensure(self.config, self.pipeline)
        self.plain = Producer({**self.config, "linger.ms": 0})
        self.own = self._transactional(f"exactlyonce.{self.pipeline}")
        self.foreign = [self._transactional(f"foreign-{uuid.uuid4()}") for _ in range(2)]
        self.open: set[int] = set()  # of them
        self.is_attempting = False
        self.commits: list[Commit] = []
        self.lost = 0  # commits 1 to this one are tombstoned
        self.told_names: set[str] = set()
        self.place = LedgerPointer()
        self.written = 0
        self.source_written = dict.fromkeys(range(SOURCE_PARTITIONS), 0)
        self.ends = dict.fromkeys(range(SOURCE_PARTITIONS), 0)
        self.watermark = 0
        self.reader = Reader(self.config)
        self._claim()

    def _transactional(self, name: str) -> Producer:
        producer = Producer({**self.config, "transactional.id": name, "linger.ms": 0})
        producer.init_transactions(30)
        return producer

    def close(self) -> None:
        self.reader.close()
        for number in sorted(self.open):
            self.foreign[number].abort_transaction(30)
        if self.is_attempting:
            self.own.abort_transaction(30)

    # -- steps ------------------------------------------------------------------------------------------------------

    def step(self) -> str:
        """Do something; returns what."""
        steps: dict[Callable[[], str], float] = {
            self._commit: 10,
            self._attempt: 1,
            self._begin_or_end_foreign: 6,
            self._write_plainly: 1,
            self._feed_source: 3,
            self._add_partition: 0.3,
            self._write_again: 0.7,
            self._claim: 0.3,
            self._lose: 1.5 if self.world.loses else 0,
        }
        [chosen] = self.random.choices(list(steps), weights=list(steps.values()))
        return chosen()

    def _some_places(self) -> list[tuple[str, int]]:
        """Choose partitions; the first of the first topic is often all that is written for a while."""
        if self.random.random() < 0.6:
            first = next(iter(self.partitions))
            return [(first, 0)]
        places = [(topic, number) for topic, count in self.partitions.items() for number in range(count)]
        return self.random.sample(places, self.random.randint(0, len(places)))

    def _rows(self, producer: Producer) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
        """Write random rows; returns their offsets and values."""
        values: dict[tuple[str, int], list[tuple[int, bytes]]] = {}

        def delivered(error: object, message: Any) -> None:
            assert error is None, error
            values.setdefault((message.topic(), message.partition()), []).append((message.offset(), message.value()))

        for topic, number in self._some_places():
            for _ in range(self.random.randint(1, 2)):
                self.written += 1
                producer.produce(topic, f"{self.written}".encode(), partition=number, on_delivery=delivered)
        assert producer.flush(30) == 0
        return values

    def _commit(self) -> str:
        self._end_attempt()
        guarantee = self.random.choice(self.world.guarantees)
        self.own.begin_transaction()
        rows = self._rows(self.own if guarantee == "exactly_once" else self.plain)
        for number, written in self.source_written.items():
            self.ends[number] = self.random.randint(self.ends[number], written)
        self.watermark += self.random.randint(0, 2)
        self._record(rows, guarantee)
        return f"commit {self.place.commit} of {sorted(rows)}"

    def _record(
        self,
        rows: Mapping[tuple[str, int], list[tuple[int, bytes]]],
        guarantee: str = "exactly_once",
        *,
        tombstones: tuple[bytes, ...] = (),
        **changes: Any,
    ) -> None:
        """Write the record of a commit, and commit."""
        sink: dict[str, dict[int, SinkRange]] = {}
        for (topic, number), of in rows.items():
            only = SinkRange(first=of[0][0], last=of[-1][0], rows=len(of), digest=0)
            sink.setdefault(topic, {})[number] = only
        names = {topic for topic, _ in rows}
        if self.random.random() < 0.1:  # a range without rows says nothing
            topic = self.random.choice(list(self.partitions))
            sink.setdefault(topic, {}).setdefault(0, SinkRange(first=0, last=-1, rows=0, digest=0))
        is_told = guarantee == "exactly_once"
        newest = self.commits[-1] if self.commits else None
        record = commit_record(
            self.place.commit + 1,
            pipeline=self.pipeline,
            batch=self.place.commit,
            run=self.place.run,
            source={
                self.source: {
                    number: (newest.ends[number] if newest else 0, end) for number, end in sorted(self.ends.items())
                }
            },
            sink=sink if is_told else {},
            sink_topic_ids=self._ids(names) if self.world.tells_topics or not is_told else {},
            former_sink_topics=self._ids(self.told_names - names) if self.world.tells_topics else {},
            sink_topics_since=1 if self.world.tells_topics else 0,
            watermark=START_MILLISECONDS + self.watermark,
            rows=sum(len(of) for of in rows.values()),
            producer_id=0,
            epoch=0,
            committed=int(time.time() * 1000) - 10,
            before=self.place,
            guarantee=guarantee,
            backfill="b" if self.world.is_backfill else None,
        )
        record = replace(record, **changes)
        offset = self._write_to_ledger(record.key, encode(record), tombstones)
        self.told_names |= names
        self.place = replace(record.before, commit=record.commit, commit_offset=offset)
        self.commits.append(
            Commit(
                number=record.commit,
                rows=frozenset((*place, value) for place, of in rows.items() for _, value in of),
                ends=dict(self.ends),
                watermark=record.watermark,
                ledger_offset=offset,
            )
        )

    def _ids(self, topics: set[str]) -> dict[str, str]:
        return {topic: self.topic_ids[topic] for topic in sorted(topics)}

    def _write_to_ledger(self, key: bytes, value: bytes, tombstones: tuple[bytes, ...] = ()) -> int:
        offsets: list[int] = []

        def delivered(_: object, message: Message) -> None:
            offsets.append(cast(int, message.offset()))

        self.own.produce(self.ledger, value, key, 0, on_delivery=delivered)
        for old in tombstones:
            self.own.produce(self.ledger, None, old, 0)
        assert self.own.flush(30) == 0
        self.own.commit_transaction(30)
        eventually(
            lambda: end_offsets(self.config, self.ledger, IsolationLevel.READ_COMMITTED)[0] > offsets[0],
            "the ledger's end can be read",
            poll_seconds=0.01,
        )
        return offsets[0]

    def _attempt(self) -> str:
        """Begin a batch that will be aborted."""
        self._end_attempt()
        self.own.begin_transaction()
        self._rows(self.own)
        self.is_attempting = True
        return "attempt"

    def _end_attempt(self) -> None:
        if self.is_attempting:
            self.own.abort_transaction(30)
        self.is_attempting = False

    def _begin_or_end_foreign(self) -> str:
        number = self.random.randrange(len(self.foreign))
        producer = self.foreign[number]
        if number in self.open and self.random.random() < 0.5:
            self.open.discard(number)
            ends = self.random.choice(("commit", "abort"))
            getattr(producer, f"{ends}_transaction")(30)
            return f"foreign {ends}"
        if number not in self.open:
            producer.begin_transaction()
            self.open.add(number)
        return f"foreign {number} writes {sorted(self._rows(producer))}"

    def _write_plainly(self) -> str:
        return f"plain writes {sorted(self._rows(self.plain))}"

    def _feed_source(self) -> str:
        for number in range(SOURCE_PARTITIONS):
            count = self.random.randint(0, 3)
            for _ in range(count):
                self.source_written[number] += 1
                timestamp = START_MILLISECONDS + self.source_written[number]
                self.plain.produce(self.source, b"v", partition=number, timestamp=timestamp)
        assert self.plain.flush(30) == 0
        return "feed"

    def _add_partition(self) -> str:
        topic = self.random.choice(list(self.partitions))
        count = self.partitions[topic] + 1
        self.admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)
        eventually(
            lambda: (
                len(self.admin.list_topics(topic).topics[topic].partitions) == count
                and all(
                    partition.leader >= 0
                    for partition in self.admin.list_topics(topic).topics[topic].partitions.values()
                )
            ),
            "the partition is there",
        )
        self.partitions[topic] = count
        for producer in (self.own, self.plain, *self.foreign):  # each refuses a partition of which it has not heard yet
            producer.list_topics(topic, timeout=30)
        return f"partition {topic}-{count - 1}"

    def _write_again(self) -> str:
        """Restore an older commit, and write the output of those that followed again."""
        kept = [commit for commit in self.commits if commit.number > self.lost]
        if len(kept) < 2:
            return "nothing to write again"
        self._end_attempt()
        back = self.random.choice(kept[-5:-1])
        self.ends, self.watermark = dict(back.ends), back.watermark - START_MILLISECONDS
        self.own.begin_transaction()
        self._record(self._rows(self.own), reemits_from=back.number)
        return f"again after {back.number}, as commit {self.place.commit}"

    def _claim(self) -> str:
        self._end_attempt()
        claim = claim_record(
            self.place.run + 1,
            pipeline=self.pipeline,
            host="here",
            home="h",
            home_path="/h",
            base_commit=self.place.commit,
            before=self.place,
        )
        self.own.begin_transaction()
        offset = self._write_to_ledger(claim.key, encode(claim))
        self.place = replace(self.place, run=claim.run, run_offset=offset)
        return f"run {claim.run}"

    def _lose(self) -> str:
        """Tombstone old commits with a new one, and perhaps let compaction take them.

        The log's start is moved, which is what a reader sees of a compaction of its oldest records.
        """
        newest = self.place.commit
        if newest < 4:
            return "nothing to lose"
        self._claim()  # behind what is cut away: a ledger is opened with the newest
        lost = self.random.randint(self.lost, newest - 2)
        gone = tuple(commit_key(number) for number in range(self.lost + 1, lost + 1))
        self.own.begin_transaction()
        before = replace(self.place, oldest=lost + 1)
        self._record(self._rows(self.own), tombstones=gone, before=before)
        self.lost = lost
        if self.random.random() < 0.7:
            self._set_policy("compact,delete")
            eventually(lambda: self._has_cut(self.commits[lost].ledger_offset), "the ledger is cut")
            self._set_policy("compact")
        return f"commits up to {lost} are gone"

    def _has_cut(self, offset: int) -> bool:
        """Move the ledger's start; False as long as the broker has not heard of its new policy."""
        [cut] = self.admin.delete_records([TopicPartition(self.ledger, 0, offset)]).values()
        try:
            cut.result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.POLICY_VIOLATION:
                raise
            return False
        return True

    def _set_policy(self, policy: str) -> None:
        entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, self.ledger, incremental_configs=[entry])
        self.admin.incremental_alter_configs([resource])[resource].result(30)

    # -- truth --------------------------------------------------------------------------------------------------------

    @property
    def nothing_is_held(self) -> bool:
        """Whether no transaction is open."""
        return not self.open and not self.is_attempting

    def look(self) -> None:
        """Let the reader read all that it can."""
        self.reader.read_on(self.partitions)

    def unread(self, up_to: int) -> list[tuple[str, int, bytes]]:
        """Return rows of the commits up to a number that the reader lacks."""
        rows = {row for commit in self.commits[:up_to] for row in commit.rows}
        return sorted(rows - self.reader.seen)

    def met_by(self, target: GateTarget) -> int:
        """Return the commit that met a target: the first of the newest ones that all do; 0 for none."""
        met = 0
        for commit in self.commits:
            met = (met or commit.number) if self._is_met(target, commit) else 0
        return met

    def _is_met(self, target: GateTarget, commit: Commit) -> bool:
        if target.commit is not None:
            return commit.number >= target.commit
        if target.watermark is not None:
            return commit.watermark >= target.watermark
        assert target.offsets is not None
        return all(commit.ends[number] >= end for number, end in target.offsets[self.source].items())

    @property
    def is_at_the_end(self) -> bool:
        """Whether the pipeline has read its source to the end."""
        return bool(self.commits) and self.commits[-1].ends == self.source_written

    def targets(self) -> list[GateTarget]:
        """Return targets of every form, met ones and others."""
        newest = self.place.commit
        offsets = {number: self.random.randint(0, end + 1) for number, end in self.ends.items()}
        return [
            GateTarget(commit=1),
            GateTarget(commit=self.random.randint(1, newest + 1)),
            GateTarget(commit=max(1, newest)),
            GateTarget(watermark=START_MILLISECONDS + self.random.randint(0, self.watermark + 1)),
            GateTarget(watermark=START_MILLISECONDS + self.watermark),
            GateTarget(offsets={self.source: offsets}),
            GateTarget(offsets={self.source: dict(self.ends)}),
            GateTarget(timestamp=START_MILLISECONDS + self.random.randint(0, self.source_written[0] + 1)),
            GateTarget(up_to_now=True),
            GateTarget(commit=UNREACHABLE),
        ]

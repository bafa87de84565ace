"""Sources of several topics, and of all that a pattern matches: compared with a reader of its own, record by record."""

from __future__ import annotations

import json
import signal
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.backfill.request import BackfillRequest
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger import gate
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.driver.backfill_driver import BackfillDriver
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.delta_reader import read_delta
from tests.integration.streaming.harness import World, read_committed
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("signals_as_before")

REFUSED = 64
LOST = 72


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


@pytest.fixture
def topics(kafka_config: Mapping[str, str]) -> Topics:
    return Topics(kafka_config)


def count_by_topic(events: DataFrame) -> DataFrame:
    return events.groupBy("source").agg(F.sum("id").alias("total"), F.count("*").alias("n"))


@dataclass
class Case:
    """A pipeline that counts by topic, whose drivers run in this process."""

    config: Mapping[str, str]
    sink: str
    home: Home
    log: pytest.LogCaptureFixture
    name: str = field(default_factory=lambda: f"p-{uuid.uuid4().hex[:8]}")

    def declared(self, source: str | Sequence[str] | TopicPattern, **more: Any) -> Any:
        read = KafkaSource(source, schema="id BIGINT NOT NULL", topic_column="source", **more)
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


@pytest.fixture
def case(
    jvm: None,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> Case:
    return Case(kafka_config, make_topic(partitions=2), Home(tmp_path / "home"), caplog)


def check(config: Mapping[str, str], sink: str, commits: Sequence[CommitRecord], sent: Mapping[str, int]) -> None:
    """Recompute each commit's rows from its source ranges, and compare them with the sink record by record.

    :param sent: {topic: how many records}, all of which must have been read
    """
    events = {
        (topic, record.partition, record.offset): json.loads(record.value or b"")["id"]
        for topic in {topic for commit in commits for topic in commit.source}
        for record in read_committed(config, topic)
    }
    ends: dict[tuple[str, int], int] = {}
    totals: Counter[str] = Counter()
    numbers: Counter[str] = Counter()
    expected = []
    for commit in commits:
        touched = set()
        for topic, ranges in commit.source.items():
            for partition, (start, end) in ranges.items():
                assert start == ends.get((topic, partition), 0), f"commit {commit.commit} leaves a gap or overlaps"
                ends[topic, partition] = end
                for offset in range(start, end):
                    touched.add(topic)
                    totals[topic] += events[topic, partition, offset]
                    numbers[topic] += 1
        expected += [(commit.commit, topic, totals[topic], numbers[topic]) for topic in touched]
    places = {
        (partition, offset): commit.commit
        for commit in commits
        for partition, span in commit.sink.get(sink, {}).items()
        for offset in range(span.first, span.last + 1)
    }
    written = []
    for record in read_committed(config, sink):
        row = json.loads(record.value or b"")
        written.append((places[record.partition, record.offset], row["source"], row["total"], row["n"]))
    assert sorted(written) == sorted(expected)
    assert dict(numbers) == {topic: count for topic, count in sent.items() if count}


def check_case(case: Case, topics: Topics) -> None:
    check(case.config, case.sink, case.commits(), {topics.name(name): count for name, count in topics.sent.items()})
    report = audit(case.config, case.name, AuditOptions(patience_seconds=10))
    assert report.is_clean, [str(violation) for violation in report.found]


@pytest.mark.slow
@pytest.mark.parametrize("by", ["names", "pattern"])
def test_several_topics_are_one_source_through_a_restore_a_replay_and_a_backfill(
    case: Case, topics: Topics, make_topic: Callable[..., str], by: str
) -> None:
    made = topics.make("b", "empty", "a")
    both: list[str] | TopicPattern = made if by == "names" else topics.pattern
    for _ in range(3):
        topics.send(70, "a", "b")
        case.run(both, max_offsets_per_trigger=80)
    saved = case.save()
    topics.send(30, "a")
    case.run(both, max_offsets_per_trigger=80)
    assert set(case.commits()[-1].source_topic_ids) == set(made)
    check_case(case, topics)

    before = len(case.commits())
    restore(case.home, case.name, case.config, RestoreRequest(savepoint=saved))
    topics.send(10, "b")
    case.run(
        both[::-1] if isinstance(both, list) else both, max_offsets_per_trigger=80
    )  # replays what follows the savepoint, then goes on
    assert len(case.commits()) == before + 1
    check_case(case, topics)

    topics.make("late")  # no commit that is run again has it
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


@pytest.mark.slow
def test_a_topic_may_be_added_to_a_source_and_none_may_leave_it(case: Case, topics: Topics) -> None:
    first, second = topics.make("a", "b")
    topics.send(20, "a")
    case.run(first)
    topics.send(20, "a", "b")
    case.run([first, second])
    check_case(case, topics)
    topics.send(1, "a", "b")
    assert f"has read topic {first}, and the sources now read {second}" in case.run(second, expected=REFUSED)
    case.plan_without(first)  # as Spark would, if the cluster once did not tell of the topic
    case.run([first, second])
    check_case(case, topics)


@pytest.mark.slow
def test_a_topic_of_several_that_is_recreated_stops_the_pipeline_by_name(case: Case, topics: Topics) -> None:
    both = topics.make("a", "b")
    topics.send(20, "a", "b")
    case.run(both)
    topics.delete("b")
    assert f"source topic {both[1]} does not exist" in case.run(both, expected=REFUSED)
    topics.make("b")
    assert f"source topic {both[1]} was recreated" in case.run(both, expected=REFUSED)


def test_new_topics_and_partitions_of_a_pattern_are_read_from_their_beginning_and_replayed_exactly(
    case: Case, topics: Topics
) -> None:
    topics.make("a")
    topics.send(40, "a")
    case.run(topics.pattern, starting_offsets="earliest")
    saved = case.save()
    topics.make("b", "empty")
    topics.send(40, "a", "b")
    case.run(topics.pattern)
    topics.add_partition("a", 3)
    topics.send(5, "a", partition=2)
    case.run(topics.pattern)
    assert [sorted(commit.source) for commit in case.commits()] == [
        [topics.name("a")],
        *[[topics.name("a"), topics.name("b"), topics.name("empty")]] * 2,
    ]
    check_case(case, topics)

    restore(case.home, case.name, case.config, RestoreRequest(savepoint=saved))
    topics.make("c")  # no recorded commit has it
    topics.send(40, "c")
    now = GateTarget(up_to_now=True)
    assert topics.name("c") in gate.check(case.config, case.name, now).missing
    case.run(topics.pattern)
    assert gate.check(case.config, case.name, now).open
    assert topics.name("c") in case.commits()[-1].source
    assert len(case.commits()) == 4
    check_case(case, topics)


@pytest.mark.slow
def test_a_topic_of_a_pattern_that_is_gone_or_recreated_stops_the_pipeline_by_name(case: Case, topics: Topics) -> None:
    topics.make("a", "b")
    topics.send(20, "a", "b")
    case.run(topics.pattern)
    topics.delete("b")
    topics.send(1, "a")
    assert topics.name("b") in case.run(topics.pattern, expected=REFUSED)
    topics.make("b")
    assert f"source topic {topics.name('b')} was recreated" in case.run(topics.pattern, expected=REFUSED)


@pytest.mark.slow
def test_a_topic_whose_first_records_are_gone_when_it_is_found_stops_the_pipeline(case: Case, topics: Topics) -> None:
    topics.make("a")
    topics.send(20, "a")
    case.run(topics.pattern)
    topics.make("b", partitions=1)
    topics.send(9, "b")
    admin, place = AdminClient(dict(case.config)), TopicPartition(topics.name("b"), 0, 4)
    admin.delete_records([place])[place].result(30)
    assert f"{topics.name('b')}-0" in case.run(topics.pattern, expected=LOST)


@pytest.mark.slow
def test_drivers_that_are_killed_lose_and_double_nothing_of_a_patterns_topics(world: World, topics: Topics) -> None:
    world.job, world.source = "topics.py", str(SourceTopics.of(topics.pattern))
    topics.make("a", "b")
    topics.send(90, "a", "b")
    for number, step in enumerate(("after-pre-commit:batch=0", "after-end-transaction:batch=0", "during-send:batch=2")):
        driver = world.start(failpoints=f"{step}:run={number + 1}", own_jvm=number == 1)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
        topics.make(f"new-{number}", partitions=1)
        topics.send(50, f"new-{number}", "a")
    last = world.start()
    assert last.wait() == 0, last.output()[-3000:]
    sent = {topics.name(name): count for name, count in topics.sent.items()}
    check(world.config, world.sink, world.ledger()[0], sent)
    assert audit(world.config, world.pipeline, AuditOptions(patience_seconds=10)).is_clean


@pytest.mark.slow
def test_a_batch_that_another_sink_has_alone_is_planned_again_with_the_topics_that_it_found(
    world: World, topics: Topics, tmp_path: Path
) -> None:
    world.job, world.source = "topics.py", str(SourceTopics.of(topics.pattern))
    table = {"TEST_TABLE": str(tmp_path / "table")}
    topics.make("a")
    topics.send(10, "a")
    first = world.start(environment=table)
    assert first.wait() == 0, first.output()[-3000:]
    topics.make("b")
    topics.send(10, "a", "b")
    second = world.start(environment=table, failpoints="after-sink-commit:batch=1", own_jvm=True)
    assert second.wait() == -signal.SIGKILL, second.output()[-3000:]
    lineage = Home(world.home).current()
    assert lineage is not None
    Checkpoint(Home(world.home).checkpoint(lineage.id)).remove("offsets", 1)  # as a host's crash leaves it
    topics.make("c")
    topics.send(10, "b", "c")
    third = world.start(environment=table)
    assert third.wait() == 0, third.output()[-3000:]
    assert "batch 1 is planned as run 2 has committed it to a sink" in third.output()
    commits = world.ledger()[0]
    assert [len(commit.source) for commit in commits] == [1, 2, 3]
    check(world.config, world.sink, commits, {topics.name(name): count for name, count in topics.sent.items()})
    assert audit(world.config, world.pipeline, AuditOptions(patience_seconds=10)).is_clean
    rows = read_delta(tmp_path / "table")
    kafka = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted((row["source"], row["n"]) for row in rows) == sorted((row["source"], row["n"]) for row in kafka)

"""Sources on another cluster than the sink's: two real brokers, whose topics have the same names and other records."""

from __future__ import annotations

import json
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.control import status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.doctor.examine import examine
from airflow_provider_exactlyonce.doctor.findings import Finding, Severity
from airflow_provider_exactlyonce.doctor.gather import gather
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger import gate
from airflow_provider_exactlyonce.ledger.gate import Gate, GateAnswer
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, TopicPattern, pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.replay.rescale import rescale
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests.integration.streaming.harness import CONN_ID, World, read_committed
from tests.integration.streaming.source_topics import Case, Topics, check, check_backfills, check_case, count_by_topic

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("signals_as_before")]

REFUSED = 64
AWAY = {"bootstrap.servers": "127.0.0.1:1"}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Give the configuration of a second cluster."""
    with EmbeddedBroker(tmp_path_factory.mktemp("elsewhere"), heap_megabytes=256) as broker:
        yield {"bootstrap.servers": broker.bootstrap_servers}


@pytest.fixture
def topics(elsewhere: Mapping[str, str]) -> Topics:
    return Topics(elsewhere)


@pytest.fixture
def decoys(kafka_config: Mapping[str, str], topics: Topics) -> Topics:
    """Give topics of the same names on the sink's cluster, which nobody must read."""
    return Topics(kafka_config, topics.prefix)


@pytest.fixture
def case(
    jvm: None,
    kafka_config: Mapping[str, str],
    elsewhere: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> Case:
    connect(monkeypatch, {CONN_ID: elsewhere})
    case = Case(kafka_config, make_topic(partitions=2), Home(tmp_path / "home"), caplog)
    case.conn_id = CONN_ID
    return case


def connect(monkeypatch: pytest.MonkeyPatch, connections: Mapping[str, Mapping[str, str]]) -> None:
    monkeypatch.setenv("EXACTLYONCE_SOURCES", json.dumps(connections))


def errors(pipeline: str, config: Mapping[str, str]) -> list[Finding]:
    return [finding for finding in examine(pipeline, config, None).findings if finding.severity is Severity.ERROR]


def id_of(config: Mapping[str, str]) -> str:
    admin = AdminClient(dict(config))
    return str(admin.describe_cluster().result().cluster_id)


@pytest.mark.parametrize("by", ["names", "pattern"])
def test_a_source_elsewhere_goes_through_a_restore_a_replay_and_a_backfill(
    case: Case, topics: Topics, decoys: Topics, make_topic: Callable[..., str], by: str
) -> None:
    made = topics.make("b", "empty", "a")
    decoys.make("b", "empty", "a", partitions=1)
    decoys.send(500, "b", "empty", "a")
    both: list[str] | TopicPattern = made if by == "names" else topics.pattern
    for _ in range(2):
        topics.send(70, "a", "b")
        case.run(both, max_offsets_per_trigger=80)
    saved = case.save()
    topics.send(30, "a")
    case.run(both, max_offsets_per_trigger=80)
    with LedgerReader(case.config, case.name) as reader:
        tail = reader.tail()
    assert tail is not None
    assert tail.claim is not None
    assert tail.claim.source_clusters == {str(SourceTopics.of(both)): (CONN_ID, id_of(topics.config))}
    assert tail.cluster_id == id_of(case.config)
    seen = status.read(case.home.status)
    assert seen is not None
    assert seen.lag == 0
    check_case(case, topics)
    assert errors(case.name, case.config) == []

    before = len(case.commits())
    restore(case.home, case.name, case.config, RestoreRequest(savepoint=saved))
    topics.send(10, "b")
    now = GateTarget(up_to_now=True)
    assert topics.name("b") in gate.check(case.config, case.name, now).missing
    case.run(both, max_offsets_per_trigger=80)  # replays what follows the savepoint, then goes on
    assert gate.check(case.config, case.name, now).open
    assert gate.check(case.config, case.name, GateTarget(timestamp=int(time.time() * 1000) - 1)).open
    assert len(case.commits()) == before + 1
    check_case(case, topics)

    check_backfills(case, topics, both, make_topic)


def test_drivers_that_are_killed_lose_and_double_nothing_of_topics_elsewhere(
    world: World, topics: Topics, decoys: Topics
) -> None:
    world.job, world.source, world.elsewhere = "topics.py", str(SourceTopics.of(topics.pattern)), topics.config
    topics.make("a", "b")
    decoys.make("a", "b")
    decoys.send(500, "a", "b")
    topics.send(90, "a", "b")
    for number, step in enumerate(("after-pre-commit:batch=0", "after-end-transaction:batch=0", "during-send:batch=2")):
        driver = world.start(failpoints=f"{step}:run={number + 1}", own_jvm=number == 1)
        assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
        topics.send(60, "a", "b")
    last = world.start()
    assert last.wait() == 0, last.output()[-3000:]
    sent = {topics.name(name): count for name, count in topics.sent.items()}
    check(world.config, world.sink, world.ledger()[0], sent, topics.config)
    assert {tuple(claim.source_clusters) for claim in world.ledger()[1]} == {(world.source,)}


def test_a_source_that_is_moved_to_another_cluster_is_refused_by_name_and_a_renamed_connection_is_not(
    case: Case, topics: Topics, decoys: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topics.make("a")
    decoys.make("a")
    topics.send(20, "a")
    decoys.send(20, "a")
    case.run(made)
    topics.send(5, "a")
    here, there = id_of(case.config), id_of(topics.config)
    connect(monkeypatch, {CONN_ID: case.config})
    moved = case.run(made, expected=REFUSED)
    assert f"source topic {made[0]} is read from the cluster of connection {CONN_ID} now, whose id is {here}" in moved
    assert f"read it from the cluster of connection {CONN_ID}, whose id was {there}" in moved
    case.conn_id = None
    assert f"source topic {made[0]} is read from this cluster now" in case.run(made, expected=REFUSED)
    case.conn_id = "renamed"
    assert "has no connection renamed" in case.run(made, expected=REFUSED)
    connect(monkeypatch, {"renamed": topics.config})
    case.run(made)
    check_case(case, topics)


def test_a_pipelines_own_topic_is_not_read_on_from_another_cluster(case: Case, topics: Topics, decoys: Topics) -> None:
    made = topics.make("a")
    decoys.make("a")
    topics.send(20, "a")
    decoys.send(20, "a")
    case.conn_id = None
    case.run(made)
    case.conn_id = CONN_ID
    refused = case.run(made, expected=REFUSED)
    assert f"run 1 has read it from this cluster, whose id was {id_of(case.config)}" in refused
    case.conn_id = None
    case.run(made)
    check_case(case, decoys)


def test_a_topic_elsewhere_that_is_gone_or_recreated_stops_the_pipeline_by_name(
    case: Case, topics: Topics, decoys: Topics
) -> None:
    made = topics.make("a")
    decoys.make("a")
    topics.send(20, "a")
    case.run(made)
    topics.delete("a")
    gone = case.run(made, expected=REFUSED)
    assert f"source topic {made[0]} does not exist on the cluster of connection {CONN_ID}" in gone
    topics.make("a")
    assert f"source topic {made[0]} was recreated" in case.run(made, expected=REFUSED)


def test_a_topic_of_a_pattern_that_is_gone_is_told_by_name_also_if_the_sink_has_its_name(
    case: Case, topics: Topics, decoys: Topics
) -> None:
    [case.sink] = decoys.make("b")
    topics.make("a", "b")
    topics.send(20, "a", "b")
    case.run(topics.pattern)
    topics.delete("b")
    topics.send(1, "a")
    assert f"source topic {topics.name('b')}, which commit 1 read by" in case.run(topics.pattern, expected=REFUSED)


def test_a_rescale_looks_for_what_is_replayed_on_the_sources_cluster(
    case: Case, topics: Topics, decoys: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topics.make("a", "b")
    decoys.make("a", "b", partitions=1)
    for _ in range(2):
        topics.send(70, "a", "b")
        case.run(made, max_offsets_per_trigger=80)
    spark = open_session("rescale")
    connect(monkeypatch, {})
    assert rescale(case.home, case.name, case.config, 4, spark=spark).span is None, "nothing of the source is asked"
    connect(monkeypatch, {CONN_ID: topics.config})
    topics.send(20, "a")
    case.run(made)

    current, newest = case.home.current(), case.commits()[-1].commit
    assert current is not None
    Checkpoint(case.home.checkpoint(current.id)).removal("commits", current.batch_of(newest))()
    for connections, said in (
        ({}, f"has no connection {CONN_ID}"),
        ({CONN_ID: AWAY}, f"the cluster of connection {CONN_ID}, .* can't be reached"),
        ({CONN_ID: case.config}, f"connection {CONN_ID} leads to cluster {id_of(case.config)}"),
    ):
        connect(monkeypatch, connections)
        with pytest.raises(ExactlyOnceError, match=said):
            rescale(case.home, case.name, case.config, 3, spark=spark)
        assert case.home.current() == current
    connect(monkeypatch, {CONN_ID: topics.config})
    done = rescale(case.home, case.name, case.config, 3, spark=spark)
    assert done.span is not None
    assert (done.span.first, done.span.last) == (newest, newest)
    topics.send(10, "b")
    case.run(made)
    check_case(case, topics)


class TwoClusters(Case):
    """Reads a topic of its own cluster beside those of the other one."""

    here: str | TopicPattern = ""

    def declared(self, source: str | Sequence[str] | TopicPattern, **more: Any) -> Any:
        how = {"schema": "id BIGINT NOT NULL", "topic_column": "source", **more}
        sources = {"here": KafkaSource(self.here, **how), "there": KafkaSource(source, conn_id=CONN_ID, **how)}
        sink = KafkaSink(self.sink, key="source")
        made = pipeline(name=self.name, source=sources, sink=sink, output_mode="update")
        return made(lambda here, there: count_by_topic(here.unionByName(there)))


def test_one_pipeline_reads_its_own_cluster_and_another_one(case: Case, topics: Topics, decoys: Topics) -> None:
    both, there = TwoClusters(case.config, case.sink, case.home, case.log), TopicPattern(rf"{topics.prefix}\.there.*")
    [here] = decoys.make("here")
    both.here = here
    topics.make("there", "there.too")
    topics.make("here", partitions=1)
    decoys.make("there", "there.three", partitions=1)  # which the pattern would match
    decoys.send(9, "there", "there.three")
    topics.send(9, "here")
    read = [(decoys, "here"), (topics, "there"), (topics, "there.too")]

    def send(records: int) -> None:
        for on, name in read:
            on.send(records, name)

    send(40)
    both.run(there, max_offsets_per_trigger=50)
    saved = both.save()
    send(30)
    both.run(there, max_offsets_per_trigger=50)
    restore(both.home, both.name, both.config, RestoreRequest(savepoint=saved))
    send(10)
    assert not gate.check(both.config, both.name, GateTarget(up_to_now=True)).open
    both.run(there, max_offsets_per_trigger=50)
    assert gate.check(both.config, both.name, GateTarget(up_to_now=True)).open
    assert errors(both.name, both.config) == []
    with LedgerReader(both.config, both.name) as reader:
        tail = reader.tail()
    assert tail is not None and tail.claim is not None
    assert tail.claim.source_clusters == {str(SourceTopics.of(there)): (CONN_ID, id_of(topics.config))}
    sent = {on.name(name): on.sent[name] for on, name in read}
    check(both.config, both.sink, both.commits(), sent, topics.config, {here: decoys.config})


def test_a_new_topic_that_two_patterns_find_on_two_clusters_is_refused_before_it_is_read(
    case: Case, topics: Topics, decoys: Topics
) -> None:
    class MakesIt(Driver):
        def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
            super()._on_commit(record, seconds, before)
            for on in (topics, decoys) if record.commit == 1 else ():
                on.make("both", partitions=1)
                on.send(5, "both")

    both = TwoClusters(case.config, case.sink, case.home, case.log)
    both.here, there = (TopicPattern(rf"{topics.prefix}\.({name}|both)") for name in ("here", "there"))
    for on, name in ((decoys, "here"), (topics, "there")):
        on.make(name)
        on.send(10, name)
    options = DriverOptions(
        home=case.home, config=dict(case.config), token=str(uuid.uuid4()), until="forever", interval="1 second"
    )
    assert MakesIt(both.declared(there), options).run() == REFUSED, status.read(case.home.status)
    said = f"two sources of this query read {topics.name('both')}, each up to an end of its own"
    assert said in "".join(record.getMessage() for record in case.log.records if record.levelname == "ERROR")
    assert {topic for commit in both.commits() for topic in commit.source} == {
        decoys.name("here"),
        topics.name("there"),
    }


def test_a_range_of_time_is_looked_up_on_the_sources_cluster_and_goes_to_a_topic_of_the_sources_name(
    case: Case, topics: Topics, decoys: Topics
) -> None:
    [made] = topics.make("a")
    decoys.make("a", partitions=1)
    topics.send(40, "a")
    case.run(made)
    time.sleep(0.01)
    start = datetime.now(UTC)
    topics.send(30, "a")
    time.sleep(0.01)
    end = datetime.now(UTC)
    topics.send(20, "a")
    case.run(made)
    time.sleep(0.01)
    rows = case.backfill(made, made, start=start, end=end, state="empty")
    assert [(row["source"], row["n"], row["total"]) for row in map(json.loads, rows)] == [
        (made, 30, sum(range(40, 70)))
    ]
    check_case(case, topics)


def test_what_can_not_reach_the_sources_cluster_says_so(
    case: Case, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = topics.make("a")
    topics.send(20, "a")
    case.run(made)
    saved = case.save()
    topics.send(20, "a")
    case.run(made)
    commits = case.commits()
    now, done = GateTarget(up_to_now=True), GateTarget(commit=len(commits))
    for connections, said in (({}, f"has no connection {CONN_ID}"), ({CONN_ID: AWAY}, "can't be reached")):
        connect(monkeypatch, connections)
        with pytest.raises(ExactlyOnceError, match=said):
            restore(case.home, case.name, case.config, RestoreRequest(savepoint=saved))
        with closing(gate.Gates(case.config)) as gates:
            asked = {"now": Gate(pipeline=case.name, target=now), "done": Gate(pipeline=case.name, target=done)}
            answers = gates.look(asked)
        assert said in str(answers["now"])
        assert cast(GateAnswer, answers["done"]).open  # which needs the sink's cluster only
        found = {finding.name: finding.what for finding in examine(case.name, case.config, None).findings}
        assert said in found["topic-unavailable"]
        assert "topic-missing" not in found
    connect(monkeypatch, {CONN_ID: case.config})
    with pytest.raises(RefusedError, match=f"connection {CONN_ID} leads to cluster {id_of(case.config)}"):
        restore(case.home, case.name, case.config, RestoreRequest(savepoint=saved))


def test_the_doctor_tells_topics_of_one_name_apart(
    case: Case, topics: Topics, decoys: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    [topic] = topics.make("a")
    decoys.make("a", "a.bad")
    case.sink = topic
    topics.send(30, "a")
    case.run(topics.pattern)
    case.save()
    topics.send(10, "a")
    case.run(topics.pattern)
    assert errors(case.name, case.config) == []

    connect(monkeypatch, {CONN_ID: AWAY})
    facts = gather(case.name, case.config, None, {})
    assert facts.topics is not None
    assert {name for _, name in facts.topics.problems} == {topic, str(SourceTopics.of(topics.pattern))}
    assert facts.topics.is_there(facts.clusters.own, topic)
    assert facts.transactions is not None, "what is open on the sink's cluster is looked at"

    connect(monkeypatch, {CONN_ID: topics.config})
    decoys.delete("a")
    [missing] = errors(case.name, case.config)
    assert missing.name == "topic-missing"
    assert missing.what.startswith(f"sink topic {topic} does not exist on this cluster")


def test_bad_records_are_read_again_from_the_sources_cluster(case: Case, topics: Topics, decoys: Topics) -> None:
    [topic] = topics.make("a")
    decoys.make("a", "a.bad")
    topics.send(20, "a")
    producer = Producer(dict(topics.config))
    producer.produce(topic, b"no json", partition=1)
    assert producer.flush(30) == 0
    source = KafkaSource(topic, schema="id BIGINT NOT NULL", conn_id=CONN_ID)
    sink = KafkaSink(topic, bad_records="topic")
    copy = pipeline(name=case.name, source=source, sink=sink)(
        lambda events: events.selectExpr("to_json(struct(*)) AS value")
    )
    options = DriverOptions(home=case.home, config=dict(case.config), token=str(uuid.uuid4()), until="available")
    assert Driver(copy, options).run() == 0, status.read(case.home.status)
    ids = sorted(json.loads(record.value or b"")["id"] for record in read_committed(case.config, topic))
    assert ids == list(range(20))
    [bad] = read_committed(case.config, f"{topic}.bad")
    assert bad.value == b"no json"
    assert f"{topic}-1 offset " in dict(bad.headers)["exactlyonce.origin"].decode()


def test_a_topic_is_copied_to_the_one_of_its_name_and_never_into_itself(
    case: Case, topics: Topics, decoys: Topics, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    [topic] = topics.make("a")
    decoys.make("a")

    def run(home: str, name: str, expected: int = 0) -> str:
        case.log.clear()
        source = KafkaSource(topic, conn_id=CONN_ID)
        copy = pipeline(name=name, source=source, sink=KafkaSink(topic))(lambda frame: frame.select("key", "value"))
        options = DriverOptions(
            home=Home(tmp_path / home), config=dict(case.config), token=str(uuid.uuid4()), until="available"
        )
        assert Driver(copy, options).run() == expected, status.read(options.home.status)
        return "".join(record.getMessage() for record in case.log.records if record.levelname == "ERROR")

    for _ in range(2):
        topics.send(30, "a")
        run("copy", f"copy-{topics.prefix}")
    copied, given = (sorted(r.value or b"" for r in read_committed(of, topic)) for of in (case.config, topics.config))
    assert copied == given
    assert len(given) == 60
    assert errors(f"copy-{topics.prefix}", case.config) == []
    connect(monkeypatch, {CONN_ID: case.config})
    assert f"would write to topic {topic}, and reads it" in run("loop", f"loop-{topics.prefix}", REFUSED)

"""Sources of several topics, and of all that a pattern matches: compared with a reader of its own, record by record."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.audit.check import AuditOptions, audit
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restore import RestoreRequest, restore
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger import gate
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.streaming import TopicPattern
from tests.delta_reader import read_delta
from tests.integration.streaming.harness import World, read_committed
from tests.integration.streaming.source_topics import Case, Topics, check, check_backfills, check_case

pytestmark = pytest.mark.usefixtures("signals_as_before")

REFUSED = 64
LOST = 72


@pytest.fixture
def topics(kafka_config: Mapping[str, str]) -> Topics:
    return Topics(kafka_config)


@pytest.fixture
def case(
    jvm: None,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> Case:
    return Case(kafka_config, make_topic(partitions=2), Home(tmp_path / "home"), caplog)


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
    check_backfills(case, topics, both, make_topic)


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
    check(world.config, world.sink, world.ledger()[0], sent, world.config)
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
    Checkpoint(Home(world.home).checkpoint(lineage.id)).removal("offsets", 1)()  # as a host's crash leaves it
    topics.make("c")
    topics.send(10, "b", "c")
    third = world.start(environment=table)
    assert third.wait() == 0, third.output()[-3000:]
    assert "batch 1 is planned as run 2 has committed it to a sink" in third.output()
    commits = world.ledger()[0]
    assert [len(commit.source) for commit in commits] == [1, 2, 3]
    check(
        world.config,
        world.sink,
        commits,
        {topics.name(name): count for name, count in topics.sent.items()},
        world.config,
    )
    assert audit(world.config, world.pipeline, AuditOptions(patience_seconds=10)).is_clean
    rows = read_delta(tmp_path / "table")
    kafka = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted((row["source"], row["n"]) for row in rows) == sorted((row["source"], row["n"]) for row in kafka)

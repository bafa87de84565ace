"""Gates against a real broker: real ledgers, real transactions, open ones of other producers, and how a wait ends."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowSensorTimeout, AirflowSkipException, TaskDeferred
from confluent_kafka import IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.ledger.gate import Gate, GateAnswer, Gates, check
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from airflow_provider_exactlyonce.triggers import shared_poller
from airflow_provider_exactlyonce.triggers.commit_gate import CommitGateTrigger
from tests.integration.hand_written import HandWrittenPipeline, send
from tests.integration.streaming.harness import end_offsets
from tests.task_state import Store, context
from tests.waiting import HANG_SECONDS, eventually, eventually_in_loop

NEW_YEAR = 1_767_225_600_000  # 2026-01-01T00:00:00Z
CONNECTION = "kafka_of_the_gate"


def test_a_pipeline_without_a_ledger_keeps_the_gate_closed(kafka_config: dict[str, str]) -> None:
    verdict = check(kafka_config, "never-started", GateTarget(commit=1))
    assert not verdict.open
    assert verdict.missing == "pipeline never-started has no ledger yet (topic exactlyonce.ledger.never-started)"


def test_a_pipeline_that_has_committed_nothing_keeps_the_gate_closed(pipeline: HandWrittenPipeline) -> None:
    verdict = check(pipeline.config, pipeline.name, GateTarget(commit=1))
    assert verdict.missing == f"pipeline {pipeline.name} has committed nothing yet"
    for nothing in (GateTarget(commit=0), GateTarget(offsets={"in": {0: 0}})):
        empty = check(pipeline.config, pipeline.name, nothing)
        assert empty.open, "a task that found an empty source returns this, and there is nothing to wait for"


@pytest.mark.parametrize(
    ("closed", "opened", "missing"),
    [
        (GateTarget(commit=3), GateTarget(commit=2), "commit 2 of 3: 1 missing"),
        (
            GateTarget(watermark=NEW_YEAR + 35 * 60_000),
            GateTarget(watermark=NEW_YEAR),
            "watermark 2026-01-01T00:00:00Z is 35 min short of 2026-01-01T00:35:00Z",
        ),
    ],
)
def test_the_ledger_opens_the_gate(
    pipeline: HandWrittenPipeline, closed: GateTarget, opened: GateTarget, missing: str
) -> None:
    pipeline.commit({0: 5, 1: 1}, read_up_to={0: 10, 1: 4})
    pipeline.commit({0: 2}, read_up_to={0: 20, 1: 4}, watermark=NEW_YEAR)
    assert wait_until_open(pipeline, opened) == GateAnswer(open=True, missing="", commit=2, target=opened)
    assert check(pipeline.config, pipeline.name, closed) == GateAnswer(
        open=False, missing=missing, commit=2, target=closed
    )


def test_source_offsets_open_the_gate_partition_by_partition(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 20, 1: 4})
    source = pipeline.source
    wait_until_open(pipeline, GateTarget(offsets={source: {0: 20, 1: 4}}))
    closed = check(pipeline.config, pipeline.name, GateTarget(offsets={source: {0: 21, 1: 500}, "elsewhere": {0: 1}}))
    assert closed.missing == (
        f"elsewhere-0: commit 1 does not read it, 1 wanted; {source}-0: committed up to 20 of 21; "
        f"{source}-1: committed up to 4 of 500"
    )


def test_somebody_elses_open_transaction_keeps_the_gate_closed_until_it_is_decided(
    pipeline: HandWrittenPipeline, foreign: Producer
) -> None:
    """The ledger has the commit, and yet a read_committed reader of the sink can't see it."""
    foreign.begin_transaction()
    [blocking] = send(foreign, pipeline.sink, {1: [(b"k", b"v")]})[1]
    pipeline.commit({0: 2, 1: 2}, read_up_to={0: 1})
    last = blocking + 2
    closed = check(pipeline.config, pipeline.name, GateTarget(commit=1))
    assert closed.missing == f"{pipeline.sink}-1: last stable offset {blocking} has not passed {last}"
    foreign.abort_transaction(30)
    wait_until_open(pipeline, GateTarget(commit=1))


def test_the_slowest_of_several_sinks_decides(
    pipeline: HandWrittenPipeline, foreign: Producer, make_topic: Callable[..., str]
) -> None:
    second = make_topic(partitions=1)
    foreign.begin_transaction()
    send(foreign, second, {0: [(b"k", b"v")]})
    pipeline.commit({0: 1}, read_up_to={0: 1}, second=second)
    closed = check(pipeline.config, pipeline.name, GateTarget(commit=1))
    assert f"{second}-0: last stable offset 0 has not passed 1" in closed.missing
    foreign.abort_transaction(30)
    wait_until_open(pipeline, GateTarget(commit=1))


def test_what_older_commits_wrote_has_to_be_readable_too(pipeline: HandWrittenPipeline, foreign: Producer) -> None:
    foreign.begin_transaction()
    send(foreign, pipeline.sink, {2: [(b"k", b"v")]})
    pipeline.commit({2: 1}, read_up_to={0: 1})
    pipeline.commit({0: 1}, read_up_to={0: 2})
    assert (
        f"{pipeline.sink}-2: last stable offset 0"
        in check(pipeline.config, pipeline.name, GateTarget(commit=2)).missing
    )
    foreign.commit_transaction(30)
    wait_until_open(pipeline, GateTarget(commit=2))


def test_what_newer_commits_wrote_need_not_be_readable(pipeline: HandWrittenPipeline, foreign: Producer) -> None:
    pipeline.commit({0: 1, 1: 1}, read_up_to={0: 1})
    foreign.begin_transaction()
    send(foreign, pipeline.sink, {1: [(b"k", b"v")]})
    pipeline.commit({0: 1, 1: 1}, read_up_to={0: 2})
    wait_until_open(pipeline, GateTarget(commit=1))
    assert not check(pipeline.config, pipeline.name, GateTarget(commit=2)).open
    foreign.abort_transaction(30)


def wait_until_open(pipeline: HandWrittenPipeline, target: GateTarget) -> GateAnswer:
    """Markers are written after the decision is answered, so an open gate may be milliseconds away."""
    verdicts = []

    def opens() -> bool:
        verdicts.append(check(pipeline.config, pipeline.name, target))
        return verdicts[-1].open

    eventually(opens, lambda: f"the gate opens; {verdicts[-1].missing}")
    return verdicts[-1]


def test_a_timestamp_stands_for_the_records_before_its_first_one(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str]
) -> None:
    plain = Producer(dict(kafka_config))
    for minute in range(4):
        send(plain, pipeline.source, {0: [(b"k", b"v")]}, timestamp=NEW_YEAR + minute * 60_000)
    send(plain, pipeline.source, {1: [(b"k", b"v")] * 3}, timestamp=NEW_YEAR)
    pipeline.commit({0: 1}, read_up_to={0: 2, 1: 2})
    target = GateTarget(timestamp=NEW_YEAR + 120_000)
    closed = check(pipeline.config, pipeline.name, target)
    assert closed.missing == f"{pipeline.source}-1: committed up to 2 of 3", "partition 1 has nothing later: to its end"
    assert closed.target == GateTarget(offsets={pipeline.source: {0: 2, 1: 3}})
    pipeline.commit({0: 1}, read_up_to={0: 2, 1: 3})
    wait_until_open(pipeline, target)


def test_a_resolved_timestamp_does_not_move_when_old_records_keep_coming(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str]
) -> None:
    plain = Producer(dict(kafka_config))
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 3, 1: [(b"k", b"v")]}, timestamp=NEW_YEAR)
    pipeline.commit({0: 1}, read_up_to={0: 2, 1: 1})
    first = check(pipeline.config, pipeline.name, GateTarget(timestamp=NEW_YEAR + 1))
    assert first.missing == f"{pipeline.source}-0: committed up to 2 of 3"
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 50}, timestamp=NEW_YEAR)
    pipeline.commit({0: 1}, read_up_to={0: 3, 1: 1})
    wait_until_open(pipeline, first.target)
    assert not check(pipeline.config, pipeline.name, GateTarget(timestamp=NEW_YEAR + 1)).open


def test_a_timestamp_in_the_future_is_not_resolved_before_it_has_come(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})
    target = GateTarget(timestamp=int(time.time() * 1000) + 3_600_000)
    verdict = check(pipeline.config, pipeline.name, target)
    assert verdict.missing.endswith("has not come yet")
    assert verdict.target == target


def test_records_of_an_undecided_source_transaction_are_waited_for(
    pipeline: HandWrittenPipeline, foreign: Producer
) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 0, 1: 0})
    foreign.begin_transaction()
    send(foreign, pipeline.source, {0: [(b"k", b"v")]}, timestamp=NEW_YEAR)
    closed = check(pipeline.config, pipeline.name, GateTarget(timestamp=NEW_YEAR + 1))
    assert closed.missing == f"{pipeline.source}-0: committed up to 0 of 1"
    foreign.abort_transaction(30)


def test_a_commit_that_many_others_have_followed_opens_its_gate(pipeline: HandWrittenPipeline) -> None:
    for number in range(1, 31):
        pipeline.commit({number % 3: 1}, read_up_to={0: number})
    wait_until_open(pipeline, GateTarget(commit=12))


def test_offsets_of_a_topic_that_is_not_there_are_an_error_that_names_it(
    kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    offsets = StableOffsets(kafka_config)
    with pytest.raises(ExactlyOnceError, match="topic never-made does not exist"):
        offsets.partitions(["never-made"])
    with pytest.raises(ExactlyOnceError, match="partition never-made-0 does not exist"):
        offsets.last_stable([("never-made", 0)])
    with pytest.raises(ExactlyOnceError, match="partition never-made-0 does not exist"):
        offsets.last_stable([(make_topic(partitions=1), 0), ("never-made", 0)])


# -- sensor and trigger ---------------------------------------------------------------------------------------------


@pytest.fixture
def connection(kafka_config: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    value = json.dumps({"conn_type": "kafka", "extra": {**kafka_config, "group.id": "must-not-be-used"}})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", value)
    return CONNECTION


def gate(pipeline: HandWrittenPipeline, **options: Any) -> CommitGateSensor:
    defaults = {"task_id": "gate", "kafka_conn_id": CONNECTION, "poke_interval": 0.1, "timeout": 0.3}
    return CommitGateSensor(pipeline=pipeline.name, **{**defaults, **options})


def events_of(trigger: CommitGateTrigger) -> list[dict[str, Any]]:
    """Run a trigger as the triggerer does after a restart: from what was serialized, through JSON."""

    async def collect() -> list[dict[str, Any]]:
        path, arguments = json.loads(json.dumps(trigger.serialize()))
        module, _, name = path.rpartition(".")
        restored = getattr(importlib.import_module(module), name)(**arguments)
        return [event.payload async for event in restored.run()]

    return asyncio.run(collect())


def opened(pipeline: HandWrittenPipeline, commit: int, *, idle: bool = False) -> dict[str, Any]:
    return {"pipeline": pipeline.name, "commit": commit, "idle": idle, "late_rows": None}


def deferred(sensor: CommitGateSensor) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute({})
    assert isinstance(raised.value.trigger, CommitGateTrigger)
    return raised.value


def resume(sensor: CommitGateSensor, deferral: TaskDeferred, event: dict[str, Any]) -> Any:
    return sensor.resume_execution(deferral.method_name, {**(deferral.kwargs or {}), "event": event}, {})


@pytest.mark.usefixtures("connection")
def test_an_open_gate_lets_both_kinds_of_sensor_through_at_once(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})
    wait_until_open(pipeline, GateTarget(commit=1))
    for deferrable in (False, True):
        assert gate(pipeline, commit="1", deferrable=deferrable).execute({}) == opened(pipeline, 1)


@pytest.mark.usefixtures("connection")
def test_a_poking_sensor_times_out_naming_what_is_missing(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})
    sensor = gate(pipeline, commit=20)
    with pytest.raises(AirflowSensorTimeout, match="commit 1 of 20: 19 missing"):
        sensor.execute({})
    with pytest.raises(AirflowSkipException, match="commit 1 of 20: 19 missing"):
        gate(pipeline, commit=20, soft_fail=True).execute({})


@pytest.mark.usefixtures("connection")
def test_a_deferred_sensor_opens_when_the_commit_comes(pipeline: HandWrittenPipeline) -> None:
    sensor = gate(pipeline, commit=1, deferrable=True, timeout=HANG_SECONDS)
    deferral = deferred(sensor)

    async def wait() -> list[dict[str, Any]]:
        asyncio.get_running_loop().call_later(0.3, lambda: pipeline.commit({0: 1}, read_up_to={0: 1}))
        return [event.payload async for event in deferral.trigger.run()]

    [event] = asyncio.run(wait())
    assert event == {"reason": "found", "found": opened(pipeline, 1)}
    assert resume(sensor, deferral, event) == opened(pipeline, 1)


@pytest.mark.usefixtures("connection")
def test_a_deferred_sensor_times_out_naming_what_is_missing(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})
    sensor = gate(pipeline, commit=20, deferrable=True)
    deferral = deferred(sensor)
    [event] = events_of(deferral.trigger)
    with pytest.raises(AirflowSensorTimeout, match=r"after 0\.3 s: gate-\w+: commit 1 of 20: 19 missing"):
        resume(sensor, deferral, event)
    with pytest.raises(AirflowSkipException):
        resume(gate(pipeline, commit=20, soft_fail=True), deferral, event)


@pytest.mark.usefixtures("connection")
def test_a_restarted_triggerer_keeps_the_deadline_and_stores_no_secret(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str]
) -> None:
    deferral = deferred(gate(pipeline, commit=1, deferrable=True, timeout=0))
    text = json.dumps(deferral.trigger.serialize())
    assert kafka_config["bootstrap.servers"] not in text
    [event] = events_of(deferral.trigger)
    assert event["reason"] == "timeout", "the deadline is a point of time, not a span that begins again"


@pytest.mark.usefixtures("connection")
@pytest.mark.parametrize("target", [{"timestamp": datetime(2026, 1, 2, tzinfo=UTC)}, {"up_to_now": True}])
def test_what_a_moment_stands_for_is_fixed_once_and_kept_over_deferral_and_retries(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str], target: dict[str, Any]
) -> None:
    plain = Producer(dict(kafka_config))
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 3, 1: [(b"k", b"v")]}, timestamp=NEW_YEAR)
    store = Store()
    sensor = gate(pipeline, **target, deferrable=True, timeout=HANG_SECONDS)
    with pytest.raises(TaskDeferred) as raised:
        sensor.execute(context(store))
    first = raised.value
    assert first.trigger.subject["offsets"] is None, "there is no commit to take the topics from yet"
    pipeline.commit({0: 1}, read_up_to={0: 2, 1: 1})
    [event] = events_of(first.trigger)
    assert event["reason"] == "fixed"
    with pytest.raises(TaskDeferred) as raised:
        gate(pipeline, **target).resume_execution(first.method_name, {"event": event}, context(store))
    second = raised.value
    offsets = {pipeline.source: {"0": 3, "1": 1}}
    assert second.trigger.subject["offsets"] == offsets
    assert second.trigger.deadline == first.trigger.deadline
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 50}, timestamp=NEW_YEAR)
    with pytest.raises(AirflowSensorTimeout, match=f"{pipeline.source}-0: committed up to 2 of 3"):
        gate(pipeline, **target).execute(context(store))
    pipeline.commit({0: 1}, read_up_to={0: 3, 1: 1})
    assert events_of(second.trigger) == [{"reason": "found", "found": opened(pipeline, 2)}]
    assert gate(pipeline, **target, timeout=HANG_SECONDS).execute(context(store)) == opened(pipeline, 2)
    with pytest.raises(AirflowSensorTimeout, match=f"{pipeline.source}-0: committed up to 3 of 53"):
        gate(pipeline, **target).execute(context(store, clear_number=1))


def test_records_of_an_undecided_source_transaction_are_before_now(
    pipeline: HandWrittenPipeline, foreign: Producer
) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 0, 1: 0})
    foreign.begin_transaction()
    send(foreign, pipeline.source, {0: [(b"k", b"v")]})
    closed = check(pipeline.config, pipeline.name, GateTarget(up_to_now=True))
    assert closed.missing == f"{pipeline.source}-0: committed up to 0 of 1"
    foreign.abort_transaction(30)


def test_a_quiet_pipeline_opens_the_gate_when_it_has_had_nothing_to_do_for_so_long(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str], foreign: Producer
) -> None:
    plain = Producer(dict(kafka_config))
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 2})
    target = GateTarget(watermark=NEW_YEAR + 3_600_000)
    pipeline.commit({0: 1}, read_up_to={0: 1, 1: 0}, watermark=NEW_YEAR)
    for at_once in (0, 0.01):
        behind = check(pipeline.config, pipeline.name, target, idle_after=at_once)
        assert behind.missing.startswith("watermark "), "the source has a record more"
    foreign.begin_transaction()
    send(foreign, pipeline.sink, {1: [(b"k", b"v")]})
    pipeline.commit({1: 1}, read_up_to={0: 2, 1: 0}, watermark=NEW_YEAR)
    pipeline_ends = end_offsets(pipeline.config, pipeline.source, IsolationLevel.READ_UNCOMMITTED)
    assert pipeline_ends == {0: 2, 1: 0}
    unreadable = check(pipeline.config, pipeline.name, target, idle_after=0.01)
    assert f"{pipeline.sink}-1: last stable offset" in unreadable.missing
    foreign.commit_transaction(30)
    assert not check(pipeline.config, pipeline.name, target).open
    assert not check(pipeline.config, pipeline.name, target, idle_after=3600).open, "it was busy a moment ago"

    def opened() -> GateAnswer | None:
        answer = check(pipeline.config, pipeline.name, target, idle_after=0.01)
        return answer if answer.open else None

    verdict = eventually(opened, "the gate opens")
    assert verdict == GateAnswer(open=True, missing="", commit=2, target=target, idle=True)
    met = check(pipeline.config, pipeline.name, GateTarget(commit=2), idle_after=0.01)
    assert met.open
    assert not met.idle, "the target is met"
    send(plain, pipeline.source, {1: [(b"k", b"v")]})
    assert not check(pipeline.config, pipeline.name, target, idle_after=0.01).open
    assert not check(pipeline.config, pipeline.name, target, idle_after=0).open


@pytest.mark.parametrize(
    ("target", "idle_after"),
    [
        (GateTarget(up_to_now=True), None),
        (GateTarget(timestamp=NEW_YEAR), None),
        (GateTarget(watermark=NEW_YEAR), 0.0),
    ],
)
@pytest.mark.parametrize("read", [5, 1])
def test_a_recreated_source_opens_no_gate(
    pipeline: HandWrittenPipeline,
    kafka_config: dict[str, str],
    make_topic: Callable[..., str],
    target: GateTarget,
    idle_after: float | None,
    read: int,
) -> None:
    """Whether the commits have read more than the new topic has, or as much."""
    send(Producer(dict(kafka_config)), pipeline.source, {0: [(b"k", b"v")]})
    former = StableOffsets(kafka_config).topic_ids([make_topic(partitions=1)]).popitem()[1]
    pipeline.commit({0: 1}, read_up_to={0: read, 1: 0}, source_topic_ids={pipeline.source: former})
    with pytest.raises(RefusedError, match=rf"source topic {pipeline.source} was recreated: commit 1 read it with id"):
        check(kafka_config, pipeline.name, target, idle_after)
    assert not check(kafka_config, pipeline.name, GateTarget(watermark=NEW_YEAR)).open, "others go by the ledger"
    wait_until_open(pipeline, GateTarget(commit=1))


@pytest.mark.parametrize(
    ("target", "idle_after"),
    [
        (GateTarget(up_to_now=True), None),
        (GateTarget(timestamp=NEW_YEAR), None),
        (GateTarget(watermark=NEW_YEAR), 0.0),
    ],
)
def test_a_source_that_has_lost_its_end_opens_no_gate_and_may_get_it_back(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str], target: GateTarget, idle_after: float | None
) -> None:
    plain = Producer(dict(kafka_config))
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 2})
    pipeline.commit({0: 1}, read_up_to={0: 3, 1: 0})
    with pytest.raises(
        ExactlyOnceError, match=rf"{pipeline.source}-0 ends at 2, and commit 1 has read up to 3"
    ) as error:
        check(kafka_config, pipeline.name, target, idle_after)
    assert not isinstance(error.value, RefusedError), "a broker that has just begun to lead may tell less than is there"
    send(plain, pipeline.source, {0: [(b"k", b"v")]})
    eventually(lambda: check(kafka_config, pipeline.name, target, idle_after).open, "the gate opens")


def test_many_gates_are_judged_as_if_each_was_alone(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str], make_topic: Callable[..., str], foreign: Producer
) -> None:
    other = HandWrittenPipeline(kafka_config, source=make_topic(partitions=1), sink=make_topic(partitions=1))
    wanted = {
        "one": Gate(pipeline=pipeline.name, target=GateTarget(commit=1)),
        "two": Gate(pipeline=pipeline.name, target=GateTarget(commit=2)),
        "four": Gate(pipeline=pipeline.name, target=GateTarget(commit=4)),
        "offsets": Gate(pipeline=pipeline.name, target=GateTarget(offsets={pipeline.source: {0: 2}})),
        "other": Gate(pipeline=other.name, target=GateTarget(commit=1)),
        "absent": Gate(pipeline="never-started", target=GateTarget(commit=1)),
        "no name": Gate(pipeline="a/b", target=GateTarget(commit=1)),
    }
    gates = Gates(kafka_config)

    def each_alone() -> dict[str, GateAnswer]:
        good = wanted.keys() - {"no name"}
        return {name: check(kafka_config, wanted[name].pipeline, wanted[name].target) for name in good}

    def opened_ones() -> set[str]:
        before = each_alone()
        answers = gates.look(wanted)
        refusal = answers.pop("no name")
        assert isinstance(refusal, ExactlyOnceError)
        for name, alone in each_alone().items():
            assert answers[name] == alone or alone != before[name], f"{name} has not changed meanwhile"
        return {name for name, answer in answers.items() if isinstance(answer, GateAnswer) and answer.open}

    def open_and_no_others(*names: str) -> None:
        eventually(lambda: opened_ones() >= set(names), lambda: f"{names} open; {opened_ones()} are")
        assert opened_ones() == set(names)

    open_and_no_others()
    pipeline.commit({0: 1}, read_up_to={0: 1})
    open_and_no_others("one")
    foreign.begin_transaction()
    send(foreign, pipeline.sink, {1: [(b"k", b"v")]})
    pipeline.commit({0: 1}, read_up_to={0: 2})
    pipeline.commit({1: 1}, read_up_to={0: 3})
    other.claim()
    other.commit({0: 1}, read_up_to={0: 1})
    pipeline.commit({0: 1}, read_up_to={0: 4})
    open_and_no_others("one", "two", "offsets", "other")  # commit 4 is behind commit 3, which can't be read
    foreign.abort_transaction(30)
    open_and_no_others("one", "two", "four", "offsets", "other")
    delete_topic(kafka_config, ledger_topic(other.name))
    del wanted["absent"]
    eventually(lambda: "other" not in opened_ones(), "its ledger is gone")
    gates.close()


def test_positions_without_records_hold_nothing_back(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str]
) -> None:
    """Aborted records and control records in front, deleted ones below: only where the log ends counts."""
    plain = Producer(dict(kafka_config))
    send(plain, pipeline.source, {0: [(b"k", b"v")] * 5, 1: [(b"k", b"v")]})
    delete_records(kafka_config, pipeline.source, {0: 4, 1: 1})
    for _ in range(2):
        pipeline.producer.begin_transaction()
        pipeline.send(pipeline.sink, {0: [(b"k", b"v")] * 3})
        pipeline.producer.abort_transaction(30)
    pipeline.commit({0: 2}, read_up_to={0: 5, 1: 1})
    wait_until_open(pipeline, GateTarget(up_to_now=True))
    wait_until_open(pipeline, GateTarget(offsets={pipeline.source: {0: 5, 1: 1}}))
    delete_records(kafka_config, pipeline.sink, {0: 8})
    wait_until_open(pipeline, GateTarget(commit=1))


def delete_topic(config: Mapping[str, str], topic: str) -> None:
    admin = AdminClient(dict(config))
    admin.delete_topics([topic])[topic].result(30)


def delete_records(config: Mapping[str, str], topic: str, below: Mapping[int, int]) -> None:
    admin = AdminClient(dict(config))
    wanted = [TopicPartition(topic, partition, offset) for partition, offset in below.items()]
    for future in admin.delete_records(wanted).values():
        future.result(30)


@pytest.mark.usefixtures("connection")
def test_a_triggerers_gates_share_one_poller_and_fire_one_by_one(pipeline: HandWrittenPipeline) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})

    async def wait(sensor: CommitGateSensor) -> dict[str, Any]:
        [event] = [event.payload async for event in deferred(sensor).trigger.run()]
        return dict(event)

    def watches() -> int:
        return sum(len(poller.subscriptions) for of in shared_poller._pollers.values() for poller in of.values())

    async def run() -> tuple[int, list[dict[str, Any]], dict[str, Any]]:
        gates = [gate(pipeline, commit=2 + number % 3, deferrable=True, timeout=HANG_SECONDS) for number in range(30)]
        late = asyncio.create_task(wait(gate(pipeline, commit=99, deferrable=True, timeout=4)))
        waiting = [asyncio.create_task(wait(sensor)) for sensor in gates]
        await eventually_in_loop(lambda: watches() == 31, "all wait")
        pollers = sum(len(of) for of in shared_poller._pollers.values())
        for number in range(3):
            await asyncio.to_thread(pipeline.commit, {0: 1}, read_up_to={0: 2 + number})
        events = await asyncio.gather(*waiting)
        return pollers, events, await late

    pollers, events, late = asyncio.run(run())
    assert pollers == 1
    assert {event["reason"] for event in events} == {"found"}
    assert all(event["found"]["commit"] >= 2 + number % 3 for number, event in enumerate(events))
    assert late["reason"] == "timeout"
    assert re.fullmatch(rf"{pipeline.name}: commit \d of 99: \d\d missing", late["missing"])
    assert not any(shared_poller._pollers.values()), "the last one who left has ended it"


@pytest.mark.usefixtures("connection")
def test_waiting_joins_no_group_and_commits_no_offset(
    pipeline: HandWrittenPipeline, kafka_config: dict[str, str]
) -> None:
    pipeline.commit({0: 1}, read_up_to={0: 1})
    events_of(deferred(gate(pipeline, commit=9, deferrable=True)).trigger)
    admin = AdminClient(dict(kafka_config))  # held: a client that nobody holds drops what it was asked
    groups = admin.list_consumer_groups(request_timeout=30).result(HANG_SECONDS).valid
    assert not [group.group_id for group in groups if group.group_id.startswith(("exactlyonce-ledger", "must-not"))]


def test_a_cluster_that_does_not_answer_is_named_at_the_time_out(
    pipeline: HandWrittenPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody = {
        "bootstrap.servers": "127.0.0.1:1",
        "socket.timeout.ms": "1000",
        "socket.connection.setup.timeout.ms": "1000",
    }
    monkeypatch.setattr("airflow_provider_exactlyonce.ledger.gate._TIMEOUT_SECONDS", 1.0)
    value = json.dumps({"conn_type": "kafka", "extra": nobody})
    monkeypatch.setenv(f"AIRFLOW_CONN_{CONNECTION.upper()}", value)
    with pytest.raises(AirflowSensorTimeout, match=f"connection {CONNECTION}"):
        gate(pipeline, commit=1).execute({})

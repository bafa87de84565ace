"""The sensor for anybody's transactions, against a real broker with ordinary producers."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, TaskDeferred
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.sensors.kafka_transactions import KafkaTransactionsSensor
from airflow_provider_exactlyonce.triggers.kafka_transactions import KafkaTransactionsTrigger
from tests.task_state import Store, context
from tests.waiting import HANG_SECONDS


@pytest.fixture(autouse=True)
def connection(kafka_config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {**kafka_config, "group.id": "must-not-be-used"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


def opened(config: Mapping[str, str], topic: str, partition: int = 0) -> tuple[str, Producer]:
    name = f"ordinary-{uuid.uuid4().hex[:8]}"
    producer = Producer({**config, "transactional.id": name, "transaction.timeout.ms": 60_000, "log_level": 2})
    producer.init_transactions(30)
    producer.begin_transaction()
    for number in range(3):
        producer.produce(topic, value=str(number).encode(), partition=partition)
    assert producer.flush(30) == 0
    return name, producer


def sensor(*topics: str, **options: Any) -> KafkaTransactionsSensor:
    defaults = {"task_id": "decided", "topics": topics, "poke_interval": 0.1, "timeout": 0.5}
    return KafkaTransactionsSensor(**{**defaults, **options})


def events(of: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event.payload async for event in of.run()]

    return asyncio.run(asyncio.wait_for(collect(), HANG_SECONDS))


def test_it_waits_for_what_is_open_now_and_for_nothing_later(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic, empty = make_topic(partitions=2), make_topic(partitions=1)
    name, producer = opened(kafka_config, topic)
    store = Store()
    with pytest.raises(AirflowSensorTimeout) as error:
        sensor(topic, empty).execute(context(store))
    said = (
        rf"^after 0.5 s: {topic}-0 is decided up to offset 0 of 3; transactional id {name} \(open for \d+ s, Ongoing; "
        rf"it times out after 60 s\) holds {topic}-0 from offset 0$"
    )
    assert re.match(said, str(error.value)), error.value
    producer.commit_transaction(30)
    later, other = opened(kafka_config, topic)
    expected = {"offsets": {topic: {"0": 3, "1": 0}, empty: {"0": 0}}}
    assert sensor(topic, empty, timeout=20).execute(context(store)) == expected, "a retry keeps its high watermarks"
    with pytest.raises(AirflowSensorTimeout) as error:
        sensor(topic, empty).execute(context(store, clear_number=1))
    assert later in str(error.value), "a task that is cleared takes new ones"
    assert name not in str(error.value)
    other.abort_transaction(30)
    assert sensor(topic, timeout=20).execute(context(Store()))["offsets"][topic]["0"] >= 7
    admin = AdminClient(dict(kafka_config))
    groups = [group.group_id for group in admin.list_consumer_groups().result().valid]
    assert "must-not-be-used" not in groups


def test_the_trigger_waits_for_the_same_and_names_the_same(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=1)
    name, producer = opened(kafka_config, topic)
    with pytest.raises(TaskDeferred) as deferred:
        sensor(topic, deferrable=True).execute(context(Store()))
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_provider_exactlyonce.triggers.kafka_transactions.KafkaTransactionsTrigger"
    stored = json.loads(json.dumps(arguments))
    assert stored["targets"] == {topic: {"0": 3}}
    assert str(kafka_config["bootstrap.servers"]) not in json.dumps(stored)
    [event] = events(KafkaTransactionsTrigger(**stored))
    with pytest.raises(AirflowSensorTimeout, match=f"transactional id {name} "):
        sensor(topic).resume_from_trigger({}, event)
    producer.abort_transaction(30)
    [event] = events(KafkaTransactionsTrigger(**{**stored, "deadline": stored["deadline"] + 60}))
    assert sensor(topic).resume_from_trigger({}, event) == {"offsets": {topic: {"0": 3}}}


def test_a_topic_that_is_not_there_or_was_made_again_is_named(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    with pytest.raises(ExactlyOnceError, match="connection kafka_default: topic no-such-topic does not exist"):
        sensor("no-such-topic").execute(context(Store()))
    with pytest.raises(ValueError, match="give at least one"):
        sensor()
    topic = make_topic(partitions=1)
    store = Store()
    made = {"for": {"topics": [topic], "clear_number": 0}, "fixed": {"targets": {topic: {"0": 99}}}}
    store.set("exactlyonce_waits_for", made)
    with pytest.raises(AirflowFailException, match=f"{topic}-0 ends at offset 0 and has ended at 99 before"):
        sensor(topic).execute(context(store))


def test_a_topic_that_is_deleted_holds_back_only_those_who_wait_for_it(
    kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    gone, stays = make_topic(partitions=1), make_topic(partitions=1)
    _, producer = opened(kafka_config, stays)
    triggers = []
    for topic in (gone, stays):
        options: dict[str, Any] = {"kafka_conn_id": "kafka_default", "poll_interval": 0.1, "deadline": time.time() + 4}
        triggers.append(KafkaTransactionsTrigger(targets={topic: {"0": 0 if topic == gone else 3}}, **options))
    admin = AdminClient(dict(kafka_config))
    admin.delete_topics([gone])[gone].result(30)

    async def fired(trigger: KafkaTransactionsTrigger) -> Any:
        [event] = [event.payload async for event in trigger.run()]
        return event

    async def both() -> list[Any]:
        asyncio.get_running_loop().call_later(1, lambda: producer.commit_transaction(30))
        return await asyncio.gather(*map(fired, triggers))

    lost, event = asyncio.run(both())
    assert event["reason"] == "found"
    assert lost["reason"] == "timeout"
    assert f"partition {gone}-0 does not exist" in lost["missing"]

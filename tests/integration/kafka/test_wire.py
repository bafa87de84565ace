"""What ``kafka/wire.py`` leans on in kafka-python's private API.

When a new release of kafka-python breaks a test here: nothing else in the project touches that API, so repair
``WireClient`` until this file passes again. What it needs is one coroutine that sends a request to a given node
(``KafkaAdminClient._manager.send``), a way to run it from any thread (``_manager.run``), the transaction coordinator's
node (``_find_coordinator_ids``), a way to forget it (``_manager.cluster._coordinators``), and a way to bound how long
one connection may take (``KafkaConnectionManager.get_connection``); the request classes are public. If it can't be
repaired, pin the release before in pyproject.toml.
"""

from __future__ import annotations

import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient
from kafka.errors import UnknownBrokerIdError
from kafka.net import manager
from kafka.protocol.metadata import CoordinatorType

from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.retry import until_definite
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession, produce
from airflow_provider_exactlyonce.kafka.wire import NO_PRODUCER, Code, Producer, UnansweredError, WireClient
from tests.integration.streaming.harness import open_transactions, read_committed
from tests.waiting import eventually

GONE = 99  # a node that the cluster does not have
TRANSACTION_ABORTABLE = 120  # what a broker from 4.0 on says for INVALID_TXN_STATE


@pytest.fixture
def client(kafka_config: Mapping[str, str]) -> Iterator[WireClient]:
    with WireClient(kafka_config) as client:
        yield client


def initialised(client: WireClient, name: str, current: Producer = NO_PRODUCER) -> tuple[int, Producer]:
    producer = NO_PRODUCER

    def ask() -> int:
        nonlocal producer
        code, producer = client.init_producer_id(name, current, 60_000)
        return code

    return until_definite(ask, timeout_seconds=30), producer


def batch(producer: Producer, value: bytes, sequence: int = 0) -> bytes:
    body = record_batch.encode_few([(b"k", value)], 0)
    return b"".join(
        record_batch.with_header(body, producer_id=producer.id, epoch=producer.epoch, base_sequence=sequence)
    )


def appended(client: WireClient, name: str, topic: str, records: bytes) -> int:
    return produce(client, name, topic, {0: records})[0]


def test_the_private_names_that_the_adapter_uses_are_there(client: WireClient) -> None:
    admin = client.admin
    assert isinstance(admin, KafkaAdminClient)
    assert callable(admin._manager.send)
    assert callable(admin._manager.run)
    assert callable(admin._find_coordinator_ids)
    initialised(client, f"t-{uuid.uuid4()}")
    assert any(kind is CoordinatorType.TRANSACTION for kind, _ in admin._manager.cluster._coordinators)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_goes_through_its_whole_life(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str], commit: bool
) -> None:
    name, topic = f"t-{uuid.uuid4()}", make_topic(partitions=1)
    code, producer = initialised(client, name)
    assert code == Code.NONE
    code, bumped = initialised(client, name, producer)
    assert (code, bumped) == (Code.NONE, Producer(id=producer.id, epoch=producer.epoch + 1))
    assert client.add_partitions(name, bumped, topic, [0]) == Code.NONE
    assert appended(client, name, topic, batch(bumped, b"v")) == 0
    assert client.stable_offsets(topic) == {0: 0}
    assert client.earliest_offsets(topic) == {0: 0}
    assert client.end_transaction(name, bumped, commit=commit) == Code.NONE
    code, _ = initialised(client, name, bumped)  # waits for the markers
    assert code == Code.NONE
    assert open_transactions(kafka_config, topic) == {}
    assert [record.value for record in read_committed(kafka_config, topic)] == ([b"v"] if commit else [])


def group_offsets(config: Mapping[str, str], group: str) -> dict[tuple[str, int], tuple[int, str | None]]:
    admin = AdminClient(dict(config))
    listed = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return {(place.topic, place.partition): (place.offset, place.metadata) for place in listed.topic_partitions}


@pytest.mark.parametrize("commit", [True, False])
def test_a_groups_offsets_are_decided_with_the_transaction(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str], commit: bool
) -> None:
    name, topic, other, group = f"t-{uuid.uuid4()}", make_topic(), make_topic(), f"g-{uuid.uuid4()}"
    _, producer = initialised(client, name)
    offsets = {(topic, 0): 7, (topic, 3): 0, (other, 1): 9}
    send: Callable[[], int]
    for send in (
        lambda: client.add_offsets(name, producer, group),
        lambda: client.commit_offsets(name, producer, group, offsets, "batch 3"),
    ):
        assert until_definite(send, timeout_seconds=30) == Code.NONE
    assert client.end_transaction(name, producer, commit=commit) == Code.NONE
    assert initialised(client, name, producer)[0] == Code.NONE  # waits for the markers
    expected = {place: (offset, "batch 3") for place, offset in offsets.items()}
    assert group_offsets(kafka_config, group) == (expected if commit else {})


def test_a_session_writes_offsets_and_several_records_to_a_partition_in_one_transaction(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic, group = make_topic(partitions=1), f"g-{uuid.uuid4()}"
    session = TransactionSession(client, f"t-{uuid.uuid4()}", timeout_milliseconds=60_000)
    session.initialise()
    for attempt in (0, 3):  # each attempt counts its sequences from 0 again; a commit takes an offset, too
        session.begin()
        assert [session.write(topic, 0, b"k", b"%d" % value) for value in range(2)] == [attempt, attempt + 1]
        session.write_offsets(group, {(topic, 0): attempt})
        session.commit()
    session.begin()
    session.abort()
    assert [record.value for record in read_committed(kafka_config, topic)] == [b"0", b"1"] * 2
    assert group_offsets(kafka_config, group) == {(topic, 0): (3, None)}


def test_the_broker_accepts_offsets_of_a_group_that_has_members(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    """So whoever is given a group's name has to look first; if this fails, a broker has begun to refuse them itself."""
    topic, group = make_topic(partitions=1), f"g-{uuid.uuid4()}"
    consumer = Consumer({**kafka_config, "group.id": group, "enable.auto.commit": False})
    consumer.subscribe([topic])
    eventually(lambda: consumer.poll(0.1) or consumer.assignment() == [TopicPartition(topic, 0)], "the group has it")
    session = TransactionSession(client, f"t-{uuid.uuid4()}", timeout_milliseconds=60_000)
    session.initialise()
    session.begin()
    session.write_offsets(group, {(topic, 0): 5})
    session.commit()
    consumer.close()


def test_partitions_are_added_together_or_not_at_all(client: WireClient, make_led_topic: Callable[..., str]) -> None:
    name, topic = f"t-{uuid.uuid4()}", make_led_topic(partitions=2)
    _, producer = initialised(client, name)
    assert client.add_partitions(name, producer, topic, [0, 7, 1]) == Code.UNKNOWN_TOPIC_OR_PARTITION
    refused = client.produce(name, topic, {0: batch(producer, b"v")})[0]
    assert refused.code in (Code.INVALID_TXN_STATE, TRANSACTION_ABORTABLE), "none of them was"
    assert client.add_partitions(name, producer, topic, [0, 1]) == Code.NONE
    answers = client.produce(name, topic, {1: batch(producer, b"v"), 0: batch(producer, b"w")})
    assert {partition: answer[:2] for partition, answer in answers.items()} == {0: (Code.NONE, 0), 1: (Code.NONE, 0)}


def test_the_same_bytes_sent_twice_are_appended_once(client: WireClient, make_topic: Callable[..., str]) -> None:
    name, topic = f"t-{uuid.uuid4()}", make_topic(partitions=1)
    _, producer = initialised(client, name)
    client.add_partitions(name, producer, topic, [0])
    records = batch(producer, b"v")
    assert appended(client, name, topic, records) == appended(client, name, topic, records) == 0


def test_a_leader_that_the_cluster_no_longer_has_is_asked_for_again(
    client: WireClient, make_led_topic: Callable[..., str]
) -> None:
    name, topic = f"t-{uuid.uuid4()}", make_led_topic(partitions=1)
    _, producer = initialised(client, name)
    client.add_partitions(name, producer, topic, [0])
    client._leaders[topic, 0] = GONE
    assert client.produce(name, topic, {0: batch(producer, b"v")})[0].code == Code.NETWORK_EXCEPTION
    assert appended(client, name, topic, batch(producer, b"v")) == 0
    client._leaders[topic, 0] = GONE
    with pytest.raises(UnansweredError):
        client.fetch(topic, 0, 0)
    assert client.fetch(topic, 0, 0)


def test_a_node_that_the_client_does_not_know_is_looked_for(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    monkeypatch.setattr(client._manager.cluster, "request_update", lambda: looked.append(GONE))
    with pytest.raises(UnknownBrokerIdError):
        client._manager.get_connection(GONE)
    assert looked == [GONE]


def test_a_fenced_producer_can_neither_write_nor_commit_nor_fence(
    client: WireClient, make_led_topic: Callable[..., str]
) -> None:
    name, topic = f"t-{uuid.uuid4()}", make_led_topic(partitions=1)
    _, old = initialised(client, name)
    client.add_partitions(name, old, topic, [0])
    _, new = initialised(client, name)
    assert new.epoch > old.epoch
    assert client.produce(name, topic, {0: batch(old, b"zombie")})[0].code in (
        Code.INVALID_PRODUCER_EPOCH,
        Code.PRODUCER_FENCED,
    )
    assert client.add_partitions(name, old, topic, [0]) == Code.PRODUCER_FENCED
    assert client.end_transaction(name, old, commit=True) == Code.PRODUCER_FENCED
    assert initialised(client, name, old)[0] == Code.PRODUCER_FENCED
    assert initialised(client, name, new)[0] == Code.NONE


def test_metadata_names_partitions_and_topic_id_and_a_topic_that_is_not_there(
    client: WireClient, make_topic: Callable[..., str]
) -> None:
    described = client.metadata(make_topic(partitions=3))
    assert described is not None
    assert sorted(described.leaders) == [0, 1, 2]
    assert uuid.UUID(described.topic_id).int
    assert client.metadata(f"absent-{uuid.uuid4()}") is None


def test_requests_may_come_from_many_threads(client: WireClient, make_led_topic: Callable[..., str]) -> None:
    topic = make_led_topic(partitions=2)
    answers: list[bytes] = []

    def ask() -> None:
        answers.extend(client.fetch(topic, 0, 0) for _ in range(20))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [b""] * 160


def test_a_bootstrap_server_that_says_nothing_does_not_use_up_the_time_of_the_others(
    kafka_config: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it is connected to, and never answers
        port = silent.getsockname()[1]
        tried: list[int] = []

        def silent_one_first(brokers: Sequence[Any]) -> Any:
            chosen = next(broker for broker in brokers if (broker.port == port) is not bool(tried))
            tried.append(chosen.port)
            return chosen

        monkeypatch.setattr(manager.random, "choice", silent_one_first)
        servers = f"127.0.0.1:{port},{kafka_config['bootstrap.servers']}"
        with WireClient({**kafka_config, "bootstrap.servers": servers}) as client:
            assert client.admin.describe_cluster()
    assert tried[0] == port


def test_a_cluster_that_is_not_there_is_unanswered_and_nobody_goes_on_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_exactlyonce.kafka import wire
    from airflow_provider_exactlyonce.kafka.config import for_kafka_python

    impatient = {"bootstrap_timeout_ms": 500}
    monkeypatch.setattr(wire, "for_kafka_python", lambda config: {**for_kafka_python(config), **impatient})
    before = set(threading.enumerate())
    with pytest.raises(UnansweredError):
        WireClient({"bootstrap.servers": "127.0.0.1:1"})
    assert set(threading.enumerate()) <= before

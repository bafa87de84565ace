"""What is refused before a pipeline touches a cluster, on real brokers that are set up wrongly."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from kafka.admin import AlterConfigOp, ConfigResource, ConfigResourceType
from kafka.errors import KafkaConnectionError, TransactionalIdNotFoundError

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.configuration import HOST
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    ExactlyOnceError,
    RecordRefusedError,
    RefusedError,
    SettingRefusedError,
)
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.preflight import check_cluster, check_topic_ids, check_topics
from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient
from tests.integration.streaming.harness import open_transactions
from tests.waiting import eventually


@pytest.fixture(scope="module")
def client(kafka_config: Mapping[str, str]) -> Iterator[WireClient]:
    with WireClient(kafka_config) as client:
        yield client


def check(client: WireClient, seconds: int = 60) -> None:
    check_cluster(client, transactional_id="exactlyonce.preflight", transaction_timeout_milliseconds=seconds * 1000)


def set_on_broker(client: WireClient, name: str, value: str | None) -> None:
    change = {name: (AlterConfigOp.DELETE, None) if value is None else value}
    client.admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", configs=change)])


def test_a_cluster_that_is_fit_passes_and_nothing_is_left_on_it(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    source, sink, ledger = make_topic(), make_topic(partitions=3), f"exactlyonce.ledger.{uuid.uuid4()}"
    check(client)
    facts = check_topics(client, sources=[source], sinks=[sink], ledger=ledger)
    assert set(facts) == {source, sink}
    assert (facts[sink].partitions, facts[sink].batch_bytes_maximum) == (3, 1_048_588)
    metadata = client.metadata(sink)
    assert metadata is not None
    assert facts[sink].topic_id == metadata.topic_id
    assert client.metadata(ledger) is None
    with pytest.raises(TransactionalIdNotFoundError):
        client.admin.describe_transactions(["exactlyonce.preflight"])
    assert open_transactions(kafka_config, sink) == {}


def test_a_transaction_time_out_above_the_brokers_cap_names_both(client: WireClient) -> None:
    with pytest.raises(SettingRefusedError, match=r"is 901; it must be 'at most 900'.*transaction\.max\.timeout\.ms"):
        check(client, seconds=901)


def test_partition_verification_that_is_off_is_refused(client: WireClient) -> None:
    name = "transaction.partition.verification.enable"
    set_on_broker(client, name, "false")
    try:
        eventually(lambda: _refused(client, name), "the broker has the setting")
    finally:
        set_on_broker(client, name, None)
    eventually(lambda: not _refused(client, name), "the broker has its default again")


def _refused(client: WireClient, name: str) -> bool:
    try:
        check(client)
    except SettingRefusedError as error:
        return error.name == f"{name} of broker 1"
    return False


def test_a_broker_that_is_too_old_is_refused_with_the_release_that_is_needed(
    client: WireClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "REQUESTS", {**preflight.REQUESTS, "EndTxn": (26, 99)})
    with pytest.raises(SettingRefusedError, match=r"EndTxn of broker 1 .* is 5; .*at least 99.*Kafka 3\.8 or newer"):
        check(client)


def test_topics_that_do_not_exist_are_named_with_their_use(client: WireClient) -> None:
    with pytest.raises(
        RefusedError, match=r"source topic absent\.1 does not exist, sink topic absent\.2 does not exist on"
    ):
        check_topics(client, sources=["absent.1"], sinks=["absent.2"])


def test_a_topic_that_is_just_being_made_is_waited_for(client: WireClient, kafka_config: Mapping[str, str]) -> None:
    name, admin = f"late-{uuid.uuid4()}", AdminClient(dict(kafka_config))
    making = threading.Timer(0.7, lambda: admin.create_topics([NewTopic(name, 1, 1)])[name].result(30))
    making.start()
    assert check_topics(client, sinks=[name])[name].partitions == 1
    making.join()


@pytest.mark.parametrize("use", ["source", "sink", "ledger"])
def test_an_unclean_election_is_refused_on_each_kind_of_topic(
    client: WireClient, make_topic: Callable[..., str], use: str
) -> None:
    topic = make_topic(**{"unclean.leader.election.enable": "true"})
    with pytest.raises(SettingRefusedError) as caught:
        check_topics(client, **({"ledger": topic} if use == "ledger" else {f"{use}s": [topic]}))
    assert (caught.value.name, caught.value.value, caught.value.required) == (
        f"unclean.leader.election.enable of {use} topic {topic}",
        "true",
        "false",
    )


def test_more_in_sync_replicas_than_replicas_are_refused_where_we_write(
    client: WireClient, make_topic: Callable[..., str]
) -> None:
    topic = make_topic(**{"min.insync.replicas": "2"})
    with pytest.raises(SettingRefusedError, match=r"min\.insync\.replicas of sink topic .* is '2'; .*at most 1"):
        check_topics(client, sinks=[topic])


def test_timestamps_outside_the_topics_limits_are_refused_with_the_limit(
    client: WireClient, make_topic: Callable[..., str]
) -> None:
    limits = {"message.timestamp.before.max.ms": "1000", "message.timestamp.after.max.ms": "2000"}
    own, brokers = make_topic(**limits), make_topic(**limits, **{"message.timestamp.type": "LogAppendTime"})
    facts = check_topics(client, sinks=[own, brokers])
    now = 1_000_000_000
    facts[own].check_timestamps(now - 1000, now + 2000, now)
    facts[brokers].check_timestamps(0, 2 * now, now)
    with pytest.raises(RecordRefusedError, match=rf"{own} .* 1001 ms before now; message\.timestamp\.before\.max\.ms"):
        facts[own].check_timestamps(now - 1001, now, now)
    with pytest.raises(RecordRefusedError, match=rf"{own} .* 2001 ms after now; message\.timestamp\.after\.max\.ms"):
        facts[own].check_timestamps(now, now + 2001, now)


def test_a_topic_that_is_recreated_in_mid_run_is_noticed_by_its_id(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    stays, goes = make_topic(), make_topic()
    ids = {name: of.topic_id for name, of in check_topics(client, sinks=[stays, goes]).items()}
    assert check_topic_ids(client, ids) == {stays: 4, goes: 4}
    admin = AdminClient(dict(kafka_config))
    admin.delete_topics([goes])[goes].result(30)
    eventually(lambda: client.metadata(goes) is None, "the broker knows that the topic is gone")
    with pytest.raises(BatchFailedError, match=goes):
        check_topic_ids(client, ids)
    eventually(lambda: _created(admin, goes) and client.metadata(goes), "the topic is made again")
    with pytest.raises(RefusedError, match=rf"{goes} was recreated while the pipeline ran: .*was {ids[goes]}"):
        check_topic_ids(client, ids)


def _created(admin: AdminClient, name: str) -> bool:
    try:
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)
    except KafkaException as error:
        return bool(error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
    return True


def test_a_cluster_whose_transactions_are_of_the_older_version_passes(tmp_path: Path) -> None:
    with (
        EmbeddedBroker(tmp_path, features={"transaction.version": 0}) as broker,
        WireClient({"bootstrap.servers": broker.bootstrap_servers}) as client,
    ):
        assert "finalized" not in client.admin.describe_features()["transaction.version"]
        check(client)


@pytest.mark.slow
def test_a_cluster_that_is_not_there_is_named_within_bounded_time() -> None:
    with socket.socket() as taken:  # nobody listens
        taken.bind((HOST, 0))
        address = f"{HOST}:{taken.getsockname()[1]}"
        with pytest.raises(UnansweredError, match=address):
            WireClient({"bootstrap.servers": address})


@pytest.mark.slow
def test_on_two_brokers_one_replica_is_refused_and_missing_in_sync_replicas_are_waited_for(
    two_brokers: tuple[EmbeddedBroker, ProcessIdentity], caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two_brokers
    config = {"bootstrap.servers": first.bootstrap_servers}
    admin = AdminClient(dict(config))
    both = NewTopic("both", 2, 2, config={"min.insync.replicas": "2"})
    for future in admin.create_topics([NewTopic("single", 1, 1), both]).values():
        future.result(30)
    with WireClient(config) as client:
        check_topics(client, sinks=["both"])
        with caplog.at_level(logging.WARNING):
            check(client)
        assert "transaction.state.log.replication.factor of broker 2 is 1" in caplog.text
        with pytest.raises(SettingRefusedError, match=r"replication factor of topic single is 1; .*at least 2"):
            check_topics(client, sinks=["single"])
        with pytest.raises(SettingRefusedError, match=r"replication factor of topic exactlyonce\.ledger\.new is 1"):
            check_topics(client, ledger="exactlyonce.ledger.new")
        assert set(check_topics(client, sinks=["single"], allow_single_replica=True)) == {"single"}

        second.send(signal.SIGKILL)
        eventually(lambda: _in_sync(client, "both") == 1, "the first broker is alone")
        began = time.monotonic()
        with pytest.raises(ExactlyOnceError, match=r"both-0 has 1 in-sync replicas and min\.insync\.replicas is 2"):
            check_topics(client, sinks=["both"], patience_seconds=2)
        assert time.monotonic() - began >= 2


def _in_sync(client: WireClient, topic: str) -> int:
    try:
        (described,) = client.admin.describe_topics([topic])
    except KafkaConnectionError:
        return -1  # it asked the broker that is gone
    return min(len(partition["isr_nodes"]) for partition in described["partitions"])

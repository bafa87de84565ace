"""Record batches for several partitions in one request: all are appended once, whatever is answered."""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Iterator, Mapping

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kafka import TopicPartition

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity
from airflow_provider_exactlyonce.exceptions import BatchFailedError
from airflow_provider_exactlyonce.kafka import record_batch, transaction
from airflow_provider_exactlyonce.kafka.transaction import TransactionSession, add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import Appended, Code, WireClient
from tests.integration.kafka.proxy import Api, Proxy, cut_after, cut_before, twice
from tests.integration.streaming.harness import open_transactions, read_committed
from tests.waiting import eventually

PARTITIONS = range(4)


class Client(WireClient):
    """Notes what it is asked to append; :attr:`faults` are used up, one for each time."""

    def __init__(self, config: Mapping[str, str]) -> None:
        super().__init__(config)
        self.asked: list[list[int]] = []
        self.faults: list[Callable[[str, str, Mapping[int, bytes]], dict[int, Appended]]] = []

    def produce(self, transactional_id: str, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        self.asked.append(list(batches))
        send = self.faults.pop(0) if self.faults else super().produce
        return send(transactional_id, topic, batches)

    def takes_one(self, transactional_id: str, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        """The first partition's leader takes its batch; the others have just moved."""
        first, *others = batches
        moved = Appended(Code.NOT_LEADER_OR_FOLLOWER, -1, "")
        return {
            **super().produce(transactional_id, topic, {first: batches[first]}),
            **dict.fromkeys(others, moved),
        }

    def loses_the_answer(self, transactional_id: str, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        super().produce(transactional_id, topic, batches)
        return dict.fromkeys(batches, Appended(Code.NETWORK_EXCEPTION, -1, "lost"))


@pytest.fixture
def client(kafka_config: Mapping[str, str]) -> Iterator[Client]:
    with Client(kafka_config) as client:
        yield client


class Writing:
    """A transaction with all partitions of a topic in it."""

    def __init__(self, client: WireClient, topic: str) -> None:
        self.client, self.topic = client, topic
        self.session = TransactionSession(client, f"t-{uuid.uuid4()}", timeout_milliseconds=60_000)
        self.session.initialise()
        self.session.begin()
        add_partitions(client, self.session.transactional_id, self.session.producer, topic, PARTITIONS)

    def batches(self, round_: int, **sequences: int) -> dict[int, bytes]:
        """One record for each partition."""
        producer, batches = self.session.producer, {}
        for partition in PARTITIONS:
            body = record_batch.encode_few([(b"%d" % partition, b"%d" % round_)], 0)
            sequence = sequences.get(f"p{partition}", round_)
            stamped = record_batch.with_header(
                body, producer_id=producer.id, epoch=producer.epoch, base_sequence=sequence
            )
            batches[partition] = b"".join(stamped)
        return batches

    def append(self, round_: int, **sequences: int) -> dict[int, int]:
        return produce(self.client, self.session.transactional_id, self.topic, self.batches(round_, **sequences))


def check(config: Mapping[str, str], topic: str, rounds: int) -> None:
    eventually(lambda: not open_transactions(config, topic), "the commit's markers, which its answer does not wait for")
    read = sorted(
        (record.partition, record.offset, record.key, record.value) for record in read_committed(config, topic)
    )
    assert read == [(at, number, b"%d" % at, b"%d" % number) for at in PARTITIONS for number in range(rounds)]


def test_only_what_is_not_acknowledged_is_sent_again(
    client: Client, kafka_config: Mapping[str, str], make_led_topic: Callable[..., str]
) -> None:
    writing = Writing(client, make_led_topic(partitions=4))
    client.faults = [client.takes_one, client.loses_the_answer]
    assert writing.append(0) == dict.fromkeys(PARTITIONS, 0)
    assert client.asked == [[0, 1, 2, 3], [1, 2, 3], [1, 2, 3]]
    assert writing.append(1) == dict.fromkeys(PARTITIONS, 1)
    writing.session.commit()
    check(kafka_config, writing.topic, rounds=2)


@pytest.mark.parametrize("fault", [cut_before, cut_after, twice])
def test_a_request_that_is_lost_or_doubled_on_the_wire_is_appended_once(
    broker: EmbeddedBroker,
    kafka_config: Mapping[str, str],
    make_led_topic: Callable[..., str],
    fault: Callable[..., bytes],
) -> None:
    with Proxy(broker.state.port) as proxy, WireClient(proxy.config) as client:
        writing = Writing(client, make_led_topic(partitions=4))
        proxy.on(Api.PRODUCE, fault, times=2)
        for number in range(3):
            assert writing.append(number) == dict.fromkeys(PARTITIONS, number)
        writing.session.commit()
        assert proxy.pending == 0
    check(kafka_config, writing.topic, rounds=3)


def test_a_batch_that_is_refused_beside_others_is_named(client: Client, make_led_topic: Callable[..., str]) -> None:
    writing = Writing(client, make_led_topic(partitions=4))
    writing.append(0)
    with pytest.raises(BatchFailedError, match=rf"Produce to {writing.topic}-2 answered .*OUT_OF_ORDER_SEQUENCE"):
        writing.append(1, p2=9)
    writing.session.abort()


def config_with_topic(broker: EmbeddedBroker, topic: str) -> dict[str, str]:
    """Create the topic, whose partitions Kafka spreads over the brokers; return the clients' configuration."""
    config = {"bootstrap.servers": broker.bootstrap_servers}
    admin = AdminClient(dict(config))
    admin.create_topics([NewTopic(topic, len(PARTITIONS), 1)])[topic].result(30)
    return config


@pytest.mark.slow
def test_partitions_of_two_brokers_are_written_and_followed_when_they_move(
    two_brokers: tuple[EmbeddedBroker, ProcessIdentity],
) -> None:
    config = config_with_topic(two_brokers[0], "spread")
    with Client(config) as client:
        writing = Writing(client, "spread")
        assert writing.append(0) == dict.fromkeys(PARTITIONS, 0)
        leaders = client.leaders("spread", PARTITIONS)
        assert set(leaders.values()) == {1, 2}
        first = leaders[0]
        client.admin.alter_partition_reassignments({TopicPartition("spread", 0): [3 - first]})
        eventually(lambda: leader_of_the_first(client) == 3 - first, "it has moved")
        assert client.leaders("spread", [0]) == {0: first}, "the client has not heard of it"
        asked = len(client.asked)
        assert writing.append(1) == dict.fromkeys(PARTITIONS, 1)
        assert client.asked[asked : asked + 2] == [[0, 1, 2, 3], [0]], "the others' were acknowledged"
        writing.session.commit()
    check(config, "spread", rounds=2)


def leader_of_the_first(client: WireClient) -> int:
    described = client.metadata("spread")
    assert described is not None
    return described.leaders[0]


@pytest.mark.slow
def test_a_leader_that_does_not_answer_holds_up_none_of_the_others(
    two_brokers: tuple[EmbeddedBroker, ProcessIdentity], monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, second = two_brokers
    config = config_with_topic(broker, "spread")
    with Client(config) as client:
        writing = Writing(client, "spread")
        writing.append(0)
        gone = [partition for partition, leader in client.leaders("spread", PARTITIONS).items() if leader == 2]
        assert 0 < len(gone) < len(PARTITIONS)
        second.send(signal.SIGKILL)
        asked = len(client.asked)
        monkeypatch.setattr(transaction, "_REQUEST_PATIENCE_SECONDS", 5)
        with pytest.raises(
            BatchFailedError, match=r"2 of 4 partitions of spread lack their records: no definite answer"
        ):
            writing.append(1)
        assert client.asked[asked : asked + 2] == [list(PARTITIONS), gone]

"""The adapter over kafka-python's private connection manager: the protocol requests that no client offers publicly.

Nothing else in the project touches ``_manager``. The contract test (``tests/integration/kafka/test_wire.py``)
says what to do when a release of kafka-python breaks it. Request versions are fixed on purpose: with EndTxn 4,
AddPartitionsToTxn 3 and Produce 11 the partitions are added by the client and the epoch changes only by InitProducerId.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self, TypeVar

import kafka.errors
from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError, UnknownBrokerIdError
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.consumer import FetchRequest, IsolationLevel, ListOffsetsRequest, OffsetSpec
from kafka.protocol.metadata import CoordinatorType, MetadataRequest
from kafka.protocol.producer import ProduceRequest
from kafka.protocol.producer.transaction import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
)

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.kafka.config import for_kafka_python
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition

T = TypeVar("T")

_REQUEST_TIMEOUT_MILLISECONDS: Final = 30_000
_FETCH_BYTES: Final = 1024 * 1024  # a larger batch is returned alone
_CONNECT_TIMEOUT_MILLISECONDS: Final = 3_000  # after each failure kafka-python doubles it
_NO_LEADER: Final = -1
#: Above its default of 5 requests in flight a connection pauses, and requests to any node find none.
#: A broker that was away for long is tried again every second, not after half a minute: readers wait for our commit.
_SETTINGS: Final = {"max_in_flight_requests_per_connection": 1000, "reconnect_backoff_max_ms": 1000}


class Code(IntEnum):
    """Kafka's error codes that the protocol tells apart."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    ILLEGAL_GENERATION = 22
    UNKNOWN_MEMBER_ID = 25
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    UNKNOWN_PRODUCER_ID = 59
    INVALID_RECORD = 87
    PRODUCER_FENCED = 90


class UnansweredError(Exception):
    """A request got no answer: it may or may not have been executed."""


@dataclass(frozen=True, kw_only=True)
class Producer:
    """Kafka's identity of a transactional producer."""

    id: int
    epoch: int


NO_PRODUCER: Final = Producer(id=-1, epoch=-1)


@dataclass(frozen=True, kw_only=True)
class TopicMetadata:
    """The cluster's metadata of a topic.

    :param leaders: {partition: node id}, -1 for a partition without a leader
    """

    topic_id: str
    leaders: Mapping[int, int]


class Appended(NamedTuple):
    """A broker's answer to a record batch: an error code, the base offset, and a message."""

    code: int
    offset: int
    message: str


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python says no types
    """Goes on to another bootstrap server soon, and looks for a broker that is back.

    kafka-python gives all of its time to the bootstrap server that it happens to try first: with one broker of three
    cut off, every third start of a driver would fail.
    """

    DEFAULT_CONFIG: Final = {
        **KafkaConnectionManager.DEFAULT_CONFIG,
        "socket_connection_setup_timeout_ms": _CONNECT_TIMEOUT_MILLISECONDS,
    }

    def get_connection(self, node_id: Any, timeout_ms: float | None = None, **options: Any) -> KafkaConnection:
        """Connect to a node, within the limit for one connection."""
        limit_ms = self.socket_connection_setup_timeout_ms(node_id)
        try:
            return super().get_connection(
                node_id, limit_ms if timeout_ms is None else min(timeout_ms, limit_ms), **options
            )
        except UnknownBrokerIdError:  # it was away when kafka-python last looked, up to five minutes ago
            self.cluster.request_update()
            raise


def _admin_client(config: Mapping[str, str]) -> KafkaAdminClient:
    """Connect. A client of kafka-python that can't leaves a thread behind, which would go on trying for ever."""
    with ExitStack() as on_failure:

        def net_client(**settings: Any) -> KafkaNetClient:
            net = NetworkSelector(**settings)
            client = KafkaNetClient(net, _Connections(net, **settings), **settings)
            on_failure.callback(net.stop)
            on_failure.callback(client.close)
            return client

        admin = KafkaAdminClient(kafka_client=net_client, **_SETTINGS, **for_kafka_python(config))
        on_failure.pop_all()
        return admin


class WireClient:
    """Sends single requests and returns their error codes. Safe to use from several threads.

    Every request of its own raises :class:`UnansweredError` when no answer came.

    :param config: client configuration in librdkafka's names
    :raises UnansweredError: when the cluster can't be reached
    """

    def __init__(self, config: Mapping[str, str]) -> None:
        logging.getLogger("kafka").setLevel(logging.ERROR)
        #: kafka-python's public admin client, on the same connections.
        self.admin: Final[KafkaAdminClient] = self._answered(lambda: _admin_client(config))
        self._manager: Any = self.admin._manager
        self._leaders: dict[TopicPartition, int] = {}
        self._config: Final = config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @cached_property
    def offsets(self) -> StableOffsets:
        """The cluster's offsets, asked through confluent-kafka, which offers that publicly."""
        return StableOffsets(self._config)

    def close(self) -> None:
        """Close the connections. An open transaction stays open."""
        self.admin.close()
        if "offsets" in vars(self):
            self.offsets.close()

    def init_producer_id(
        self, transactional_id: str, current: Producer, transaction_timeout_milliseconds: int
    ) -> tuple[int, Producer]:
        """Ask the coordinator for the next epoch.

        :param current: the producer as known, or :data:`NO_PRODUCER` to fence any other
        """
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=transaction_timeout_milliseconds,
            producer_id=current.id,
            producer_epoch=current.epoch,
            max_version=5,
        )
        code, answer = self._to_coordinator(CoordinatorType.TRANSACTION, transactional_id, request)
        if answer is None:
            return code, NO_PRODUCER
        return code, Producer(id=answer.producer_id, epoch=answer.producer_epoch)

    def add_partitions(self, transactional_id: str, producer: Producer, topic: str, partitions: Collection[int]) -> int:
        """Make some of a topic's partitions part of the transaction, which opens it if it isn't open.

        Either all of them become part of it or none; returns the error of one that can't.
        """
        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
            max_version=3,
        )

        def error(answer: Any) -> int:
            results = answer.results_by_topic_v3_and_below[0].results_by_partition
            codes = {result.partition_error_code for result in results}
            # Beside one that can't be added the others are "not attempted".
            return int(min(codes - {Code.NONE, Code.OPERATION_NOT_ATTEMPTED}, default=max(codes)))

        return self._to_coordinator(CoordinatorType.TRANSACTION, transactional_id, request, error)[0]

    def add_offsets(self, transactional_id: str, producer: Producer, group: str) -> int:
        """Make a consumer group's offsets part of the transaction, which opens it if it isn't open."""
        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            group_id=group,
            max_version=3,
        )
        return self._to_coordinator(CoordinatorType.TRANSACTION, transactional_id, request)[0]

    def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        offsets: Mapping[TopicPartition, int],
        metadata: str,
    ) -> int:
        """Write offsets of a group without members into the transaction; the first error of any partition counts.

        :param offsets: {(topic, partition): next offset to read}
        :param metadata: a note beside each offset, shown by tools that list them
        """
        kind = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        topics: dict[str, list[Any]] = {}
        for (topic, partition), offset in offsets.items():
            topics.setdefault(topic, []).append(
                kind.TxnOffsetCommitRequestPartition(
                    partition_index=partition, committed_offset=offset, committed_metadata=metadata
                )
            )
        request = TxnOffsetCommitRequest(
            transactional_id=transactional_id,
            group_id=group,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            generation_id=-1,
            member_id="",
            topics=[kind(name=topic, partitions=partitions) for topic, partitions in topics.items()],
            min_version=3,
            max_version=3,
        )

        def first_error(answer: Any) -> int:
            codes = [partition.error_code for topic in answer.topics for partition in topic.partitions]
            return next((code for code in codes if code != Code.NONE), Code.NONE)

        return self._to_coordinator(CoordinatorType.GROUP, group, request, first_error)[0]

    def end_transaction(self, transactional_id: str, producer: Producer, *, commit: bool) -> int:
        """Commit or abort the open transaction."""
        request = EndTxnRequest(
            transactional_id=transactional_id,
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            committed=commit,
            max_version=4,
        )
        return self._to_coordinator(CoordinatorType.TRANSACTION, transactional_id, request)[0]

    def produce(self, transactional_id: str, topic: str, batches: Mapping[int, bytes]) -> dict[int, Appended]:
        """Append a record batch to each of some partitions with acks=all, in one request to each of their leaders.

        :param batches: {partition: record batch}
        :returns: the answer for each partition, NETWORK_EXCEPTION if none came; some may have their batch while others
            have not
        """
        by_leader = _by_leader(self.leaders(topic, batches))
        leaderless = Appended(Code.LEADER_NOT_AVAILABLE, -1, "the partition has no leader")
        answers = dict.fromkeys(by_leader.pop(_NO_LEADER, []), leaderless)
        kind = ProduceRequest.TopicProduceData
        requests = {}
        for leader, partitions in by_leader.items():
            data = [kind.PartitionProduceData(index=partition, records=batches[partition]) for partition in partitions]
            requests[leader] = ProduceRequest(
                transactional_id=transactional_id,
                acks=-1,
                timeout_ms=_REQUEST_TIMEOUT_MILLISECONDS,
                topic_data=[kind(name=topic, partition_data=data)],
                max_version=11,
            )
        for leader, answer in self._send_each(requests).items():
            if isinstance(answer, KafkaError):
                for partition in by_leader[leader]:
                    self._leaders.pop((topic, partition), None)  # it may have moved; the next try asks
                    answers[partition] = Appended(Code.NETWORK_EXCEPTION, -1, _text(answer))
            else:
                for response in answer.responses[0].partition_responses:
                    answers[response.index] = Appended(
                        response.error_code, response.base_offset, response.error_message or ""
                    )
        return answers

    def fetch(self, topic: str, partition: int, offset: int) -> bytes:
        """Return the log's bytes from an offset on, undecided and aborted batches included; empty at its end.

        The first batch may begin before the offset, and the last one may be cut off.
        """
        kind = FetchRequest.FetchTopic
        fetch_partition = kind.FetchPartition(
            partition=partition, fetch_offset=offset, partition_max_bytes=_FETCH_BYTES, current_leader_epoch=-1
        )
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=_FETCH_BYTES,
            isolation_level=IsolationLevel.READ_UNCOMMITTED,
            session_id=0,
            session_epoch=-1,
            topics=[kind(topic=topic, partitions=[fetch_partition])],
            forgotten_topics_data=[],
            max_version=11,
        )
        try:
            answer = self._send(request, self.leaders(topic, [partition])[partition]).responses[0].partitions[0]
            if answer.error_code != Code.NONE:
                raise UnansweredError(f"fetch of {topic}-{partition} at {offset}: {describe(answer.error_code)}")
        except UnansweredError:
            self._leaders.pop((topic, partition), None)
            raise
        return bytes(answer.records or b"")

    def metadata(self, topic: str) -> TopicMetadata | None:
        """Ask for a topic's partitions; None when it does not exist.

        :raises RefusedError: when the user may not see it
        """
        request = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False, max_version=12
        )
        answer = self._send(request, None).topics[0]
        if answer.error_code == Code.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        if answer.error_code == Code.TOPIC_AUTHORIZATION_FAILED:
            raise RefusedError(f"the Kafka user may not see topic {topic}; grant DESCRIBE on it")
        if answer.error_code != Code.NONE:
            raise UnansweredError(f"metadata of {topic}: {describe(answer.error_code)}")
        return TopicMetadata(
            topic_id=str(answer.topic_id),
            leaders={partition.partition_index: partition.leader_id for partition in answer.partitions},
        )

    def leaders(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """Return the node ids of some partitions' leaders from the cache, -1 for one that has none."""
        if any(self._leaders.get((topic, partition), _NO_LEADER) == _NO_LEADER for partition in partitions):
            self.refresh_leaders(topic)
        return {partition: self._leaders.get((topic, partition), _NO_LEADER) for partition in partitions}

    def refresh_leaders(self, topic: str) -> None:
        """Look up the leaders of the topic's partitions again; done after an error that shows a move."""
        described = self.metadata(topic)
        if described is not None:
            self._leaders |= by_partition({topic: described.leaders})

    def stable_offsets(self, topic: str) -> dict[int, int]:
        """Return each partition's last stable offset: records below it are decided.

        A run asks on its own connections: after a broker's restart they come back sooner than librdkafka's.
        """
        return self._offsets(topic, OffsetSpec.LATEST)

    def earliest_offsets(self, topic: str) -> dict[int, int]:
        """Return where each partition's log starts; asked like :meth:`stable_offsets`."""
        return self._offsets(topic, OffsetSpec.EARLIEST)

    def _offsets(self, topic: str, spec: OffsetSpec) -> dict[int, int]:
        described = self.metadata(topic)
        if described is None:
            raise UnansweredError(f"topic {topic} does not exist")
        offsets: dict[int, int] = {}
        for leader, partitions in _by_leader(described.leaders).items():
            partition_requests = [
                ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(partition_index=partition, timestamp=spec)
                for partition in partitions
            ]
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=IsolationLevel.READ_COMMITTED,
                topics=[ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partition_requests)],
            )
            for answer in self._send(request, leader).topics[0].partitions:
                if answer.error_code != Code.NONE:
                    raise UnansweredError(f"offsets of {topic}-{answer.partition_index}: {describe(answer.error_code)}")
                offsets[answer.partition_index] = int(answer.offset)
        return offsets

    def _to_coordinator(
        self,
        kind: CoordinatorType,
        name: str,
        request: Any,
        error_code: Callable[[Any], int] = attrgetter("error_code"),
    ) -> tuple[int, Any]:
        """Send to a coordinator; returns (error code, answer). The answer is None when none was found.

        :param name: the transactional.id or the group
        :param error_code: reads it from the answer
        """

        async def send() -> tuple[int, Any]:
            try:
                nodes = await self.admin._find_coordinator_ids([name], key_type=kind)
            except kafka.errors.AuthorizationError as error:
                return int(error.errno), None
            answer = await self._manager.send(request, node_id=nodes[name])
            return int(error_code(answer)), answer

        try:
            code, answer = self._answered(lambda: self._manager.run(send))
        except UnansweredError:
            self._forget_coordinator(kind, name)
            raise
        if code in (Code.NOT_COORDINATOR, Code.COORDINATOR_NOT_AVAILABLE):
            self._forget_coordinator(kind, name)
        return code, answer

    def _forget_coordinator(self, kind: CoordinatorType, name: str) -> None:
        self._manager.cluster._coordinators.pop((kind, name), None)

    def _send(self, request: Any, node: int | None) -> Any:
        async def send() -> Any:
            return await self._manager.send(request, node_id=node)

        return self._answered(lambda: self._manager.run(send))

    def _send_each(self, requests: Mapping[int, Any]) -> dict[int, Any]:
        """Send a request to each of some nodes at once; of one that does not answer the error is returned."""

        async def send() -> dict[int, Any]:
            futures: dict[int, Any] = {}
            answers: dict[int, Any] = {}
            for node, request in requests.items():
                try:
                    futures[node] = self._manager.send(request, node_id=node)
                except KafkaError as error:  # the cluster has no such node any more
                    answers[node] = error
            for node, future in futures.items():
                try:
                    answers[node] = await future
                except KafkaError as error:
                    answers[node] = error
            return answers

        return self._answered(lambda: self._manager.run(send))

    def _answered(self, call: Callable[[], T]) -> T:
        try:
            return call()
        except KafkaError as error:
            raise UnansweredError(_text(error)) from error


def _by_leader(leaders: Mapping[int, int]) -> dict[int, list[int]]:
    by_leader: dict[int, list[int]] = {}
    for partition, leader in leaders.items():
        by_leader.setdefault(leader, []).append(partition)
    return by_leader


def _text(error: KafkaError) -> str:
    return f"{type(error).__name__}: {error}"


def describe(code: int) -> str:
    """Return an error code's name, for messages."""
    try:
        return f"{Code(code).name} ({code})"
    except ValueError:
        return f"{kafka.errors.for_code(code).__name__} ({code})"

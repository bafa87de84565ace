"""One pipeline's producer session: at most one open transaction, one epoch per batch attempt.

The driver is its only owner. The rules of its requests are the commit protocol's:

* (-1, -1) is sent once for each claim: it aborts an open transaction and fences every older run.
* Later epochs come from InitProducerId with the current (producer id, epoch), which fences only our own stragglers and
  fails when another producer has taken over. Before it an EndTxn(abort) is sent, which the coordinator judges by the
  epoch alone: InitProducerId of a superseded run would abort its successor's open transaction before it is refused.
* An attempt is never aborted after its commit was sent, unless the commit's answer was definite.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import Enum
from typing import Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import (
    AttemptTimedOutError,
    BatchFailedError,
    CommitUnknownError,
    ExactlyOnceError,
    InvariantError,
    RecordRefusedError,
    RefusedError,
    SettingRefusedError,
)
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.retry import TAKEN_OVER, TRANSIENT, until_definite
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.kafka.wire import NO_PRODUCER, Code, Producer, UnansweredError, WireClient, describe

#: The largest epoch that the coordinator gives out; the next request gets a new producer id with epoch 0.
LAST_EPOCH: Final = 32_766
_REQUEST_PATIENCE_SECONDS: Final = 60.0

#: The answers about a transaction that the coordinator has ended: as a rule because it was open for too long.
_ENDED: Final = frozenset({Code.PRODUCER_FENCED, Code.INVALID_PRODUCER_EPOCH, Code.INVALID_TXN_STATE})
_LIVE_GROUP: Final = frozenset({Code.UNKNOWN_MEMBER_ID, Code.ILLEGAL_GENERATION})


class SessionState(Enum):
    """Where the session is."""

    NEW = "new"  # no producer id yet
    IDLE = "idle"  # epoch known, nothing open
    OPEN = "open"  # a batch attempt writes
    ENDING = "ending"  # a commit was sent
    LOST = "lost"  # another producer has the transactional id, or the commit's outcome is unknown


class SessionEvent(Enum):
    """An event that changes the session's state."""

    INITIALISED = "initialised"
    BEGUN = "begun"
    COMMIT_SENT = "commit sent"
    COMMITTED = "committed"
    ABORTED = "aborted"
    LOST = "lost"


TRANSITIONS: Final[Mapping[tuple[SessionState, SessionEvent], SessionState]] = {
    (SessionState.NEW, SessionEvent.INITIALISED): SessionState.IDLE,
    (SessionState.LOST, SessionEvent.INITIALISED): SessionState.IDLE,
    (SessionState.IDLE, SessionEvent.INITIALISED): SessionState.IDLE,
    (SessionState.OPEN, SessionEvent.INITIALISED): SessionState.IDLE,
    (SessionState.IDLE, SessionEvent.BEGUN): SessionState.OPEN,
    (SessionState.OPEN, SessionEvent.COMMIT_SENT): SessionState.ENDING,
    (SessionState.ENDING, SessionEvent.COMMITTED): SessionState.IDLE,
    (SessionState.OPEN, SessionEvent.ABORTED): SessionState.IDLE,
    (SessionState.IDLE, SessionEvent.LOST): SessionState.LOST,
    (SessionState.OPEN, SessionEvent.LOST): SessionState.LOST,
    (SessionState.ENDING, SessionEvent.LOST): SessionState.LOST,
}


class ProducerLostError(ExactlyOnceError):
    """The coordinator no longer knows this producer as the current one.

    A newer run, a straggler of our own aborted attempt, or an expired transactional id: the ledger tells which.
    """


class TransactionGoneError(CommitUnknownError):
    """The coordinator has ended the transaction before its commit came, or a newer run has; the ledger decides."""


class BatchTooLargeError(BatchFailedError):
    """A record batch is above the topic's limit, as it was sent or as the broker compressed it.

    :ivar partition: the one that it was for
    """

    def __init__(self, partition: int, message: str) -> None:
        super().__init__(message)
        self.partition: Final = partition


class TransactionSession:
    """A transactional id's session in the driver.

    :param client: connection to the cluster; the session does not close it
    :param transactional_id: the pipeline's
    :param timeout_milliseconds: transaction timeout, from the first record to the commit of one batch
    """

    def __init__(self, client: WireClient, transactional_id: str, *, timeout_milliseconds: int) -> None:
        self.client: Final = client
        self.transactional_id: Final = transactional_id
        self.timeout_milliseconds: Final = timeout_milliseconds
        self.producer = NO_PRODUCER
        self.state = SessionState.NEW
        self._written: dict[TopicPartition, int] = {}

    def __repr__(self) -> str:
        return f"TransactionSession({self.transactional_id!r}, {self.state.name}, {self.producer})"

    def initialise(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Take the transactional id over: abort its open transaction and fence other producers. Only before a claim.

        :param give_up: asked between repetitions, true when the process has to stop
        :raises SettingRefusedError: when the broker's cap is below the transaction timeout
        :raises RefusedError: when the Kafka user lacks a right
        :raises UnansweredError: when no definite answer came; may be repeated
        """
        code, producer = self._init_producer_id(NO_PRODUCER, give_up)
        if code == Code.INVALID_TRANSACTION_TIMEOUT:
            raise SettingRefusedError(
                "transaction_timeout",
                f"{self.timeout_milliseconds} ms",
                "at most the broker's transaction.max.timeout.ms",
                "the broker does not open such a transaction",
            )
        _check_rights(code, self.transactional_id)
        if code != Code.NONE:
            raise ExactlyOnceError(f"InitProducerId of {self.transactional_id} answered {describe(code)}")
        self.producer = producer
        self._move(SessionEvent.INITIALISED)

    def begin(self) -> None:
        """Take the next epoch for a batch attempt; fences the attempt before, and aborts transactions that it opened.

        :raises ProducerLostError: when another producer has taken over; nothing of ours is open then
        :raises UnansweredError: when no definite answer came; may be repeated
        """
        if self.state is not SessionState.IDLE:
            raise InvariantError(f"begin in {self!r}")
        self._end_open_transaction()
        code, producer = self._init_producer_id(self.producer)
        exhausted = self.producer.epoch >= LAST_EPOCH and producer.epoch == 0
        if code != Code.NONE or (producer.id != self.producer.id and not exhausted):
            self._move(SessionEvent.LOST)
            answer = describe(code) if code != Code.NONE else f"another producer id, {producer.id}"
            raise ProducerLostError(f"InitProducerId of {self.transactional_id} at {self.producer} answered {answer}")
        self.producer = producer
        self._written = {}
        self._move(SessionEvent.BEGUN)

    def write(self, topic: str, partition: int, key: bytes, value: bytes, *, tombstones: Sequence[bytes] = ()) -> int:
        """Append one record of the driver's own to a partition that only the driver writes; return its offset.

        :param tombstones: keys whose records go; in the same request, behind the record
        :raises BatchFailedError: when the broker refuses it; abort next
        :raises RefusedError: when the Kafka user lacks a right; abort next
        """
        sequence = self._written.get((topic, partition), 0)
        if sequence == 0:
            add_partitions(self.client, self.transactional_id, self.producer, topic, [partition])
        records = [(key, value), *((deleted_key, None) for deleted_key in tombstones)]
        body = record_batch.encode_few(records, timestamp_milliseconds=int(time.time() * 1000))
        header, payload = record_batch.with_header(
            body, producer_id=self.producer.id, epoch=self.producer.epoch, base_sequence=sequence
        )
        offsets = produce(self.client, self.transactional_id, topic, {partition: b"".join((header, payload))})
        self._written[topic, partition] = record_batch.advance_sequence(sequence, body.records)
        return offsets[partition]

    def write_offsets(self, group: str, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Commit a consumer group's offsets with the attempt: they become visible together with its records.

        The broker does not refuse a group with live members here; the caller has to check that first.

        :param offsets: {(topic, partition): next offset to read}
        :param metadata: a note beside each offset, shown by tools that list them
        :raises BatchFailedError: when the broker refuses them; abort next
        :raises RefusedError: when the Kafka user lacks a right; abort next
        """
        request = f"offsets of group {group}"
        code = _definite(request, lambda: self.client.add_offsets(self.transactional_id, self.producer, group))
        if code == Code.NONE:
            code = _definite(
                request,
                lambda: self.client.commit_offsets(self.transactional_id, self.producer, group, offsets, metadata),
            )
        topics = ", ".join(sorted({topic for topic, _ in offsets}))
        _check_rights(code, self.transactional_id, group=group, topic=topics, topic_right="READ")
        if code in _LIVE_GROUP:
            raise RefusedError(
                f"consumer group {group} has members ({describe(code)}), and the pipeline's progress would mix with "
                "theirs; name a group that nobody consumes with"
            )
        if code != Code.NONE:
            raise _attempt_failed(code, f"{request} answered {describe(code)}")

    def commit(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Commit; the answer is definite when this returns.

        :param give_up: asked between repetitions, true when the process has to stop
        :raises CommitUnknownError: when the outcome is unknown; the ledger tells. Never abort then
        :raises TransactionGoneError: so, and the coordinator has nothing of ours to commit
        """
        self._move(SessionEvent.COMMIT_SENT)
        try:
            patience_seconds = 2 * self.timeout_milliseconds / 1000
            code = until_definite(self._send_commit, timeout_seconds=patience_seconds, give_up=give_up)
        except UnansweredError as error:
            self._move(SessionEvent.LOST)
            raise CommitUnknownError(f"EndTxn(commit) of {self.transactional_id}: {error}") from error
        if code != Code.NONE:
            self._move(SessionEvent.LOST)
            kind = TransactionGoneError if code in _ENDED else CommitUnknownError
            raise kind(f"EndTxn(commit) of {self.transactional_id} answered {describe(code)}")
        self._move(SessionEvent.COMMITTED)

    def abort(self) -> None:
        """Abort the attempt. An attempt that has written nothing yet is no transaction, and is aborted all the same.

        :raises ProducerLostError: when no definite answer came, or another producer has taken over; nothing of ours is
            open after the next initialise
        """
        try:
            self._end_open_transaction()
        except UnansweredError as error:
            self._move(SessionEvent.LOST)
            raise ProducerLostError(f"EndTxn(abort) of {self.transactional_id}: {error}") from error
        self._move(SessionEvent.ABORTED)

    def _end_open_transaction(self) -> None:
        code = until_definite(
            lambda: self.client.end_transaction(self.transactional_id, self.producer, commit=False),
            timeout_seconds=_REQUEST_PATIENCE_SECONDS,
        )
        if code not in (Code.NONE, Code.INVALID_TXN_STATE):  # the latter: nothing was open
            self._move(SessionEvent.LOST)
            raise ProducerLostError(f"EndTxn(abort) of {self.transactional_id} answered {describe(code)}")

    def _send_commit(self) -> int:
        code = self.client.end_transaction(self.transactional_id, self.producer, commit=True)
        failpoints.reach("after-end-transaction")
        return code

    def _init_producer_id(self, current: Producer, give_up: Callable[[], bool] = lambda: False) -> tuple[int, Producer]:
        producer = NO_PRODUCER

        def ask() -> int:
            nonlocal producer
            code, producer = self.client.init_producer_id(self.transactional_id, current, self.timeout_milliseconds)
            return code

        return until_definite(ask, timeout_seconds=_REQUEST_PATIENCE_SECONDS, give_up=give_up), producer

    def _move(self, event: SessionEvent) -> None:
        next_state = TRANSITIONS.get((self.state, event))
        if next_state is None:
            raise InvariantError(f"{event.value} in {self!r}")
        self.state = next_state


def add_partitions(
    client: WireClient, transactional_id: str, producer: Producer, topic: str, partitions: Collection[int]
) -> None:
    """Make some of a topic's partitions part of the open transaction; the first ones open it. May be repeated.

    :raises BatchFailedError: when the coordinator refuses; the attempt can't go on
    :raises RefusedError: when the Kafka user lacks a right
    """
    request = f"AddPartitionsToTxn of {len(partitions)} partitions of {topic}"
    code = _definite(request, lambda: client.add_partitions(transactional_id, producer, topic, partitions))
    _check_rights(code, transactional_id, topic=topic)
    if code != Code.NONE:
        raise _attempt_failed(code, f"{request} answered {describe(code)}")


def produce(client: WireClient, transactional_id: str, topic: str, batches: Mapping[int, bytes]) -> dict[int, int]:
    """Append a stamped record batch to each of some of a topic's partitions, and return their base offsets.

    The same bytes with the same sequence are sent until the answer is definite: the broker removes duplicates.

    :param batches: {partition: record batch}
    :raises BatchTooLargeError: when one is above the topic's limit
    :raises BatchFailedError: when the broker refuses one for another reason; the attempt can't go on
    :raises RecordRefusedError: when it would be refused again, such as a record without a key in a compacted topic
    :raises RefusedError: when the Kafka user lacks a right
    """
    offsets: dict[int, int] = {}
    answer, refused_partition = "", -1

    def send() -> int:
        """Send the unacknowledged batches; returns a definite error in preference to a transient one."""
        nonlocal answer, refused_partition
        unacknowledged = {partition: records for partition, records in batches.items() if partition not in offsets}
        transient: int = Code.NONE
        for partition, (code, offset, message) in client.produce(transactional_id, topic, unacknowledged).items():
            if code == Code.NONE:
                offsets[partition] = offset
                continue
            answer = f"Produce to {topic}-{partition} answered {describe(code)} {message}".rstrip()
            if code not in TRANSIENT:
                refused_partition = partition
                return code
            transient = code
        return transient

    try:
        code = until_definite(
            send, timeout_seconds=_REQUEST_PATIENCE_SECONDS, on_transient=lambda: client.refresh_leaders(topic)
        )
    except UnansweredError as error:
        lacking = f"{len(batches) - len(offsets)} of {len(batches)} partitions of {topic} lack their records"
        raise BatchFailedError(f"{lacking}: {error}; {answer}") from error
    _check_rights(code, transactional_id, topic=topic)
    if code in (Code.INVALID_RECORD, Code.INVALID_TIMESTAMP):
        raise RecordRefusedError(answer)
    if code == Code.MESSAGE_TOO_LARGE:
        raise BatchTooLargeError(refused_partition, answer)
    if code in TAKEN_OVER:
        answer = f"{answer}: a newer run, or the batch took longer than its transaction time-out"
    if code != Code.NONE:
        raise _attempt_failed(code, answer)
    return offsets


def _attempt_failed(code: int, message: str) -> BatchFailedError:
    return (AttemptTimedOutError if code in _ENDED else BatchFailedError)(message)


def _definite(request: str, send: Callable[[], int]) -> int:
    try:
        return until_definite(send, timeout_seconds=_REQUEST_PATIENCE_SECONDS)
    except UnansweredError as error:
        raise BatchFailedError(f"{request}: {error}") from error


def _check_rights(
    code: int, transactional_id: str, *, topic: str = "", topic_right: str = "WRITE", group: str = ""
) -> None:
    """Raise when the answer says that the Kafka user lacks a right; a repetition would not help.

    :raises RefusedError: naming the right and its resource
    """
    missing = {
        Code.TOPIC_AUTHORIZATION_FAILED: f"{topic_right} on topic {topic}",
        Code.GROUP_AUTHORIZATION_FAILED: f"READ on group {group}",
        Code.CLUSTER_AUTHORIZATION_FAILED: "IDEMPOTENT_WRITE on the cluster",
        Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"DESCRIBE and WRITE on transactional.id {transactional_id}",
    }
    if code in missing:
        right = missing[Code(code)]
        raise RefusedError(f"the Kafka user lacks the right {right} ({describe(code)}); grant it with an ACL")

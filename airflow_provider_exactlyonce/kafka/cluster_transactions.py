"""All transactions of a cluster, of any producer: which are open, what they hold back, and how to end them.

Two kinds hold readers back. One that is *open* is known to its coordinator: it ends by a commit, by its time-out, or by
an abort here, which fences its producer so that it can't go on with the rest. One that *hangs* is open in a partition
and unknown to any coordinator (its marker was lost, or a late write came after it): nothing ends it but a marker
written by hand.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Final, TypeVar

import kafka.errors
from kafka.admin import AbortTransactionSpec, KafkaAdminClient

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.kafka.retry import TAKEN_OVER, until_definite
from airflow_provider_exactlyonce.kafka.stable_offsets import MissingPartitionError
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.kafka.wire import Code, Producer, UnansweredError, WireClient, describe

T = TypeVar("T")

#: The coordinator's names of states in which a transaction holds readers back.
OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
_PATIENCE_SECONDS: Final = 30.0
#: Kafka's own topic: a transactional id's coordinator is the leader of the partition that the id hashes to.
_COORDINATED: Final = "__transaction_state"


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """A transactional id as its coordinator knows it.

    :param started_milliseconds: when the transaction began, -1 when none is open
    """

    transactional_id: str
    state: str
    producer_id: int
    epoch: int
    coordinator: int
    timeout_milliseconds: int
    started_milliseconds: int
    partitions: tuple[TopicPartition, ...]

    @property
    def is_open(self) -> bool:
        """Whether it holds readers back."""
        return self.state in OPEN_STATES

    def age_seconds(self) -> float | None:
        """Return how long it is open, by this machine's clock."""
        return max(0.0, time.time() - self.started_milliseconds / 1000) if self.started_milliseconds >= 0 else None


@dataclass(frozen=True, kw_only=True)
class Hanging:
    """A transaction that is open in one partition and that no coordinator will end.

    :param first_offset: where it begins; readers of committed records see nothing from here on
    :param written_milliseconds: when its producer wrote last, by the records' own time
    """

    topic: str
    partition: int
    producer_id: int
    epoch: int
    coordinator_epoch: int
    first_offset: int
    written_milliseconds: int

    @property
    def topic_partition(self) -> TopicPartition:
        """Where it is open."""
        return self.topic, self.partition

    def silent_seconds(self) -> float:
        """Return for how long its producer has not written, by this machine's clock."""
        return max(0.0, time.time() - self.written_milliseconds / 1000)


@dataclass(frozen=True, kw_only=True)
class HeldPartition:
    """How far readers of committed records get in a partition."""

    topic: str
    partition: int
    last_stable_offset: int
    high_watermark: int

    @property
    def offsets(self) -> int:
        """How many offsets (records and markers) are held back."""
        return self.high_watermark - self.last_stable_offset


class Transactions:
    """Asks and ends a cluster's transactions.

    :param client: connection to the cluster; it is not closed here
    """

    def __init__(self, client: WireClient) -> None:
        self._client: Final = client
        self._admin: Final[KafkaAdminClient] = client.admin
        self._offsets: Final = client.offsets

    def open(self) -> list[Transaction]:
        """Return the open transactions, oldest first; those that the Kafka user may not describe are left out."""
        return sorted(self._open(state_filters=OPEN_STATES), key=attrgetter("started_milliseconds"))

    def describe(self, transactional_id: str) -> Transaction | None:
        """Return the coordinator's description of a transactional id, None when it does not know the id.

        :raises RefusedError: when the Kafka user may not ask
        """
        try:
            described = _asked(lambda: self._admin.describe_transactions([transactional_id]))[transactional_id]
        except kafka.errors.TransactionalIdNotFoundError:
            return None
        return Transaction(
            transactional_id=transactional_id,
            state=described.state.value,
            producer_id=described.producer_id,
            epoch=described.producer_epoch,
            coordinator=described.coordinator_id,
            timeout_milliseconds=described.transaction_timeout_ms,
            started_milliseconds=described.transaction_start_time_ms,
            partitions=tuple(
                sorted(
                    (topic_partition.topic, topic_partition.partition) for topic_partition in described.topic_partitions
                )
            ),
        )

    def held(self, partitions: Iterable[TopicPartition]) -> list[HeldPartition]:
        """Return how far readers get in these partitions; those that are gone or have no leader are left out."""
        wanted = sorted(set(partitions))
        try:
            return self._held(wanted)
        except MissingPartitionError:  # a coordinator names a transaction's partitions whatever becomes of them
            if len(wanted) == 1:
                return []
        return [held for topic_partition in wanted for held in self.held([topic_partition])]

    def _held(self, wanted: Sequence[TopicPartition]) -> list[HeldPartition]:
        stable = self._offsets.last_stable(wanted)
        return [
            HeldPartition(
                topic=topic_partition[0],
                partition=topic_partition[1],
                last_stable_offset=stable[topic_partition],
                high_watermark=end,
            )
            for topic_partition, end in self._offsets.ends(wanted).items()
        ]

    def open_in(self, partitions: Iterable[TopicPartition]) -> list[Hanging]:
        """Return the open transactions in these partitions, whether a coordinator knows of them or not.

        :raises RefusedError: when the Kafka user may not read a topic
        """
        wanted = [kafka.TopicPartition(*topic_partition) for topic_partition in sorted(partitions)]
        described = _asked(lambda: self._admin.describe_producers(wanted))
        return [
            Hanging(
                topic=topic_partition.topic,
                partition=topic_partition.partition,
                producer_id=producer.producer_id,
                epoch=producer.producer_epoch,
                coordinator_epoch=producer.coordinator_epoch,
                first_offset=producer.current_transaction_start_offset,
                written_milliseconds=producer.last_timestamp,
            )
            for topic_partition, state in described.items()
            for producer in state.active_producers
            if producer.current_transaction_start_offset >= 0
        ]

    def hanging(self, topics: Iterable[str] | None = None, *, silent_seconds: float) -> list[Hanging]:
        """Find transactions that are open in a partition and unknown to their coordinator.

        :param topics: where to look, None for all topics
        :param silent_seconds: only those whose producer has not written for so long
        :raises RefusedError: when the Kafka user may not read a topic; when one seems to hang, and the Kafka user may
            not describe all transactional ids, or the topic of their coordinators
        :raises ExactlyOnceError: when one seems to hang, and a coordinator that may know it is away or moves
        """
        names = sorted(_asked(self._admin.list_topics) if topics is None else topics)
        suspects = [
            suspect
            for suspect in self.open_in(self._offsets.partitions(names))
            if suspect.silent_seconds() >= silent_seconds
        ]
        if not suspects:
            return []
        unknown = self._unknown(suspects)
        if not unknown:
            return []
        self._check_no_id_is_hidden(unknown[0])
        coordinators = self._coordinators(unknown[0])
        unknown = self._unknown(unknown, broker_ids=sorted(set(coordinators.values())))
        if unknown and self._coordinators(unknown[0]) != coordinators:
            raise _not_known(unknown[0], f"partitions of {_COORDINATED} moved meanwhile; try again")
        return unknown

    def _unknown(self, suspects: Sequence[Hanging], **brokers: Any) -> list[Hanging]:
        """Return which are open and unknown to the coordinators that answer: one that is away is not missed."""
        producers = sorted({suspect.producer_id for suspect in suspects})
        known = {
            (transaction.producer_id, partition)
            for transaction in self._open(producer_id_filters=producers, **brokers)
            for partition in transaction.partitions
        }
        unknown = [suspect for suspect in suspects if (suspect.producer_id, suspect.topic_partition) not in known]
        # One that ended between the two questions was known to its coordinator after all.
        still_open = {
            (hanging.topic_partition, hanging.first_offset)
            for hanging in self.open_in({suspect.topic_partition for suspect in unknown})
        }
        return [suspect for suspect in unknown if (suspect.topic_partition, suspect.first_offset) in still_open]

    def _coordinators(self, suspect: Hanging) -> Mapping[int, int]:
        """Return the coordinator of each partition of Kafka's own topic: the partition's leader.

        :raises ExactlyOnceError: when a partition has no leader, so that its transactions are unknown
        """
        try:
            described = self._client.metadata(_COORDINATED)
        except UnansweredError as error:
            raise _not_known(suspect, f"{error}; try again") from error
        leaders = described.leaders if described is not None else {}
        leaderless = [f"{_COORDINATED}-{partition}" for partition, leader in sorted(leaders.items()) if leader < 0]
        if leaderless or not leaders:
            missing = f"without a leader: {', '.join(leaderless)}" if leaderless else f"no partitions of {_COORDINATED}"
            raise _not_known(suspect, f"{missing}; bring their brokers back, then try again")
        return leaders

    def _check_no_id_is_hidden(self, suspect: Hanging) -> None:
        """Check that we may describe every transaction: a coordinator's list leaves out the others."""
        try:
            self.describe(f"nobody-{uuid.uuid4()}")
        except RefusedError as error:
            raise RefusedError(
                "the Kafka user lacks the right DESCRIBE on all transactional ids, so it is not known whether the "
                f"transaction that is open in {suspect.topic}-{suspect.partition} from offset {suspect.first_offset} "
                "hangs or has a producer that lives; grant it with an ACL on transactional id *"
            ) from error

    def abort(self, transaction: Transaction) -> None:
        """Abort this transaction and fence its producer; returns once its markers are written.

        EndTxn is exact: it names producer id and epoch, so that it never ends the transaction of a producer that has
        taken over in the meantime. It leaves its own producer unfenced, which could go on and commit the rest; so
        InitProducerId follows, unless another producer has taken over, which has fenced it too. (InitProducerId alone
        would end any open transaction: the coordinator checks the epoch only when none is open.)

        :raises RefusedError: when the Kafka user may not, or its commit is decided
        :raises ExactlyOnceError: when there is no definite answer; may be repeated
        """
        name = transaction.transactional_id
        producer = Producer(id=transaction.producer_id, epoch=transaction.epoch)
        code = self._definite(name, lambda: self._client.end_transaction(name, producer, commit=False))
        if code in TAKEN_OVER:
            return
        if code == Code.INVALID_TXN_STATE:
            raise RefusedError(f"{name} can't be aborted: its end is decided already, look at it again")
        if code != Code.NONE:
            raise ExactlyOnceError(f"the abort of {name} was answered with {describe(code)}")
        current = self.describe(name)
        if current is None or (current.producer_id, current.epoch) != (producer.id, producer.epoch):
            return
        milliseconds = transaction.timeout_milliseconds
        code = self._definite(name, lambda: self._client.init_producer_id(name, producer, milliseconds)[0])
        if code != Code.NONE and code not in TAKEN_OVER:
            raise ExactlyOnceError(f"{name} is aborted, and its producer is not fenced: {describe(code)}")

    def _definite(self, name: str, request: Callable[[], int]) -> int:
        try:
            code = until_definite(request, timeout_seconds=_PATIENCE_SECONDS)
        except UnansweredError as error:
            raise ExactlyOnceError(f"the abort of {name}: {error}; look at it and try again") from error
        if code == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            raise RefusedError(f"the Kafka user lacks the right WRITE on transactional id {name}; grant it with an ACL")
        return code

    def abort_hanging(self, hanging: Hanging) -> None:
        """Write the missing abort marker.

        :raises RefusedError: when the Kafka user may not
        """
        spec = AbortTransactionSpec(
            topic_partition=kafka.TopicPartition(*hanging.topic_partition),
            producer_id=hanging.producer_id,
            producer_epoch=hanging.epoch,
            coordinator_epoch=max(0, hanging.coordinator_epoch),
        )
        _asked(lambda: self._admin.abort_transaction(spec))

    def _open(self, **filters: Any) -> list[Transaction]:
        listed = _asked(lambda: self._admin.list_transactions(**filters))
        described = [self.describe(listing.transactional_id) for listings in listed.values() for listing in listings]
        return [transaction for transaction in described if transaction is not None and transaction.is_open]


def _not_known(suspect: Hanging, reason: str) -> ExactlyOnceError:
    return ExactlyOnceError(
        f"it is not known now whether the transaction that is open in {suspect.topic}-{suspect.partition} from offset "
        f"{suspect.first_offset} hangs or waits for its coordinator: {reason}"
    )


def _asked(call: Callable[[], T]) -> T:
    try:
        return call()
    except kafka.errors.TransactionalIdNotFoundError:
        raise
    except kafka.errors.AuthorizationError as error:
        raise RefusedError(
            f"the Kafka user lacks a right for this: {type(error).__name__}: {error} "
            "(`exactlyonce help security` lists all)"
        ) from error
    except kafka.errors.KafkaError as error:
        raise ExactlyOnceError(f"Kafka did not answer: {type(error).__name__}: {error}") from error

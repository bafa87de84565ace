"""A transaction is said to hang only when every coordinator was asked; the cluster is a small model of one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import (
    PartitionProducerState,
    ProducerState,
    TransactionDescription,
    TransactionListing,
    TransactionState,
)
from kafka.errors import TransactionalIdNotFoundError

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.cluster_transactions import Transactions
from airflow_provider_exactlyonce.kafka.wire import TopicMetadata, UnansweredError

PLACE = TopicPartition("shop.totals", 3)
PRODUCER = ProducerState(
    producer_id=7,
    producer_epoch=0,
    last_sequence=0,
    last_timestamp=0,
    coordinator_epoch=0,
    current_transaction_start_offset=1200,
)


class Cluster:
    """A transaction is open in one partition; its id, if there is one, is of partition 1 of the coordinators' topic.

    :param leaders: of the partitions of that topic, -1 for none; there is no such topic without any
    :param is_known: whether the transaction has an id
    """

    def __init__(self, *leaders: int, is_known: bool = True) -> None:
        self.leaders, self.is_known = list(leaders), is_known
        self.admin = self.offsets = self
        self.between: Callable[[], None] = lambda: None  # two brokers' answers

    def move(self, broker: int) -> None:
        self.leaders[1] = broker

    def partitions(self, topics: Iterable[str]) -> list[tuple[str, int]]:
        return [(topic, 3) for topic in topics]

    def describe_producers(self, places: Iterable[TopicPartition]) -> dict[TopicPartition, PartitionProducerState]:
        return {place: PartitionProducerState([PRODUCER]) for place in places}

    def list_transactions(
        self, broker_ids: Collection[int] | None = None, **_: Any
    ) -> dict[int, list[TransactionListing]]:
        listing = TransactionListing("its-id", PRODUCER.producer_id, TransactionState.PREPARE_COMMIT)
        listed = {}
        for broker in sorted(set(self.leaders) - {-1} if broker_ids is None else broker_ids):
            listed[broker] = [listing] if self.is_known and self.leaders[1:2] == [broker] else []
            self.between()
        return listed

    def describe_transactions(self, names: Iterable[str]) -> dict[str, TransactionDescription]:
        (name,) = names
        if name != "its-id":
            raise TransactionalIdNotFoundError
        state, producer = TransactionState.PREPARE_COMMIT, PRODUCER
        return {name: TransactionDescription(2, state, producer.producer_id, producer.producer_epoch, 1, 0, {PLACE})}

    def metadata(self, topic: str) -> TopicMetadata | None:
        assert topic == "__transaction_state"
        return TopicMetadata(topic_id="", leaders=dict(enumerate(self.leaders))) if self.leaders else None


def hanging(cluster: Any) -> list[int]:
    return [found.first_offset for found in Transactions(cluster).hanging([PLACE.topic], silent_seconds=0)]


def test_a_transaction_hangs_when_no_coordinator_of_all_knows_it() -> None:
    assert hanging(Cluster(1, 2, 1, is_known=False)) == [1200]
    assert hanging(Cluster(1, 2, 1)) == []


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(
    ("leaders", "reason"),
    [
        ((1, -1, 1, -1), "without a leader: __transaction_state-1, __transaction_state-3; bring their brokers back"),
        ((), "no partitions of __transaction_state; bring"),
    ],
)
def test_it_is_not_known_to_hang_while_a_coordinator_is_away(
    leaders: tuple[int, ...], reason: str, is_known: bool
) -> None:
    with pytest.raises(ExactlyOnceError) as caught:
        hanging(Cluster(*leaders, is_known=is_known))
    assert "it is not known now whether the transaction that is open in shop.totals-3 from offset 1200" in str(
        caught.value
    )
    assert reason in str(caught.value)


def test_it_is_not_known_to_hang_while_nobody_says_who_the_coordinators_are() -> None:
    cluster = Cluster(1, -1)

    def silent(topic: str) -> None:
        raise UnansweredError(f"metadata of {topic}")

    cluster.metadata = silent  # type: ignore[method-assign]
    with pytest.raises(ExactlyOnceError, match=r"it is not known now .* metadata of __transaction_state; try again"):
        hanging(cluster)


def test_a_coordinator_that_moves_to_a_broker_that_was_asked_before_is_asked_there() -> None:
    cluster = Cluster(1, 3, 2)
    cluster.between = lambda: cluster.move(1)
    assert hanging(cluster) == []


def test_it_is_not_known_to_hang_while_coordinators_move() -> None:
    cluster, back = Cluster(1, 3, 2), iter([3])
    cluster.between = lambda: cluster.move(1)
    said = cluster.metadata

    def moved_back(topic: str) -> TopicMetadata | None:
        cluster.move(next(back, 1))
        return said(topic)

    cluster.metadata = moved_back  # type: ignore[method-assign]
    with pytest.raises(ExactlyOnceError, match=r"it is not known now .* moved meanwhile; try again"):
        hanging(cluster)

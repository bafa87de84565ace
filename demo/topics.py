"""Kafka as an independent application sees it: plain confluent-kafka, nothing of the package under demonstration."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

if TYPE_CHECKING:
    from demo.purchases import Purchase

_TIMEOUT_SECONDS: Final = 30.0
_POLL_EVERY: Final = 1_000
#: Errors come as exceptions; librdkafka's own lines on standard error would break the demo's.
QUIET: Final = {"log_level": 2}
_READ_AT_ONCE: Final = 1_000
_WAIT_SECONDS: Final = 0.05


def create(config: Mapping[str, Any], names: Iterable[str], partitions: int) -> None:
    """Create topics, replicated as often as the brokers' own setting says."""
    new = [NewTopic(name, num_partitions=partitions) for name in names]
    admin = AdminClient({**config, **QUIET})  # a client that nobody holds any more drops what it was asked
    for future in admin.create_topics(new, operation_timeout=_TIMEOUT_SECONDS).values():
        future.result()


def feed(config: Mapping[str, Any], topic: str, purchases: Iterable[Purchase]) -> None:
    """Write one event a purchase, keyed by customer, each exactly once and a customer's in the order of the file.

    :raises KafkaException: when an event is not acknowledged
    """
    failed: list[KafkaError] = []

    def acknowledged(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failed.append(error)

    settings = {**config, **QUIET, "enable.idempotence": True, "partitioner": "murmur2_random", "linger.ms": 20}
    producer = Producer({**settings, "queue.buffering.max.messages": 1_000_000})
    for number, purchase in enumerate(purchases):
        producer.produce(topic, key=purchase.key, value=purchase.value, on_delivery=acknowledged)
        if number % _POLL_EVERY == 0:
            producer.poll(0)
    waiting = producer.flush(_TIMEOUT_SECONDS)
    if failed:
        raise KafkaException(failed[0])
    if waiting:
        raise TimeoutError(f"{topic}: {waiting} events are not acknowledged after {_TIMEOUT_SECONDS:.0f} s")


def partitions_of(config: Mapping[str, Any], topic: str) -> list[int]:
    """Return the topic's partitions."""
    metadata = AdminClient({**config, **QUIET}).list_topics(topic, timeout=_TIMEOUT_SECONDS).topics[topic]
    if metadata.error is not None:
        raise KafkaException(metadata.error)
    return sorted(metadata.partitions)


class Ends:
    """The end of a topic's partitions, asked over one connection."""

    def __init__(self, config: Mapping[str, Any], topic: str) -> None:
        self._admin = AdminClient({**config, **QUIET})
        self._partitions = [TopicPartition(topic, partition) for partition in partitions_of(config, topic)]

    def stable_and_high(self) -> dict[int, tuple[int, int]]:
        """Return {partition: (last stable offset, high watermark)}."""
        # The stable end first: a transaction that opens in between then shows as open, never the other way round.
        stable = self._ask(IsolationLevel.READ_COMMITTED)
        high = self._ask(IsolationLevel.READ_UNCOMMITTED)
        return {partition: (stable[partition], high[partition]) for partition in stable}

    def high(self) -> int:
        """Return the sum of the high watermarks: without transactions, the number of records."""
        return sum(self._ask(IsolationLevel.READ_UNCOMMITTED).values())

    def _ask(self, isolation: IsolationLevel) -> dict[int, int]:
        offset_specs = dict.fromkeys(self._partitions, OffsetSpec.latest())
        futures = self._admin.list_offsets(offset_specs, isolation_level=isolation, request_timeout=_TIMEOUT_SECONDS)
        return {partition.partition: future.result().offset for partition, future in futures.items()}


def read(config: Mapping[str, Any], topic: str, *, committed: bool = True) -> Iterator[Message]:
    """Yield the records that a topic holds now, each partition's in order.

    :param committed: read at read_committed; False reads what every producer wrote, aborted transactions too
    """
    consumer = Consumer(
        {
            **config,
            **QUIET,
            "group.id": "demo-reader",  # neither joined nor committed to
            "isolation.level": "read_committed" if committed else "read_uncommitted",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,  # the end is told after an empty fetch
        }
    )
    try:
        reading = set(partitions_of(config, topic))
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in sorted(reading)])
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while reading:
            messages = consumer.consume(_READ_AT_ONCE, _WAIT_SECONDS)
            if messages:
                deadline = time.monotonic() + _TIMEOUT_SECONDS
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{topic}: no answer for {_TIMEOUT_SECONDS:.0f} s from partitions {sorted(reading)}")
            for message in messages:
                error = message.error()
                if error is None:
                    yield message
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()

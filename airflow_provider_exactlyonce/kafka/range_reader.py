"""Reads ranges of partitions at read_committed, by offsets; joins no group and commits nothing.

confluent_kafka is imported when a reader is made, not when this module is.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition

if TYPE_CHECKING:
    from confluent_kafka import Message

_TIMEOUT_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.1
_AT_ONCE: Final = 1_000
_NAMED: Final = 5


class ReadTimedOutError(ExactlyOnceError):
    """Records that are committed did not come in time."""


class RangeReader:
    """An ordinary read_committed consumer, which shares nothing with the sink.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param name: the reader's name in the brokers' logs
    :param timeout_seconds: how long a record may be waited for
    :param settings: of the consumer, in librdkafka's names
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        name: str,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        from confluent_kafka import Consumer

        self._timeout_seconds: Final = timeout_seconds
        self._consumer: Final = Consumer(
            {
                **for_confluent(config),
                "group.id": f"exactlyonce-{name}-{uuid.uuid4()}",  # never joined and never committed to
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # retention may remove the start while it is read
                "check.crcs": True,
                "fetch.wait.max.ms": 20,  # the end of a log is reported only after an empty fetch
                **(settings or {}),
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()

    def find_leaders(self, topic: str) -> None:
        """Look up the leaders of a topic's partitions; else its first read may wait a second for the next refresh."""
        self._consumer.list_topics(topic, timeout=self._timeout_seconds)

    def read(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[Message]:
        """Yield the committed records of ranges, in order per partition.

        It ends by position: aborted, compacted or deleted records are skipped, and a transaction that is still open is
        waited for. One read at a time.

        :param ranges: {(topic, partition): (start, end)}; end is exclusive
        :raises ReadTimedOutError: when no record came for ``timeout_seconds``
        """
        import confluent_kafka

        ends = {partition: end for partition, (start, end) in ranges.items() if start < end}
        if not ends:
            return
        self._consumer.assign([confluent_kafka.TopicPartition(*partition, ranges[partition][0]) for partition in ends])
        deadline = time.monotonic() + self._timeout_seconds
        try:
            while ends:
                for message in self._arrived():
                    partition, offset = position_of(message)
                    is_record = _is_record(message)
                    if is_record and offset < ends.get(partition, -1):
                        yield message
                        deadline = time.monotonic() + self._timeout_seconds  # what its reader took does not count
                    if partition in ends and offset + is_record >= ends[partition]:
                        del ends[partition]
                        self._consumer.incremental_unassign([confluent_kafka.TopicPartition(*partition)])
                if ends and time.monotonic() > deadline:
                    unread = [
                        f"{topic}-{number} up to offset {end - 1}" for (topic, number), end in sorted(ends.items())
                    ]
                    raise ReadTimedOutError(
                        f"nothing more can be read for {self._timeout_seconds:g} s of {', '.join(unread[:_NAMED])}"
                    )
        finally:
            self._consumer.unassign()

    def _arrived(self) -> list[Message]:
        # consume() waits for as many as it is asked for, or for all of its time; the first one alone is waited for.
        first = self._consumer.poll(_POLL_SECONDS)
        return [] if first is None else [first, *self._consumer.consume(_AT_ONCE, timeout=0)]


def read_range(config: Mapping[str, Any], spans: Mapping[str, Mapping[int, tuple[int, int]]]) -> Iterator[Message]:
    """Yield the committed records within offsets, as :meth:`RangeReader.read` does.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param spans: ``{topic: {partition: (first, last)}}``, last inclusive, as a committed range's ``sink``
    :raises ReadTimedOutError: when nothing more can be read for 30 s
    """
    ranges = {partition: (first, last + 1) for partition, (first, last) in by_partition(spans).items()}
    with RangeReader(config, "range") as reader:
        yield from reader.read(ranges)


def position_of(message: Message) -> tuple[TopicPartition, int]:
    """Return the partition and the offset of a message."""
    return (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)


def _is_record(message: Message) -> bool:
    """Whether it is a record; else the end of a partition's log.

    :raises KafkaException: when it is an error
    """
    from confluent_kafka import KafkaError, KafkaException

    error = message.error()
    if error is None:
        return True
    if error.code() in (KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return False  # the latter is of no partition; librdkafka looks for the coordinator of a group never used
    raise KafkaException(error)

"""Reads stretches of topics at read_committed, by offsets; joins no group and commits nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.config import for_confluent

if TYPE_CHECKING:
    from confluent_kafka import Message

_TIMEOUT_SECONDS: Final = 30.0
_AT_ONCE: Final = 1_000


def read_range(config: Mapping[str, Any], spans: Mapping[str, Mapping[int, tuple[int, int]]]) -> Iterator[Message]:
    """Yield the committed records within offsets, in order per partition.

    It ends by position: what was aborted, compacted or deleted is passed over, and a transaction that is still open
    is waited for.

    :param config: client configuration in librdkafka's names; ``bootstrap.servers`` is required
    :param spans: ``{topic: {partition: (first, last)}}``, last inclusive, as a committed range's ``sink``
    :raises ExactlyOnceError: when nothing more can be read for 30 s
    """
    from confluent_kafka import Consumer, TopicPartition

    last = {(topic, partition): span[1] for topic, of in spans.items() for partition, span in of.items()}
    consumer = Consumer(
        {
            **for_confluent(config),
            "group.id": f"exactlyonce-range-{uuid.uuid4()}",  # never joined and never committed to
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",  # below it is deleted
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, spans[topic][number][0]) for topic, number in last])
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while last:
            for message in consumer.consume(_AT_ONCE, timeout=0.1):
                place, offset = (str(message.topic()), int(message.partition() or 0)), int(message.offset() or 0)
                is_record = _is_record(message)
                if is_record and offset <= last.get(place, -1):
                    deadline = time.monotonic() + _TIMEOUT_SECONDS
                    yield message
                if place in last and (offset > last[place] or (is_record and offset == last[place])):
                    del last[place]
            if time.monotonic() > deadline:
                rest = ", ".join(
                    f"{topic}-{number} up to offset {end}" for (topic, number), end in sorted(last.items())
                )
                raise ExactlyOnceError(f"nothing more can be read for {_TIMEOUT_SECONDS:.0f} s of {rest}")
    finally:
        consumer.close()


def _is_record(message: Message) -> bool:
    from confluent_kafka import KafkaError, KafkaException

    error = message.error()
    if error is None:
        return True
    if error.code() in (KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED):
        return False  # the latter is of no partition; librdkafka looks for the coordinator of a group never used
    raise KafkaException(error)

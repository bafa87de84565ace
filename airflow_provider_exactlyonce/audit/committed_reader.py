"""The readable records of topics: an ordinary read_committed consumer, which shares nothing with the sink."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_exactlyonce.audit.ledger_check import Place
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.config import for_confluent

if TYPE_CHECKING:
    from confluent_kafka import Message

_TIMEOUT_SECONDS: Final = 60.0
_MESSAGES: Final = 1000


class ReadableRecords:
    """Reads parts of partitions; joins no group and commits nothing.

    :param config: client configuration in librdkafka's names
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        from confluent_kafka import Consumer

        self._consumer: Final = Consumer(
            {
                **for_confluent(config),
                "group.id": f"exactlyonce-audit-{uuid.uuid4()}",  # never joined and never committed to
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",  # retention may remove the start while it is read
                "check.crcs": True,
                "fetch.wait.max.ms": 20,
                "queued.max.messages.kbytes": 65_536,
            }
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()

    def read(self, spans: Mapping[Place, tuple[int, int]]) -> Iterator[Message]:
        """Yield the records of some partitions, each partition's in their order.

        :param spans: {(topic, partition): (start, end)}; end is exclusive, and not above the last stable offset
        :raises ExactlyOnceError: when the cluster does not answer for a minute
        """
        from confluent_kafka import KafkaError, KafkaException, TopicPartition

        left = {place: end for place, (start, end) in spans.items() if start < end}
        self._consumer.assign([TopicPartition(*place, spans[place][0]) for place in left])
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        try:
            while left:
                for message in self._consumer.consume(_MESSAGES, timeout=0.1):
                    deadline = time.monotonic() + _TIMEOUT_SECONDS
                    error = message.error()
                    # The second is of no partition: librdkafka looks for a coordinator of the group that isn't used.
                    expected = (KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED)
                    if error is not None and error.code() not in expected:
                        raise KafkaException(error)
                    place = str(message.topic()), int(message.partition() or 0)
                    offset, end = int(message.offset() or 0), left.get(place, -1)
                    if error is None and offset < end:
                        yield message
                    if place in left and offset + (error is None) >= end:
                        del left[place]
                        self._consumer.incremental_unassign([TopicPartition(*place)])
                if time.monotonic() > deadline:
                    raise ExactlyOnceError(
                        f"no record of {', '.join(f'{topic}-{partition}' for topic, partition in list(left)[:5])} came "
                        f"for {_TIMEOUT_SECONDS:.0f} s"
                    )
        finally:
            self._consumer.unassign()

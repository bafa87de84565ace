"""An independent reader of a pipeline's topics: confluent-kafka at read_committed, and nothing of the writer's code."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import confluent_kafka
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, OffsetSpec

from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.records import CommitRecord, Record, decode
from tests.waiting import HANG_SECONDS

#: The broker is killed here; every client would say so at length.
QUIET = {"log_level": 0}
STABLE, HIGH = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


@dataclass
class Observer:
    """Reads on from where it was; survives the broker's death.

    :param sink: the sink's topic
    :param ledger: the ledger's topic, None for a pipeline that has none
    """

    config: Mapping[str, Any]
    sink: str
    ledger: str | None
    commits: list[CommitRecord] = field(default_factory=list)
    runs: list[Record] = field(default_factory=list)
    #: {(partition, offset): value}; taken out when they are judged
    rows: dict[tuple[int, int], bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._connect()
        topics = self._admin.list_topics(timeout=30).topics
        self._places = [(self.sink, partition) for partition in topics[self.sink].partitions]
        if self.ledger is not None:
            self._places.append((self.ledger, 0))
        self._positions = dict.fromkeys(self._places, 0)
        self._assign()

    def _connect(self) -> None:
        self._admin = AdminClient({**self.config, **QUIET})
        self._consumer = Consumer(
            {
                **self.config,
                **QUIET,
                "group.id": "independent-reader",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 20,
            }
        )

    def _assign(self) -> None:
        self._consumer.assign(
            [confluent_kafka.TopicPartition(*place, offset) for place, offset in self._positions.items()]
        )

    def reconnect(self) -> None:
        """Go on with new connections, after the broker was restarted: what old ones do then is not what is tested."""
        self.positions()
        self._consumer.close()
        self._connect()
        self._assign()

    def close(self) -> None:
        self._consumer.close()

    def poll(self, timeout_seconds: float = 0.05) -> None:
        """Take in what has come."""
        for message in self._consumer.consume(1000, timeout=timeout_seconds):
            topic, partition, offset, error = message.topic(), message.partition(), message.offset(), message.error()
            if error:  # else the broker is away; what is missing at the end is found by the offsets
                if error.code() == KafkaError._PARTITION_EOF:
                    assert topic is not None and partition is not None and offset is not None
                    self._advance(topic, partition, offset)
                continue
            assert partition is not None and offset is not None
            if topic == self.sink:
                self.rows[partition, offset] = message.value() or b""
                continue
            record = decode(message.value() or b"")
            if isinstance(record, CommitRecord):
                self.commits.append(record)
            else:
                self.runs.append(record)

    def ends(self, isolation: IsolationLevel) -> dict[TopicPartition, int]:
        """Return last stable offsets or high watermarks.

        :raises KafkaException: when the broker does not answer
        """
        asked = {confluent_kafka.TopicPartition(*place): OffsetSpec.latest() for place in self._places}
        futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=30)
        return {(place.topic, place.partition): future.result().offset for place, future in futures.items()}

    def held_back(self) -> dict[TopicPartition, int]:
        """Return the partitions in which an open transaction hides records, and how many offsets it hides."""
        stable, high = self.ends(STABLE), self.ends(HIGH)
        return {place: high[place] - stable[place] for place in high if high[place] > stable[place]}

    def is_held_back(self) -> bool | None:
        """Tell whether records are hidden, None when the broker does not answer."""
        try:
            return bool(self.held_back())
        except KafkaException:
            return None

    def decided_ends(self) -> dict[TopicPartition, int] | None:
        """Return the ends of the partitions, None when anything is undecided or the broker does not answer."""
        try:
            stable, high = self.ends(STABLE), self.ends(HIGH)
        except KafkaException:
            return None
        return high if stable == high else None

    def catch_up(self, ends: Mapping[TopicPartition, int], timeout_seconds: float = HANG_SECONDS) -> None:
        """Read up to these ends.

        :raises AssertionError: when it doesn't come
        """
        deadline = time.monotonic() + timeout_seconds
        while not all(self.positions()[place] >= end for place, end in ends.items()):
            assert time.monotonic() < deadline, f"read up to {self.positions()} of {dict(ends)}"
            self.poll()

    def positions(self) -> dict[TopicPartition, int]:
        """Return up to where was read: the markers at the end count only once the end was reached."""
        for place in self._consumer.position([confluent_kafka.TopicPartition(*place) for place in self._places]):
            self._advance(place.topic, place.partition, place.offset)
        return dict(self._positions)

    def _advance(self, topic: str, partition: int, offset: int) -> None:
        self._positions[topic, partition] = max(self._positions[topic, partition], offset)

"""When a topic's retention may remove records that have to be read again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.doctor.facts import Facts, TopicsFacts
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition

_DAY_MILLISECONDS: Final = 24 * 60 * 60 * 1000
#: It is told a day before, or after three quarters of the time where retention is shorter than four days; and when
#: three quarters of the bytes that a partition may have were written since.
_SHARE: Final = 4


@dataclass(frozen=True, order=True)
class Expiry:
    """A record that may be removed soon.

    :param at: when at the earliest, milliseconds since the epoch; of one that goes by size: now
    :param when: the same as a clause: ``retention.ms of t may remove it from … on``
    """

    at: float
    topic: str
    partition: int
    offset: int
    when: str


def first(facts: Facts, starts: Mapping[TopicPartition, int]) -> Expiry | None:
    """Return the first of the needed records that retention may remove, None when it removes none soon.

    :param starts: the offsets from where on
    """
    topics = facts.topics
    return min((*_by_age(topics, starts), *_by_size(topics, starts)), default=None) if topics else None


def _by_age(topics: TopicsFacts, starts: Mapping[TopicPartition, int]) -> Iterator[Expiry]:
    now = time.time() * 1000
    for partition, offset in starts.items():
        topic, written = partition[0], topics.written.get((partition, offset))
        keeps = topics.settings[topic].retention_milliseconds if topic in topics.settings else -1
        if keeps >= 0 and written is not None and written + keeps < now + min(_DAY_MILLISECONDS, keeps / _SHARE):
            when = moments.text(written + keeps, "seconds")
            yield Expiry(written + keeps, *partition, offset, f"retention.ms of {topic} may remove it from {when} on")


def _by_size(topics: TopicsFacts, starts: Mapping[TopicPartition, int]) -> Iterator[Expiry]:
    for partition, offset in starts.items():
        topic, size, end = partition[0], topics.sizes.get(partition, 0), topics.ends.get(partition, offset)
        records = end - topics.earliest.get(partition, end)
        if not size or end <= offset or not records:
            continue
        limit = topics.settings[topic].retention_bytes
        remaining_bytes = limit - size * (end - offset) // records
        if remaining_bytes < limit / _SHARE:
            when = f"as soon as {max(0, remaining_bytes):,} more bytes are written"
            yield Expiry(time.time() * 1000, *partition, offset, f"retention.bytes of {topic} may remove it {when}")

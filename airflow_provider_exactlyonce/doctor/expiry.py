"""When a topic's retention may remove what somebody has to read again."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from airflow_provider_exactlyonce.doctor.facts import Facts, TopicsFacts

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


def first(facts: Facts, starts: Mapping[str, Mapping[int, int]]) -> Expiry | None:
    """Return what may be removed first of all that has to be read, None when nothing may be soon.

    :param starts: {topic: {partition: offset}} from where on
    """
    topics = facts.topics
    if topics is None:
        return None
    places = [
        (topic, partition, offset) for topic, partitions in starts.items() for partition, offset in partitions.items()
    ]
    return min((*_by_age(topics, places), *_by_size(topics, places)), default=None)


def _by_age(topics: TopicsFacts, places: list[tuple[str, int, int]]) -> Iterator[Expiry]:
    now = time.time() * 1000
    for topic, partition, offset in places:
        keeps = topics.settings[topic].retention_milliseconds if topic in topics.settings else -1
        written = topics.written.get((topic, partition, offset))
        if keeps >= 0 and written is not None and written + keeps < now + min(_DAY_MILLISECONDS, keeps / _SHARE):
            when = datetime.fromtimestamp((written + keeps) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            yield Expiry(
                written + keeps, topic, partition, offset, f"retention.ms of {topic} may remove it from {when} on"
            )


def _by_size(topics: TopicsFacts, places: list[tuple[str, int, int]]) -> Iterator[Expiry]:
    for topic, partition, offset in places:
        size, end = topics.sizes.get((topic, partition), 0), topics.ends.get((topic, partition), offset)
        records = end - topics.earliest.get(topic, {}).get(partition, end)
        if not size or end <= offset or not records:
            continue
        limit = topics.settings[topic].retention_bytes
        left = limit - size * (end - offset) // records
        if left < limit / _SHARE:
            yield Expiry(
                time.time() * 1000,
                topic,
                partition,
                offset,
                f"retention.bytes of {topic} may remove it as soon as {max(0, left):,} more bytes are written",
            )

"""When a topic's retention may remove what somebody has to read again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from airflow_provider_exactlyonce.doctor.facts import Facts

_DAY_MILLISECONDS: Final = 24 * 60 * 60 * 1000
#: It is told a day before, or after three quarters of the time where retention is shorter than four days.
_SHARE: Final = 4


@dataclass(frozen=True, kw_only=True)
class Expiry:
    """A record that may be removed soon.

    :param at: when at the earliest, milliseconds since the epoch
    """

    topic: str
    partition: int
    offset: int
    at: int


def first(facts: Facts, starts: Mapping[str, Mapping[int, int]]) -> Expiry | None:
    """Return what may be removed first of all that has to be read, None when nothing may be soon.

    :param starts: {topic: {partition: offset}} from where on
    """
    topics = facts.topics
    if topics is None:
        return None
    now = time.time() * 1000
    found = []
    for topic, offsets in starts.items():
        keeps = topics.settings[topic].retention_milliseconds if topic in topics.settings else -1
        for partition, offset in offsets.items():
            written = topics.written.get((topic, partition, offset))
            if keeps >= 0 and written is not None and written + keeps < now + min(_DAY_MILLISECONDS, keeps / _SHARE):
                found.append(Expiry(topic=topic, partition=partition, offset=offset, at=written + keeps))
    return min(found, key=lambda one: (one.at, one.topic, one.partition), default=None)


def told(milliseconds: int) -> str:
    """Return a point of time for people."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")

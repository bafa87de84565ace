"""The partition of a topic as a key, and the way between keys and ``{topic: {partition: value}}``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")

#: (topic, partition)
TopicPartition = tuple[str, int]


def by_partition(by_topic: Mapping[str, Mapping[int, T]]) -> dict[TopicPartition, T]:
    """Return the values of ``{topic: {partition: value}}`` by their topic-partitions."""
    return {(topic, number): value for topic, values in by_topic.items() for number, value in values.items()}


def by_topic(by_partition: Mapping[TopicPartition, T]) -> dict[str, dict[int, T]]:
    """Return the values of topic-partitions as ``{topic: {partition: value}}``."""
    values: dict[str, dict[int, T]] = {}
    for (topic, number), value in by_partition.items():
        values.setdefault(topic, {})[number] = value
    return values

"""Which topic and partition each row goes to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.kafka.columns import flat_numbers
from airflow_provider_exactlyonce.kafka.murmur2 import partitions_for_keys
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark


class Router:
    """Routes one task's rows: by their ``partition``, else by the Java client's murmur2 of the key.

    Rows without both get the number after the last partition: they go to whichever is free when they are sent.

    :param topic: where rows without a topic of their own go, None when each has one
    :param targets: known topics
    :param describe: looks up another topic
    """

    def __init__(
        self,
        topic: str | None,
        targets: Mapping[str, TopicFacts],
        describe: Callable[[str], TopicFacts],
    ) -> None:
        self.targets: Final = dict(targets)
        self._topic = topic
        self._describe = describe

    def route(self, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch, NDArray[np.int32]]]:
        """Yield (topic, its rows, their partitions).

        :raises RecordRefusedError: when a row's topic or partition does not exist; the text is marked
        """
        for topic, selected in by_topic(rows, self._topic):
            if topic not in self.targets:
                self.targets[topic] = self._describe(topic)
            yield topic, selected, self._partitions(topic, selected)

    def _partitions(self, topic: str, rows: pa.RecordBatch) -> NDArray[np.int32]:
        count = self.targets[topic].partitions
        partitions = partitions_for_keys(rows["key"], count)
        if "partition" in rows.schema.names:
            numbers, valid = flat_numbers(rows["partition"], np.int64)
            wrong = (
                (numbers < 0) | (numbers >= count) if valid is None else valid & ((numbers < 0) | (numbers >= count))
            )
            if wrong.any():
                number = int(numbers[wrong][0])
                raise _refused(f"a record's partition is {number}; topic {topic} has {count}, 0 to {count - 1}")
            known = numbers.astype(np.int32)
            partitions = known if valid is None else np.where(valid, known, partitions)
        keyless = partitions < 0
        return np.where(keyless, np.int32(count), partitions) if keyless.any() else partitions


def by_topic(rows: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield (topic, its rows).

    :param default: the topic of all rows when they have no column with it
    :raises RecordRefusedError: when a row's topic is null; the text is marked
    """
    if "topic" not in rows.schema.names:
        yield str(default), rows
        return
    import pyarrow.compute as pc  # only jobs that name topics by row pay for its import

    topics = rows["topic"]
    for topic in pc.unique(topics).to_pylist():
        if topic is None:
            raise _refused("a record has no topic: its topic column is null, and KafkaSink declares no topic")
        yield topic, rows.filter(pc.equal(topics, topic))


def _refused(message: str) -> RecordRefusedError:
    return RecordRefusedError(mark(RecordRefusedError, message))

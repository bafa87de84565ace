"""What an engine has written, read by a consumer that knows nothing of it, and compared with what has to be there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from benchmarks.engines.watch import Sample
from benchmarks.engines.workloads import PARTITIONS, Matrix, Workload


@dataclass(frozen=True, kw_only=True)
class Difference:
    """In records.

    :param lost: that have to be there and are not
    :param doubled: that are there more than once, each further one
    :param wrong: that don't have to be there
    """

    lost: int
    doubled: int
    wrong: int


class Outputs:
    """All records of a topic that a ``read_committed`` reader gets."""

    def __init__(self, servers: str, topic: str, workload: Workload) -> None:
        self._workload = workload
        parts: list[Matrix] = []
        offsets: list[list[int]] = [[] for _ in range(PARTITIONS)]
        consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "outputs",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(PARTITIONS)])
        open_partitions = PARTITIONS
        while open_partitions:
            keys, values = [], []
            for message in consumer.consume(20_000, 1):
                if error := message.error():
                    if error.code() != KafkaError._PARTITION_EOF:
                        raise KafkaException(error)
                    open_partitions -= 1
                    continue
                offsets[message.partition() or 0].append(message.offset() or 0)
                keys.append(message.key())
                values.append(message.value())
            if keys:
                parts.append(workload.parsed(keys, values))  # type: ignore[arg-type]
        consumer.close()
        self._records = np.concatenate(parts)
        self._offsets = [np.array(partition_offsets, dtype=np.int64) for partition_offsets in offsets]

    def __len__(self) -> int:
        return sum(map(len, self._offsets))

    def difference(self) -> Difference:
        """Compare each record, its key and its content, with what has to be there."""
        expected = self._workload.expected()
        indexes = np.minimum(np.searchsorted(expected[:, 0], self._records[:, 0]), len(expected) - 1)
        right = (expected[indexes] == self._records).all(axis=1)
        counts = np.bincount(indexes[right], minlength=len(expected))
        return Difference(
            lost=int((counts == 0).sum()), doubled=int((counts[counts > 1] - 1).sum()), wrong=int((~right).sum())
        )

    def visible(self, samples: Sequence[Sample]) -> list[int]:
        """Return how many records could be read at each sample."""
        ends = np.array([sample.stable for sample in samples])
        counts = [np.searchsorted(self._offsets[partition], ends[:, partition]) for partition in range(PARTITIONS)]
        return [int(count) for count in np.sum(counts, axis=0)]

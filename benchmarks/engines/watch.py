"""Look at a topic and at the processors ten times a second while an engine works."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from benchmarks.engines.process_tree import cpu_seconds, machine_cpu_seconds, own_cpu_seconds
from benchmarks.engines.workloads import PARTITIONS

INTERVAL_SECONDS: Final = 0.1
SETTLED_LOOKS: Final = 100


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One look.

    :param at: seconds of the monotonic clock
    :param stable: of each partition, the offset up to which ``read_committed`` readers read
    :param high: of each partition, the offset up to which all others read
    :param engine: CPU seconds so far, as ``broker``, ``machine`` (everything) and ``bench`` (this process)
    """

    at: float
    stable: tuple[int, ...]
    high: tuple[int, ...]
    engine: float
    broker: float
    machine: float
    bench: float


class Watch:
    """Samples, taken in a thread as long as the context lasts.

    :param engine: process id of the engine, which changes when it is started again
    """

    def __init__(self, servers: str, topic: str, *, engine: int, broker: int) -> None:
        self.engine = engine
        self.samples: list[Sample] = []
        self._broker = broker
        self._partitions = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        self._admin = AdminClient({"bootstrap.servers": servers})
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def visible(self) -> int:
        """Return about how many records can be read; transaction markers count, too."""
        return sum(self.samples[-1].stable) if self.samples else 0

    def stands_still(self, records: int) -> bool:
        """Return whether so many records can be read, and for ten seconds no more."""
        looks = self.samples[-SETTLED_LOOKS:]
        return len(looks) == SETTLED_LOOKS and looks[0].stable == looks[-1].stable and self.visible() >= records

    def _look(self) -> None:
        while not self._done.wait(INTERVAL_SECONDS):
            try:
                self.samples.append(self._sample())
            except KafkaException as error:  # the partitions of a new topic have no leader for a moment
                if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION:
                    raise

    def _sample(self) -> Sample:
        return Sample(
            at=time.monotonic(),
            stable=self._ends(IsolationLevel.READ_COMMITTED),
            high=self._ends(IsolationLevel.READ_UNCOMMITTED),
            engine=cpu_seconds(self.engine),
            broker=cpu_seconds(self._broker),
            machine=machine_cpu_seconds(),
            bench=own_cpu_seconds(),
        )

    def _ends(self, level: IsolationLevel) -> tuple[int, ...]:
        latest = dict.fromkeys(self._partitions, OffsetSpec.latest())
        futures = self._admin.list_offsets(latest, isolation_level=level, request_timeout=30)
        return tuple(futures[partition].result().offset for partition in self._partitions)

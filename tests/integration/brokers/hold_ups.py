"""How long other readers are held up while brokers fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

ANSWER_SECONDS = 1.0
PAUSE_SECONDS = 0.05


class HoldUps:
    """Asks again and again, in a thread, whether a read_committed reader would get all that is there.

    A reader is held up at a partition while a transaction hides records of it, or nobody answers for it.

    :param servers: bootstrap servers
    :param places: topics and partitions
    :param pause_seconds: between two questions
    :ivar longest_seconds: the longest time at a stretch in which readers were held up
    :ivar stretches: each such time that is over
    """

    def __init__(
        self, servers: str, places: Iterable[tuple[str, int]], *, pause_seconds: float = PAUSE_SECONDS
    ) -> None:
        self._config: dict[str, str | int | float | bool] = {"bootstrap.servers": servers, "log_level": 0}
        self._admin = AdminClient(self._config)
        self._places = [TopicPartition(*place) for place in places]
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="hold-ups", daemon=True)
        self._pause_seconds = pause_seconds
        self.longest_seconds = 0.0
        self.stretches: list[float] = []

    def __enter__(self) -> HoldUps:
        self._free_since = time.monotonic()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        is_held = False
        while not self._ended.wait(self._pause_seconds):
            is_free = self._is_free()
            now = time.monotonic()
            self.longest_seconds = max(self.longest_seconds, now - self._free_since)
            if is_free:
                if is_held:
                    self.stretches.append(now - self._free_since)
                self._free_since = now
            is_held = not is_free

    def _is_free(self) -> bool:
        try:
            return self._ends(IsolationLevel.READ_COMMITTED) == self._ends(IsolationLevel.READ_UNCOMMITTED)
        except KafkaException:
            self._admin = AdminClient(self._config)  # what an old one believes of the cluster is not what is asked
            return False

    def _ends(self, isolation: IsolationLevel) -> list[int]:
        asked = dict.fromkeys(self._places, OffsetSpec.latest())
        futures = self._admin.list_offsets(asked, isolation_level=isolation, request_timeout=ANSWER_SECONDS)
        return [future.result().offset for future in futures.values()]

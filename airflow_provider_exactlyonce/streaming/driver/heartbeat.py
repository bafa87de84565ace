"""A driver's signs of life while it holds a run: its lease, its status, and how far it is behind."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final

from airflow_provider_exactlyonce.control import driver_output
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.lease import heartbeat_seconds
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition, by_partition
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.job import driver_log

log = logging.getLogger("exactlyonce")

#: A request that is under way is waited for: the client of a file system may abort the process that ends around it.
#: One that is not answered does not keep the driver from its end.
_PATIENCE_SECONDS: Final = 10.0
_OUTPUT_SECONDS: Final = 60.0


class Heartbeat:
    """Renews lease and status in one thread, measures the lag in another, and keeps the output in a third.

    The first does not ask Kafka, so that it goes on while that does not answer.

    :param topics: tells the sources'
    :param others: the sinks that are not Kafka
    """

    def __init__(self, run: Run, report: DriverReport, topics: Callable[[], Sequence[str]], others: SinkGroup) -> None:
        self._run: Final = run
        self._report: Final = report
        self._topics: Final = topics
        self._others: Final = others
        self._lost_lease: Final = threading.Event()
        self._ended: Final = threading.Event()
        self._threads: Final[list[threading.Thread]] = []

    def start(self) -> None:
        """Begin."""
        home = self._run.home
        pause = heartbeat_seconds(home.lease)  # each writes to the home
        self._begin("heartbeat", self._repeat, self._beat, pause)
        self._begin("lag", self._repeat, self._measure_lag, pause)
        output = driver_output.of_this_driver(home, self._report.status.token)
        if output is not None:
            self._begin("output", self._follow, output)

    def stop(self) -> None:
        """Give no further sign."""
        self._ended.set()
        for thread in self._threads:
            thread.join(_PATIENCE_SECONDS)

    def check_lease(self) -> None:
        """Look, if the lease was lost, whether another driver has taken over.

        :raises FencedError: naming it
        :raises UnansweredError: when the ledger can't be read
        """
        if self._lost_lease.is_set():
            self._run.check_superseded()

    def _begin(self, name: str, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=(name, *arguments), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _repeat(self, name: str, work: Callable[[], None], pause: float) -> None:
        while True:
            try:
                work()
            except Exception as error:  # a sign of life must not end with one failure
                log.warning("%s: %s", name, error, extra=driver_log.AWAY if name == "lag" else None)
            if self._ended.wait(pause):
                return

    def _follow(self, name: str, output: DriverOutput) -> None:
        self._repeat(name, output.keep, _OUTPUT_SECONDS)
        self._repeat(name, output.keep, 0.0)  # its last words

    def _beat(self) -> None:
        if self._run.renew_lease():
            self._lost_lease.clear()
        else:
            self._lost_lease.set()
        self._report.tell(undelivered=self._others.undelivered)

    def _measure_lag(self) -> None:
        offsets: dict[TopicPartition, int] | None = None  # what there was is not what there is
        try:
            offsets = by_partition({topic: self._run.sources.of(topic).stable(topic) for topic in self._topics()})
        finally:
            self._report.available(offsets)

"""Kills the leader of a partition of the sink while a batch is half written, from outside, and starts it again."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psutil
from kafka import KafkaAdminClient
from kafka.admin import TransactionState

from airflow_provider_exactlyonce.ledger.records import transactional_id
from demo import topics
from demo.history import Kill

if TYPE_CHECKING:
    from tests.integration.brokers.cluster import BrokerCluster

_STEP_SECONDS: Final = 0.02


@dataclass(frozen=True, kw_only=True)
class KilledLeader:
    """One SIGKILL of a broker.

    :param partition: of the sink's topic, which it led
    :param rows: records of the open transaction in that partition
    """

    broker: int
    partition: int
    rows: int
    kill: Kill


class LeaderKill:
    """Looks for the moment at which a batch is half written.

    A transaction that readers do not see may be one that was just committed. So the driver is stopped for a moment
    (SIGSTOP), and the transaction's coordinator is asked: nobody can commit what is ongoing now.

    :param config: Kafka client configuration
    :param topic: the sink's
    :param driver: returns the driver's processes, which are on this machine
    """

    def __init__(
        self,
        brokers: BrokerCluster,
        config: Mapping[str, Any],
        pipeline: str,
        topic: str,
        driver: Callable[[], Sequence[psutil.Process]],
    ) -> None:
        self._brokers = brokers
        self._config = config
        self._transactional_id = transactional_id(pipeline)
        self._topic = topic
        self._driver = driver

    def carry_out(self, run: int, seconds: float) -> KilledLeader | None:
        """Kill; None when no batch was half written meanwhile.

        :param run: the driver's
        :param seconds: how long to look
        """
        ends = topics.Ends(self._config, self._topic)
        servers = self._config["bootstrap.servers"].split(",")
        deadline = time.monotonic() + seconds
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=servers)) as transactions:
            while time.monotonic() < deadline:
                if _open(ends):
                    with _stopped(self._driver()):
                        descriptions = transactions.describe_transactions([self._transactional_id])
                        ongoing = descriptions[self._transactional_id].state is TransactionState.ONGOING
                        if ongoing and (open_records := _open(ends)):
                            return self._kill(run, open_records)
                time.sleep(_STEP_SECONDS)
        return None

    def _kill(self, run: int, open_records: Mapping[int, int]) -> KilledLeader:
        partition = max(open_records, key=lambda partition: open_records[partition])
        broker = self._brokers.leader(self._topic, partition)
        self._brokers.kill(broker)
        kill = Kill(run=run, at=time.time(), label="SIGKILL of a leader in mid-write")
        return KilledLeader(broker=broker, partition=partition, rows=open_records[partition], kill=kill)


def _open(ends: topics.Ends) -> dict[int, int]:
    """Return {partition: records that readers do not see yet}."""
    return {partition: high - stable for partition, (stable, high) in ends.stable_and_high().items() if high > stable}


@contextlib.contextmanager
def _stopped(processes: Sequence[psutil.Process]) -> Iterator[None]:
    try:
        for process in processes:
            process.suspend()
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # so that the others go on
                process.resume()

"""A pipeline on three brokers, one batch of which meets a failure; judged record by record."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Any

from airflow_provider_exactlyonce.ledger.records import ledger_topic, transactional_id
from tests.crash_matrix.cases import LONG_TIMEOUT_SECONDS
from tests.crash_matrix.lane import verdict_of
from tests.crash_matrix.pipeline import Pipeline
from tests.crash_matrix.shapes import UPDATE
from tests.integration.brokers.cluster import BrokerCluster
from tests.integration.brokers.hold_ups import HoldUps

BURST = 60
NoteProperty = Callable[[str, Any], None]


class Target(Enum):
    """Which broker fails."""

    LEADER = "leader of a sink partition"
    COORDINATOR = "transaction coordinator"
    CONTROLLER = "active controller"


class Trial:
    """One pipeline on the cluster, and what is noted of a case."""

    def __init__(self, cluster: BrokerCluster, folder: Path, name: str) -> None:
        self.cluster = cluster
        config = {"bootstrap.servers": cluster.bootstrap_servers}
        self.pipeline = Pipeline(config=config, name=name, shape=UPDATE, folder=folder / name)
        self.is_well = True

    def ensure_runs(self) -> None:
        """Start the driver if none runs, and see that a batch goes through."""
        if self.pipeline.driver is None:
            self.pipeline.start(LONG_TIMEOUT_SECONDS)
        self.pipeline.send(BURST)
        assert not self.pipeline.settle(self.pipeline.last_batch + 1)

    def hold(self, step: str) -> int:
        """Send a burst and hold the driver at a step of its batch; returns the batch's number."""
        batch = self.pipeline.last_batch + 1
        self.pipeline.arm(f"{step}:batch={batch}")
        self.pipeline.send(BURST)
        self.pipeline.wait_for_hold(f"batch {batch} reaches {step}")
        return batch

    def broker(self, target: Target) -> int:
        """Return which broker is the target just now."""
        if target is Target.LEADER:
            return self.cluster.leader(self.pipeline.sink, 0)
        if target is Target.COORDINATOR:
            return self.cluster.coordinator(transactional_id(self.pipeline.name))
        return self.cluster.controller()

    def hold_ups(self) -> HoldUps:
        """Return what watches other readers of the sink and of the ledger."""
        places = [*((self.pipeline.sink, partition) for partition in range(4)), (ledger_topic(self.pipeline.name), 0)]
        return HoldUps(self.cluster.bootstrap_servers, places)

    def wait_for_commit(self, batch: int) -> float:
        """Wait until a batch is committed; returns how many seconds that took."""
        began = time.monotonic()
        self.pipeline.wait(lambda: self.pipeline.last_batch >= batch, f"batch {batch} is committed")
        return time.monotonic() - began

    def judge(self, note: NoteProperty, held: HoldUps, restarts_before: int) -> None:
        """Bring every broker back, let one more batch go through, and judge every record."""
        self.cluster.heal()
        self.pipeline.observer.reconnect()
        self.pipeline.send(BURST)
        findings = self.pipeline.settle(self.pipeline.last_batch + 1)
        note("verdict", verdict_of(findings))
        note("readers held up, seconds", f"{held.longest_seconds:.1f}")
        note("restarts of the driver", self.pipeline.restarts - restarts_before)
        assert not findings, findings.notes

"""Finds the driver that a supervisor has to do with: one to take over, one to wait for, one to replace, or none.

A living driver is adopted, and nothing is started while it is unknown whether one lives. A driver that is lost for
certain as far as this host can tell is replaced; if it comes back, Kafka's fencing keeps it from committing.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import Final

from airflow_provider_exactlyonce.control import (
    drivers,
    exit_classification,
    json_store,
    processes,
    requests,
    stopping,
    upgrade_plan,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.clusters import Cluster, ClusterDriver, ClusterState
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease, Liveness
from airflow_provider_exactlyonce.control.processes import DriverProcess, Ended, ExitedDriver, FoundDriver, RemoteDriver
from airflow_provider_exactlyonce.control.supervision import IfRunning, StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError, StopRequestedError
from airflow_provider_exactlyonce.policies import termination as untils
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class DriverAttachment:
    """A driver, and whether its end is the end of our work."""

    driver: DriverProcess
    intent: Intent
    ours: bool


class DriverLocator:
    """Tells our driver from others."""

    def __init__(self, home: Home, supervision: Supervision, stop: StopSignal) -> None:
        self._home: Final = home
        self._supervision: Final = supervision
        self._stop: Final = stop
        #: Start token of the intent that was there when no driver was found, None for none.
        self.judged: str | None = None

    def find(self) -> DriverAttachment | None:
        """Return a living driver, None when there is certainly none.

        :raises OutcomeUnknownError: when a driver is silent, and the home takes no writes
        :raises AlreadyRunningError: when a driver lives that this supervisor can't take over
        :raises StopRequestedError: when we were asked to stop while it was unknown
        :raises RefusedError: when an upgrade keeps everybody out that nobody goes on with, or a silent driver is on a
            cluster that the supervision does not have
        """
        while True:
            self._supervision.on_poll()
            intent = intents.read(self._home.intent)
            self.judged = None if intent is None else intent.token
            held, life = self._observed()
            if held is not None and life is Liveness.ALIVE:
                if intent is None or intent.token != held.token:
                    self._replace_stranger(held, intent)
                    continue
                if attached := self._adopt(intent, self._driver_of(intent, held)):
                    return attached
                continue
            if self._has_waited_for_upgrade():
                continue
            if intent is None:
                return None
            if intent.is_here:
                if self._is_being_started(intent):
                    self.wait(f"{intent.owner} is starting a driver; waiting for it", starts=intent)
                    continue
                return self._find_here(intent, held if life is Liveness.STALE else None)
            if cluster := self._cluster_that_has(intent, held):
                if attached := self._adopt(intent, ClusterDriver(intent.token, self._home.lease, cluster)):
                    return attached
                self.wait(f"waiting until {intent.host} says that the driver which was to stop has ended")
                continue
            if not drivers.may_be_starting(self._home, intent, held) and not self._may_live_on_cluster(intent):
                return self._ended_unseen(intent)
            self.wait(f"a driver was started on {intent.host} and has not reported yet; waiting for it", starts=intent)

    def end_of(self, intent: Intent) -> Ended | None:
        """Return how the driver that we have left has ended, or is lost, None for neither; kills a silent one here."""
        held, life = self._observed()
        is_silence = False
        if held is not None and held.token == intent.token and life is Liveness.STALE:
            if intent.is_here:
                _log.warning("the driver (pid %s) gives no sign of life; it is killed", held.pid)
                processes.kill_leftovers(intent.token)
            else:  # the manager of a cluster, or the driver itself, may know of its end
                is_silence = not intent.is_on_cluster and not drivers.has_ended(self._home, intent.token)
        elif drivers.is_there(self._home, intent.token):
            return None
        return None if self._may_live_on_cluster(intent) else Ended(exit_code=None, is_silence=is_silence)

    def wait(self, why: str, *, starts: Intent | None = None) -> None:
        """Let some time pass before the next look, unless we were asked to stop.

        :param starts: of a driver that is told so, too, when it comes up
        :raises StopRequestedError: when we were
        """
        self._supervision.on_poll()
        _log.info("%s", why)
        if self._stop.reason is not None:
            if starts is not None:
                self._pass_stop_on(starts)
            raise StopRequestedError(f"stopped before a driver was started: {self._stop.reason}")
        time.sleep(self._home.look_every(self._supervision.poll_seconds))

    def _observed(self) -> tuple[Lease | None, Liveness]:
        """Observe the lease; a silence tells nothing while the home takes no writes: a sign of life is one."""

        def check_takes_writes() -> None:
            try:
                json_store.rewrite(self._home.intent)
            except (OSError, OutcomeUnknownError) as error:
                raise OutcomeUnknownError(
                    "it takes no writes, so nobody can give a sign of life there, and the driver that gives none is "
                    f"left as it is: {error}"
                ) from error

        return leases.observe(self._home.lease, while_silent=check_takes_writes)

    def _has_waited_for_upgrade(self) -> bool:
        plan = upgrade_plan.read(self._home)
        if plan is None or not plan.holds_starts:
            return False
        if upgrade_plan.is_left(self._home, plan, time.time()):
            raise RefusedError(upgrade_plan.left_behind(plan))
        self.wait(f"{plan.sentence}; waiting for its end")
        return True

    def _is_being_started(self, intent: Intent) -> bool:
        """Whether another process of this host is between its word and the start of its driver."""
        return (
            intent.starter != os.getpid()
            and drivers.is_announced(self._home, intent.token)
            and drivers.may_be_starting(self._home, intent, None)
            and processes.leader(intent.token) is None
        )

    def _find_here(self, intent: Intent, silent: Lease | None) -> DriverAttachment | None:
        driver = processes.leader(intent.token)
        if driver is not None and silent is not None and silent.token == intent.token:
            _log.warning("the driver (pid %s) gives no sign of life; it is killed and replaced", driver.pid)
            processes.kill_leftovers(intent.token)
            return None
        if driver is None:
            processes.kill_leftovers(intent.token)
            return self._ended_unseen(intent)
        return self._adopt(intent, driver)

    def _ended_unseen(self, intent: Intent) -> DriverAttachment | None:
        """Return a driver of ours that has done its work while nobody watched. Of a failure the next start tells."""
        supervision = self._supervision
        is_same_work = (intent.owner, intent.until, intent.clears) == (
            supervision.owner,
            supervision.until,
            supervision.clears,
        )
        if not is_same_work or requests.killed_by(self._home, intent.token) is not None:
            return None
        end = Ended(exit_code=None)
        done = exit_classification.status_of(self._home, intent.token) is not None and (
            exit_classification.failure(self._home, intent.token, end, None) is None
        )
        return DriverAttachment(driver=ExitedDriver(intent.token, end), intent=intent, ours=True) if done else None

    def _driver_of(self, intent: Intent, held: Lease) -> DriverProcess:
        if not intent.is_here:
            cluster = self._cluster_of(intent)
            if cluster is not None:
                return ClusterDriver(intent.token, self._home.lease, cluster)
            return RemoteDriver(intent.token, self._home.lease)
        return processes.leader(intent.token) or FoundDriver(intent.token, held.pid, held.process_started)

    def _cluster_of(self, intent: Intent) -> Cluster | None:
        cluster = self._supervision.cluster
        return cluster if cluster is not None and cluster.has(intent.host) else None

    def _cluster_that_has(self, intent: Intent, held: Lease | None) -> Cluster | None:
        """Return the cluster whose manager has a driver without a sign of life: one that waits for room, or is frozen.

        While the manager doesn't know, it has ours once its submission must be over.
        """
        cluster = self._cluster_of(intent)
        if cluster is None:
            return None
        state = cluster.state(intent.token)
        is_submitted = processes.leader(intent.token) is None and not drivers.may_be_starting(self._home, intent, held)
        unknown = state is ClusterState.UNKNOWN and is_submitted and self._supervision.is_ours(intent)
        return cluster if state is ClusterState.ACTIVE or unknown else None

    def _pass_stop_on(self, intent: Intent) -> None:
        """Ask a driver of ours to stop that may come up when nobody waits for it any more."""
        if (reason := self._stop.reason) is not None and self._supervision.is_ours(intent):
            stopping.PersistentStopRequest(
                self._home, intent.token, reason=reason, owner=self._supervision.owner
            ).go_on()

    def _may_live_on_cluster(self, intent: Intent) -> bool:
        """Whether a driver without a sign of life is being submitted, or its cluster doesn't say that it has ended.

        :raises RefusedError: when we have no way to its cluster, which alone can tell
        """
        cluster = self._cluster_of(intent)
        if cluster is None:
            if not intent.is_on_cluster or drivers.has_ended(self._home, intent.token):
                return False
            our_cluster = self._supervision.cluster
            placement = "runs drivers on the task's host" if our_cluster is None else f"submits to {our_cluster.name}"
            raise RefusedError(
                f"pipeline {self._home.pipeline() or 'without a first commit'} in {self._home}: {intent.owner} has "
                f"submitted a driver (start token {intent.token}) to {intent.host}, and it may still run or wait "
                f"there; the task's Spark connection {placement}, which can't tell. Set the connection back until that "
                f"driver has ended; or if it has, delete {self._home.intent}"
            )
        return processes.leader(intent.token) is not None or cluster.state(intent.token) is not ClusterState.GONE

    def _adopt(self, intent: Intent, driver: DriverProcess) -> DriverAttachment | None:
        """Return the driver to watch, None when it was replaced.

        :raises AlreadyRunningError: when it is to be left alone
        """
        is_ours = self._supervision.is_ours(intent)
        if intent.owner != self._supervision.owner:
            description = f"a driver of {intent.owner}"
            if self._supervision.if_running is IfRunning.FAIL:
                raise AlreadyRunningError(f"{description} runs this pipeline, in {self._home}, and if_running is fail")
            if self._supervision.if_running is IfRunning.REPLACE:
                self._replace(driver, description)
                return None
        if intent.until == untils.FOREVER and not is_ours:
            way = "`exactlyonce stop`" if intent.owner == self._supervision.owner else "if_running='replace'"
            raise AlreadyRunningError(
                f"{intent.owner} runs this pipeline until it is stopped, so it has no end to wait for; "
                f"wait for a commit with CommitGateSensor, or stop that driver first: {way} does"
            )
        if is_ours and self._stop.reason is None and requests.killed_by(self._home, intent.token) is not None:
            if isinstance(driver, ClusterDriver):  # who wanted it stopped could only ask it; we reach its manager
                timeout_seconds = self._supervision.stop_timeout_seconds
                stopping.stop_and_wait(
                    self._home, driver, reason="its task was killed", timeout_seconds=timeout_seconds
                )
                return None
            if requests.stop_requested(self._home, intent.token) is None:  # who wanted it was lost before it could ask
                requests.request_stop(self._home, intent.token, reason="its task was killed")
            _log.info("the driver of an earlier try is being stopped; waiting for its end before ours is started")
            return DriverAttachment(driver=driver, intent=intent, ours=False)
        if is_ours:
            _log.info("taking over the living driver of %s, output in %s", intent.owner, intent.log)
        else:
            _log.info("a driver of %s runs; waiting for its end before ours is started", intent.owner)
        return DriverAttachment(driver=driver, intent=intent, ours=is_ours)

    def _replace_stranger(self, held: Lease, intent: Intent | None) -> None:
        """Stop a driver that this intent has not started, unless another was written while we observed the lease.

        :raises AlreadyRunningError: when it is to be left alone, or does not end
        """
        if intents.read(self._home.intent) != intent:
            return  # another supervisor has started it meanwhile
        if self._supervision.if_running is not IfRunning.REPLACE:
            raise AlreadyRunningError(
                f"pipeline {held.pipeline} in {self._home} is run by pid {held.pid} on {held.host} (run "
                f"{held.run}), which no Airflow task has started; stop it before this task runs"
            )
        process = processes.leader(held.token)
        self._replace(process or RemoteDriver(held.token, self._home.lease), f"pid {held.pid} on {held.host}")

    def _replace(self, driver: DriverProcess, description: str) -> None:
        """Stop somebody else's driver.

        :raises AlreadyRunningError: when it does not end
        """
        reason, timeout_seconds = f"{self._supervision.owner} replaces it", self._supervision.stop_timeout_seconds
        stopping.stop_and_wait(self._home, driver, reason=reason, timeout_seconds=timeout_seconds)
        if drivers.FailureDetector(self._home).is_there(driver.token):
            raise AlreadyRunningError(
                f"{description} runs this pipeline, in {self._home}, and was not stopped within "
                f"{timeout_seconds:g} s; end it, then try again"
            )
        _log.info("%s was stopped, to be replaced", description)

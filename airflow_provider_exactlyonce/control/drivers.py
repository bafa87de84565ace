"""Finds the driver that a command from outside is for, and whether it is still there.

A driver is there from its start on, before it holds the lease, until its process has ended; and between its death and
its restart only its supervisor knows of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import exit_classification, processes, requests, restarts, standbys
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease, Liveness
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.status import ENDED, DriverState

_START_GRACE_SECONDS: Final = 120.0  # from intent to lease on another host: submit, JVM, Spark session
#: After a restart was due: a supervisor that was lost between death and restart leaves its trace, too.
RESTART_GRACE_SECONDS: Final = 120.0


@dataclass(frozen=True, kw_only=True)
class RunningDriver:
    """A driver that can be asked.

    :param series: start token of the first driver of its supervisor's restarts, None without a supervisor
    :param stale: it has given no sign of life for some time, and may never answer
    :param is_lost: nothing else will tell of it any more, see :class:`FailureDetector`
    """

    token: str
    series: str | None
    stale: bool = False
    is_lost: bool = False


def find(home: Home) -> RunningDriver | None:
    """Return the driver that runs a pipeline or is being started, None when there is certainly none.

    Takes up to :func:`~airflow_provider_exactlyonce.control.lease.stale_seconds`.
    """
    held, life = leases.observe(home.lease)
    intent = intents.read(home.intent)
    if held is not None and life in (Liveness.ALIVE, Liveness.STALE):
        series = intent.series if intent is not None and intent.token == held.token else None
        stale = life is Liveness.STALE
        return RunningDriver(
            token=held.token, series=series, stale=stale, is_lost=stale and _only_its_lease_tells(home, held)
        )
    if intent is not None and is_starting(home):
        return RunningDriver(token=intent.token, series=intent.series)
    return None


def find_or_awaited(home: Home) -> RunningDriver | Death | None:
    """Return the result of :func:`find` or :func:`awaiting_restart`, None when there is certainly neither.

    A driver that is lost is a death, if its supervisor may be about to notice.

    A driver may start and die between the two calls, so that neither sees it. There is none only if no driver was
    started and no death was recorded meanwhile.
    """
    while True:
        snapshot = _starts_and_deaths(home)
        driver = find(home)
        driver_or_death: RunningDriver | Death | None = driver
        if driver is None or driver.is_lost:
            driver_or_death = awaiting_restart(home, lost=driver.token if driver is not None else None) or driver
        if driver_or_death is not None or _starts_and_deaths(home) == snapshot:
            return driver_or_death


def is_there(home: Home, token: str) -> bool:
    """Whether the driver with this start token may still do something. Cheap, and never waits.

    A silent one on another host may, as far as a single look can tell; see :class:`FailureDetector`.
    """
    held = leases.read(home.lease)
    if held is not None and held.token == token and not leases.is_dead(held):
        return True
    intent = intents.read(home.intent)
    if intent is None or intent.token != token:
        return False
    return processes.leader(token) is not None if intent.is_here else may_be_starting(home, intent, held)


class FailureDetector:
    """Whether a driver is there, for callers that poll.

    One on another host is lost when it gives no sign of life, while we watch, for as long as a supervisor or a restore
    bears it: the clocks of two hosts are not compared. If it comes back, Kafka's fencing keeps it from committing. Of
    one that a cluster's manager runs only that manager knows, which its supervisor asks; of one of this host, its
    process does.

    :param waits: the first check of a driver on another host waits until it is certain, up to
        :func:`~airflow_provider_exactlyonce.control.lease.stale_seconds`; later checks don't wait
    """

    def __init__(self, home: Home, *, waits: bool = True) -> None:
        self._home: Final = home
        self._waits: Final = waits
        self._watched: processes.RemoteDriver | None = None
        self._last_heartbeat: tuple[str, float] | None = None  # a start token, with its last heartbeat
        self._silent_heartbeat: tuple[str, float] | None = None  # the same, once that is judged

    def is_there(self, token: str) -> bool:
        """Whether the driver with this start token may still do something, and is not lost."""
        return is_there(self._home, token) and not self.is_lost(token)

    def is_lost(self, token: str) -> bool:
        """Whether a driver holds the pipeline on another host, has been silent for too long, and nothing else tells."""
        held = leases.read(self._home.lease)
        if held is None or held.token != token or held.machine == process_identity.this_machine():
            return False
        is_silent = False
        if self._watched is None or self._watched.token != token:
            self._watched = processes.RemoteDriver(token, self._home.lease)
            if self._waits and _only_its_lease_tells(self._home, held):
                observed, life = leases.observe(self._home.lease)
                if observed is None or observed.token != token:
                    return False
                held, is_silent = observed, life is Liveness.STALE
        elif (ended := self._watched.ended()) is not None:  # it may be the result of an earlier read
            is_silent = ended.is_silence and self._last_heartbeat == (token, held.heartbeat)
        self._last_heartbeat = token, held.heartbeat
        if is_silent:
            self._silent_heartbeat = self._last_heartbeat
        # The intent is read last: a wait in a bucket pays for each document of each check.
        return self._silent_heartbeat == self._last_heartbeat and _only_its_lease_tells(self._home, held)


def _only_its_lease_tells(home: Home, held: Lease) -> bool:
    if held.machine == process_identity.this_machine():
        return False
    intent = intents.read(home.intent)
    return intent is None or intent.token != held.token or not intent.is_on_cluster


def is_announced(home: Home, token: str) -> bool:
    """Whether a living process of this host has announced this driver and not started it yet."""
    intent = intents.read(home.intent)
    if intent is None or intent.token != token or not intent.is_here or intent.pid or not intent.starter:
        return False
    return process_identity.process_start(intent.starter) == intent.starter_started


def is_starting(home: Home) -> bool:
    """Whether a driver was started that has not taken the lease yet. Cheap, and never waits."""
    intent, held = intents.read(home.intent), leases.read(home.lease)
    if intent is None:
        return False
    if not intent.is_here:
        return may_be_starting(home, intent, held)
    came_up = held is not None and held.token == intent.token
    return not came_up and not has_ended(home, intent.token) and processes.leader(intent.token) is not None


def may_be_starting(home: Home, intent: Intent, held: Lease | None) -> bool:
    """Whether a driver that was started on another host may still come up."""
    if held is not None and held.token == intent.token:
        return False  # it did, and is silent now
    return not has_ended(home, intent.token) and time.time() - intent.written < _START_GRACE_SECONDS


def has_ended(home: Home, token: str) -> bool:
    """Whether a driver itself has reported its end."""
    status = exit_classification.status_of(home, token)
    return status is not None and status.state in ENDED


def is_unheard(home: Home, token: str) -> bool:
    """Whether only its cluster's manager can tell whether a driver lives: it waits for room, or has ended unheard."""
    intent, held = intents.read(home.intent), leases.read(home.lease)
    if intent is None or intent.token != token or not intent.is_on_cluster:
        return False
    return (held is None or held.token != token) and not has_ended(home, token)


@dataclass(frozen=True, kw_only=True)
class Death:
    """A driver that has died under a supervisor.

    :param series: start token of the first driver of its supervisor's restarts
    :param due: seconds since the epoch when the next driver is to be started; where its supervisor has not noticed yet,
        the last sign of life
    """

    token: str
    series: str
    due: float


def awaiting_restart(home: Home, *, lost: str | None = None) -> Death | None:
    """Return the death after which a supervisor is about to start the next driver, unless a stop was requested.

    A supervisor that sits in the triggerer takes some seconds to notice, and a standby some for its start.

    :param lost: start token of a driver that is known to be lost, None for none
    """
    # A death by silence is recorded, and leaves the intent: the record knows when the next start is due.
    deaths = [death for death in (_unnoticed_death(home, lost), _recorded_death(home)) if death is not None]
    death = max(deaths, key=lambda death: death.due, default=None) or _death_before_takeover(home)
    return death if death is None or requests.stop_requested(home, death.token) is None else None


def is_restarted_soon(dead: Death) -> bool:
    """Whether the next driver is about to be started, and no other may hold the pipeline meanwhile."""
    return time.time() - dead.due < RESTART_GRACE_SECONDS


def has_happened(home: Home, wait: WaitCondition) -> bool:
    """Whether a condition is met, or never will be. Cheap, and never waits."""
    if wait.request is not None and requests.savepoint_answer(home, wait.request) is not None:
        return True
    if wait.token is None:
        death = awaiting_restart(home)
        return death is None or not is_restarted_soon(death)
    status = None if wait.commits is None else exit_classification.status_of(home, wait.token)
    if wait.commits is not None and status is not None and status.state is DriverState.RUNNING:
        replays = status.replay is not None and status.replay.pending
        return not replays and status.commits_of_run >= wait.commits
    # Twice: one that comes up between two looks is unheard in neither. While it is there, no other file is read.
    return not (is_there(home, wait.token) or is_unheard(home, wait.token) or is_there(home, wait.token))


def _starts_and_deaths(home: Home) -> tuple[Intent | None, tuple[Restart, ...]]:
    return intents.read(home.intent), restarts.read(home.restarts)[-1:]


def _recorded_death(home: Home) -> Death | None:
    recorded = restarts.read(home.restarts)
    if not recorded or recorded[-1].relaunched is not None:
        return None
    newest = recorded[-1]
    return Death(token=newest.token, series=newest.series, due=max(newest.died, newest.due))


def _death_before_takeover(home: Home) -> Death | None:
    """Return the lost driver from which a standby is about to take over: it holds its own lease until it has that."""
    if standbys.waiting(home) is None:
        return None
    held, status = leases.read(home.lease), statuses.read(home.status)
    token = held.token if held is not None else status.token if status is not None else ""
    return Death(token=token, series=token, due=time.time())


def _unnoticed_death(home: Home, lost: str | None) -> Death | None:
    intent = intents.read(home.intent)
    if intent is None or (intent.token != lost and is_there(home, intent.token)):
        return None
    status, held = exit_classification.status_of(home, intent.token), leases.read(home.lease)
    if status is not None and status.state in (DriverState.FINISHED, DriverState.STOPPED):
        return None
    beat = held.heartbeat if held is not None and held.token == intent.token else intent.written
    return Death(token=intent.token, series=intent.series, due=beat if status is None else max(beat, status.updated))


def describe(home: Home, token: str | None) -> str:
    """Return a driver's identity and its last sign of life, for an error's message.

    :param token: its start token, None for one that is about to be started
    """
    if token is None:
        return "the driver that its supervisor is about to start again"
    held = leases.read(home.lease)
    if held is None or held.token != token:
        intent = intents.read(home.intent)
        if intent is None or intent.token != token:
            return f"the driver with start token {token}"
        if intent.is_on_cluster:
            return (
                f"the driver that was submitted to {intent.host} and has not reported yet (start token {token}, "
                f"output of its submission {intent.log})"
            )
        return f"the driver that is being started (pid {intent.pid or 'unknown'} on {intent.host}, output {intent.log})"
    heard = datetime.fromtimestamp(held.heartbeat, UTC).isoformat(timespec="seconds")
    ago = max(0.0, time.time() - held.heartbeat)
    return f"the driver (pid {held.pid} on {held.host}, run {held.run}, last heartbeat {heard}, {ago:.0f} s ago)"

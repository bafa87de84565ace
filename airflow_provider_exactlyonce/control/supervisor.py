"""Starts a pipeline's driver, watches it, starts it again; or takes over a driver that an earlier supervisor left.

Rules of this file:

- *Identity before action.* The intent is on disk before the process is started. Whoever comes after us finds the driver
  by its start token, whenever we die.
- *Adopt a living driver, replace a dead one, wait while it is unknown which.* Unknown never starts a second driver.
- *The lease protects from mistakes, Kafka's fencing protects the data.* So a driver that is lost for certain as far as
  this host can tell is replaced, and if it comes back it is fenced.
- *No evidence is a failure.* See :mod:`airflow_provider_exactlyonce.control.verdict`.
"""

from __future__ import annotations

import logging
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import until
from airflow_provider_exactlyonce.control import (
    commands,
    drivers,
    health,
    launching,
    processes,
    progress,
    restarts,
    stopping,
    upgrade_plan,
    verdict,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.clusters import Cluster, ClusterDriver, ClusterState
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease, Life
from airflow_provider_exactlyonce.control.processes import Driver, Ended, FoundDriver, GoneDriver, RemoteDriver
from airflow_provider_exactlyonce.control.status import ENDED, DriverState, Status
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    ExactlyOnceError,
    StopRequestedError,
    UnhealthyError,
)
from airflow_provider_exactlyonce.health import HealthRules
from airflow_provider_exactlyonce.restart import Outage, RestartStrategy

_PROCESS_POLL_SECONDS: Final = 0.1  # the restart's overhead is mostly this
_EXIT_GRACE_SECONDS: Final = 30.0  # from the driver's last status to the end of its JVM
_ACCOUNTS_KEPT_SECONDS: Final = 30 * 24 * 60 * 60.0

_log = logging.getLogger(__name__)


class IfRunning(Enum):
    """What to do about a living driver that another task, or a person, has started."""

    ADOPT = "adopt"  # watch it, or wait for its end; refuse where neither makes sense
    FAIL = "fail"
    REPLACE = "replace"  # stop it at its next batch boundary


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How to start a driver.

    :param command: program and arguments
    :param printable: the command with its secrets masked
    :param environment: added to this process's own; secrets belong here
    """

    command: Sequence[str]
    printable: str
    environment: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Attached:
    """A living driver, and whether its end is the end of our work."""

    driver: Driver
    intent: Intent
    ours: bool


class Supervisor:
    """One stay with one pipeline's driver, over its restarts. May be left at any time: the driver goes on.

    :param launch: how to start it, or what tells that at each start: the pipeline may be upgraded meanwhile
    :param owner: who we are; a later supervisor with the same owner takes over our driver as its own
    :param until: as in ``launch``
    :param cluster: the manager that runs the driver; None when it is a process of this host
    :param strategy: when a driver that died is started again
    :param if_running: what to do about a driver that another one than the owner has started
    :param health: when to give up on a driver
    :param clears: how often the owner's DAG run was cleared; the end of a driver that nobody saw counts only while
        this is the same
    :param left: the driver that a supervisor of the same task try has left; its end is ours, wherever it happened
    :param poll_seconds: how often the status is read
    :param stop_timeout_seconds: how long a driver may take to end its batch when it is asked to stop
    :param look_up: called every tenth of a second or so; may call :meth:`stop`, and may leave by raising
    :param pause: called with the time of the next start before a delay is waited for; may leave by raising
    """

    def __init__(
        self,
        home: Home,
        launch: Launch | Callable[[], Launch],
        *,
        owner: str,
        until: str,
        strategy: RestartStrategy,
        cluster: Cluster | None = None,
        if_running: IfRunning = IfRunning.ADOPT,
        health: HealthRules | None = None,
        clears: int = 0,
        left: Intent | None = None,
        poll_seconds: float = 1.0,
        stop_timeout_seconds: float = 60.0,
        look_up: Callable[[], None] = lambda: None,
        pause: Callable[[Intent, float], None] = lambda intent, due: None,
    ) -> None:
        self.home: Final = home
        self.launch: Final = launch
        self.owner: Final = owner
        self.until: Final = until
        self.strategy: Final = strategy
        self.cluster: Final = cluster
        self.if_running: Final = if_running
        self.health: Final = health or HealthRules()
        self.clears: Final = clears
        self.poll_seconds: Final = poll_seconds
        self.stop_timeout_seconds: Final = stop_timeout_seconds
        self.restarts = 0
        self.series = ""  # start token of the first driver of ours
        self.log: Path | None = None
        self.stopping: str | None = None  # the reason, once we were asked to stop
        self._look_up: Final = look_up
        self._pause: Final = pause
        self._left = left
        self._attached: _Attached | None = None
        self._previous: Intent | None = None  # the driver of ours that died last
        self._ended = Ended(exit_code=None)
        self._is_over = False

    @property
    def living(self) -> Intent | None:
        """The driver that is watched, ours or somebody else's, as long as it has not ended."""
        return self._attached.intent if self._attached is not None and not self._is_over else None

    @property
    def waits_for_another(self) -> bool:
        """Whether the living driver is somebody else's, whose end is only waited for."""
        return self._attached is not None and not self._attached.ours

    def run(self) -> Iterator[Status]:
        """Yield the driver's status whenever something in it has changed, until the work is done.

        :raises StopRequestedError: when it was stopped before its work was done
        :raises ExactlyOnceError: when it failed and is not restarted; the message starts with the driver's own
        """
        while True:
            attached = self._take_up() or self._find() or self._start()
            self._attached = attached
            if attached.ours:
                self.series = attached.intent.series
            if self.stopping is not None:  # asked while we were starting it
                self._end(attached)
            yield from self._watch(attached)
            died = time.time()
            self._attached = None
            if not attached.ours:
                continue
            intents.remove(self.home.intent, attached.intent.token)
            error = verdict.failure(self.home, attached.driver.token, self._ended, Path(attached.intent.log))
            if error is None and self.stopping is None and self._was_killed(attached.intent):
                continue  # by an earlier try, which was cleared since
            if error is None and self._is_done(attached):
                return
            if error is None or self.stopping is not None:
                raise StopRequestedError(f"the driver was stopped at {self._place(attached)}: {self.stopping}")
            self._note_death(attached, error, died)
            self._await_restart()

    def stop(self, reason: str) -> None:
        """Stop the driver and wait for its end. May be called from a signal handler, and again while it runs.

        A driver whose end is not the end of our work belongs to somebody else and goes on.
        """
        if self.stopping is not None:
            return
        self.stopping = reason
        if self._attached is not None:
            self._end(self._attached)

    def _end(self, attached: _Attached) -> None:
        if not attached.ours:
            return
        commands.note_killed(self.home, attached.driver.token, self.owner)
        self._stop_driver(attached.driver, self.stopping or "")

    def _stop_driver(self, driver: Driver, reason: str) -> None:
        _log.info("asking the driver to stop: %s", reason)
        stopping.detach(self.home, driver.token, reason=reason, timeout_seconds=self.stop_timeout_seconds)
        deadline = time.monotonic() + self.stop_timeout_seconds + stopping.TERM_SECONDS + _EXIT_GRACE_SECONDS
        while _lives(driver):
            if time.monotonic() >= deadline:  # the stopping process was killed, too, or can't reach it
                driver.signal(signal.SIGKILL)
                processes.sweep(driver.token)
                return
            time.sleep(_PROCESS_POLL_SECONDS)

    # -- finding --------------------------------------------------------------------------------------------------

    def _take_up(self) -> _Attached | None:
        """Return the driver that was left and has ended, so that it is judged; None when there is none.

        :raises StopRequestedError: when somebody wants no restart
        """
        left, self._left = self._left, None
        if left is None or not self._is_ours(left):
            return None
        self.log = Path(left.log)
        self.restarts = left.restarts
        if any(entry.token == left.token for entry in restarts.of_series(self.home.restarts, left.series)):
            self._previous = left  # its death is on record, we have waited for the next start
            self._await_restart()
            return None
        held, life = leases.settle(self.home.lease)
        if held is not None and held.token == left.token:
            if life is Life.ALIVE:
                return None
            if life is Life.SILENT and left.is_here:
                _log.warning("the driver (pid %s) gives no sign of life; it is killed", held.pid)
                processes.sweep(left.token)
        elif drivers.is_there(self.home, left.token):
            return None
        if self._may_live_on_cluster(left):
            return None
        return _Attached(driver=GoneDriver(left.token), intent=left, ours=True)

    def _find(self) -> _Attached | None:
        """Return a living driver, None when there is certainly none.

        :raises AlreadyRunningError: when a driver lives that this supervisor can't take over
        :raises StopRequestedError: when we were asked to stop while it was unknown
        """
        while True:
            self._look_up()
            intent = intents.read(self.home.intent)
            held, life = leases.settle(self.home.lease)
            if held is not None and life is Life.ALIVE:
                if intent is None or intent.token != held.token:
                    self._replace_stranger(held)
                    continue
                if attached := self._adopt(intent, self._driver_of(intent, held)):
                    return attached
                continue
            plan = upgrade_plan.read(self.home)
            if plan is not None and plan.holds_starts:
                _log.info("%s; waiting for its end", plan.sentence)
                self._check_stopping()
                time.sleep(self.poll_seconds)
                continue
            if intent is None:
                return None
            if intent.is_here:
                return self._find_here(intent, held if life is Life.SILENT else None)
            if not drivers.may_be_starting(self.home, intent, held) and not self._may_live_on_cluster(intent):
                return self._ended_unseen(intent)
            _log.info("a driver was started on %s and has not reported yet; waiting for it", intent.host)
            self._check_stopping()
            time.sleep(self.poll_seconds)

    def _check_stopping(self) -> None:
        if self.stopping is not None:
            raise StopRequestedError(f"stopped before a driver was started: {self.stopping}")

    def _find_here(self, intent: Intent, silent: Lease | None) -> _Attached | None:
        driver = processes.leader(intent.token)
        if driver is not None and silent is not None and silent.token == intent.token:
            _log.warning("the driver (pid %s) gives no sign of life; it is killed and replaced", driver.pid)
            processes.sweep(intent.token)
            return None
        if driver is None:
            processes.sweep(intent.token)
            return self._ended_unseen(intent)
        return self._adopt(intent, driver)

    def _ended_unseen(self, intent: Intent) -> _Attached | None:
        """Return a driver of ours that has done its work while nobody watched. Of a failure the next start tells."""
        same = (intent.owner, intent.until, intent.clears) == (self.owner, self.until, self.clears)
        if not same or self._was_killed(intent):
            return None
        done = verdict.status_of(self.home, intent.token) is not None and (
            verdict.failure(self.home, intent.token, Ended(exit_code=None), Path(intent.log)) is None
        )
        if not done:
            return None
        self.log, self.restarts = Path(intent.log), intent.restarts
        return _Attached(driver=GoneDriver(intent.token), intent=intent, ours=True)

    def _driver_of(self, intent: Intent, held: Lease) -> Driver:
        if not intent.is_here:
            cluster = self._cluster_of(intent)
            if cluster is not None:
                return ClusterDriver(intent.token, self.home.lease, cluster)
            return RemoteDriver(intent.token, self.home.lease)
        return processes.leader(intent.token) or FoundDriver(intent.token, held.pid, held.process_started)

    def _cluster_of(self, intent: Intent) -> Cluster | None:
        cluster = self.cluster
        return cluster if cluster is not None and cluster.name == intent.host else None

    def _may_live_on_cluster(self, intent: Intent) -> bool:
        """Whether a driver without a sign of life is being submitted, or its cluster doesn't say that it has ended."""
        cluster = self._cluster_of(intent)
        if cluster is None:
            return False
        return processes.leader(intent.token) is not None or cluster.state(intent.token) is not ClusterState.GONE

    def _is_ours(self, intent: Intent) -> bool:
        # A driver that another task started for what was available *then* does not cover what is available now.
        return intent.until == self.until and (intent.owner == self.owner or self.until == until.FOREVER)

    def _was_killed(self, intent: Intent) -> bool:
        return commands.killed_by(self.home, intent.token) is not None

    def _adopt(self, intent: Intent, driver: Driver) -> _Attached | None:
        """Return the driver to watch, None when it was replaced.

        :raises AlreadyRunningError: when it is to be left alone
        """
        ours = self._is_ours(intent)
        if intent.owner != self.owner:
            who = f"a driver of {intent.owner}"
            if self.if_running is IfRunning.FAIL:
                raise AlreadyRunningError(f"{who} runs this pipeline, in {self.home.path}, and if_running is fail")
            if self.if_running is IfRunning.REPLACE:
                self._replace(driver, who)
                return None
        if intent.until == until.FOREVER and not ours:
            raise AlreadyRunningError(
                f"{intent.owner} runs this pipeline until it is stopped, so it has no end to wait for; "
                "wait for a commit with CommitGateSensor, or stop that driver first: if_running='replace' does"
            )
        self.log = Path(intent.log)
        if ours and self._was_killed(intent):
            _log.info("the driver of an earlier try is being stopped; waiting for its end before ours is started")
            return _Attached(driver=driver, intent=intent, ours=False)
        if ours:
            self.restarts = intent.restarts
            _log.info("taking over the living driver of %s, output in %s", intent.owner, intent.log)
        else:
            _log.info("a driver of %s runs; waiting for its end before ours is started", intent.owner)
        return _Attached(driver=driver, intent=intent, ours=ours)

    def _replace_stranger(self, held: Lease) -> None:
        if self.if_running is not IfRunning.REPLACE:
            raise AlreadyRunningError(_occupied(self.home, held))
        found = processes.leader(held.token)
        self._replace(found or RemoteDriver(held.token, self.home.lease), f"pid {held.pid} on {held.host}")

    def _replace(self, driver: Driver, who: str) -> None:
        """Stop somebody else's driver.

        :raises AlreadyRunningError: when it does not end
        """
        self._stop_driver(driver, f"{self.owner} replaces it")
        if drivers.is_there(self.home, driver.token):
            raise AlreadyRunningError(
                f"{who} runs this pipeline, in {self.home.path}, and was not stopped within "
                f"{self.stop_timeout_seconds:g} s; end it, then try again"
            )
        _log.info("%s was stopped, to be replaced", who)

    # -- starting -------------------------------------------------------------------------------------------------

    def _start(self) -> _Attached:
        self._look_up()
        self._check_stopping()
        launch = self.launch() if callable(self.launch) else self.launch
        token = str(uuid.uuid4())
        previous = self._previous
        log = launching.next_log(self.home)
        commands.forget_older(self.home, "account-*.json", _ACCOUNTS_KEPT_SECONDS)
        intent = Intent(
            token=token,
            owner=self.owner,
            until=self.until,
            series=previous.series if previous else token,
            restarts=self.restarts,
            log=str(log),
            clears=self.clears,
            host=self.cluster.name if self.cluster is not None else socket.gethostname(),
        )
        self.log = log
        launch = self.launch() if callable(self.launch) else self.launch
        driver = launching.start(self.home, launch, intent)
        if previous is not None:
            restarts.relaunched(self.home.restarts, previous.token, time.time())
        _log.info("started %s", launch.printable)
        _log.info("pid %s, output in %s", driver.process.pid, log)
        if self.cluster is not None:
            remote = ClusterDriver(token, self.home.lease, self.cluster, submission=driver)
            return _Attached(driver=remote, intent=intent, ours=True)
        return _Attached(driver=driver, intent=intent, ours=True)

    def _note_death(self, attached: _Attached, error: ExactlyOnceError, died: float) -> None:
        """Record the death, and when the next driver is started.

        :raises ExactlyOnceError: when none is
        """
        series = attached.intent.series
        recorded = restarts.of_series(self.home.restarts, series)
        past = [Outage(died=one.died, relaunched=one.relaunched) for one in recorded]
        delay = self.strategy.delay(error, past, died)
        if delay is None:
            raise error
        if why := health.too_many_restarts(past, died, self.health):
            raise UnhealthyError(f"{why}; the last one: {error}") from error
        self.restarts += 1
        self._previous = attached.intent
        status = verdict.status_of(self.home, attached.driver.token)
        restarts.append(
            self.home.restarts,
            restarts.Restart(
                series=series,
                number=self.restarts,
                token=attached.driver.token,
                run=status.run if status else 0,
                commit=status.commit if status else 0,
                rows=status.rows if status else 0,
                cause=str(error),
                exit_code=self._ended.exit_code,
                died=died,
                due=died + delay.total_seconds(),
            ),
        )
        _log.warning(
            "%s; restart %s in %.1f s from the retained checkpoint", error, self.restarts, delay.total_seconds()
        )

    def _await_restart(self) -> None:
        """Wait until the next start.

        :raises StopRequestedError: when somebody wants it stopped
        """
        dead = self._previous
        if dead is None:
            return
        entry = next(one for one in restarts.of_series(self.home.restarts, dead.series) if one.token == dead.token)
        self.restarts = entry.number
        paused = False
        while True:
            self._look_up()
            # A stop that was meant for the driver that died is meant for its successor, too.
            reason = self.stopping or commands.stop_requested(self.home, dead.token)
            if reason is not None:
                raise StopRequestedError(
                    f"stopped before restart {entry.number}: {reason}; the driver had died: {entry.cause}"
                )
            if not paused:
                self._pause(dead, entry.due)
            paused = True
            left = min(entry.due - time.time(), entry.due - entry.died)  # the clock may be set back
            if left <= 0:
                return
            time.sleep(min(left, _PROCESS_POLL_SECONDS))

    # -- watching -------------------------------------------------------------------------------------------------

    def _watch(self, attached: _Attached) -> Iterator[Status]:
        """Yield changed statuses until the driver has ended; leaves how in ``_ended``.

        :raises StopRequestedError: when we were asked to stop while we waited for somebody else's driver
        """
        driver = attached.driver
        shown: Status | None = None
        next_look = 0.0
        over_since: float | None = None
        warned = False
        while True:
            self._look_up()
            ended = driver.ended()
            self._is_over = ended is not None
            now = time.monotonic()
            if ended is not None or now >= next_look:
                next_look = now + self.poll_seconds
                status = verdict.status_of(self.home, driver.token)
                if ended is None and attached.ours and self.stopping is None:
                    self._check_health(attached)
                if status is not None and progress.moved(shown, status):
                    shown = status
                    yield status
                life = self._life(driver)
                if life is Life.GONE or (status is not None and status.state in ENDED):
                    over_since = over_since or now
                if life is Life.SILENT and not warned:
                    _log.warning("the driver has given no sign of life for %.0f s", leases.STALE_SECONDS)
                warned = life is Life.SILENT
            if ended is not None:
                self._ended = ended
                return
            if self.stopping is not None and not attached.ours:
                raise StopRequestedError(f"stopped while waiting for {attached.intent.owner}: {self.stopping}")
            if over_since is not None and now - over_since > _EXIT_GRACE_SECONDS:
                driver.signal(signal.SIGKILL)  # its Python half has ended; the JVM hangs
            time.sleep(_PROCESS_POLL_SECONDS)

    def _check_health(self, attached: _Attached) -> None:
        why = health.stuck(self.home, attached.intent, self.health, time.time())
        if why is not None:
            self.stop(why)
            intents.remove(self.home.intent, attached.intent.token)
            raise UnhealthyError(f"{why}; the driver was stopped")

    def _life(self, driver: Driver) -> Life:
        held = leases.read(self.home.lease)
        return leases.life(held) if held is not None and held.token == driver.token else Life.NONE

    def _is_done(self, attached: _Attached) -> bool:
        """Whether a driver that ended in order has done its work, too.

        :raises StopRequestedError: when somebody else has asked the driver to stop before it had
        """
        status = verdict.status_of(self.home, attached.driver.token)
        if status is not None and status.state is DriverState.FINISHED:
            return True
        if self.stopping is None and self.until != until.FOREVER:
            raise StopRequestedError(
                f"somebody stopped the driver at {self._place(attached)}, before its work was done (until "
                f"{self.until}): "
                f"{commands.stop_requested(self.home, attached.driver.token)}"
            )
        return self.stopping is None

    def _place(self, attached: _Attached) -> str:
        status = verdict.status_of(self.home, attached.driver.token)
        return f"commit {status.commit}" if status else "an unknown commit"


def _lives(driver: Driver) -> bool:
    """Whether it lives, without waiting for our child: a signal handler may have interrupted just that."""
    if isinstance(driver, RemoteDriver):
        return driver.ended() is None
    return processes.leader(driver.token) is not None


def _occupied(home: Home, held: Lease) -> str:
    return (
        f"pipeline {held.pipeline} in {home.path} is run by pid {held.pid} on {held.host} (run {held.run}), which "
        "no Airflow task has started; stop it before this task runs"
    )

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
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.control import (
    commands,
    drivers,
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
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease, Life
from airflow_provider_exactlyonce.control.processes import Driver, Ended, FoundDriver, RemoteDriver
from airflow_provider_exactlyonce.control.status import ENDED, DriverState, Status
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, ExactlyOnceError, StopRequestedError
from airflow_provider_exactlyonce.restart import RestartStrategy

_PROCESS_POLL_SECONDS: Final = 0.1  # the restart's overhead is mostly this
_EXIT_GRACE_SECONDS: Final = 30.0  # from the driver's last status to the end of its JVM

_log = logging.getLogger(__name__)


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
    """One stay with one pipeline's driver, over its restarts.

    :param launch: how to start it
    :param owner: who we are; a later supervisor with the same owner takes over our driver as its own
    :param until: ``available`` or ``forever``, as in ``launch``
    :param strategy: when a driver that died is started again
    :param poll_seconds: how often the status is read
    :param stop_timeout_seconds: how long a driver may take to end its batch when it is asked to stop
    """

    def __init__(
        self,
        home: Home,
        launch: Launch,
        *,
        owner: str,
        until: str,
        strategy: RestartStrategy,
        poll_seconds: float = 1.0,
        stop_timeout_seconds: float = 60.0,
    ) -> None:
        self.home: Final = home
        self.launch: Final = launch
        self.owner: Final = owner
        self.until: Final = until
        self.strategy: Final = strategy
        self.poll_seconds: Final = poll_seconds
        self.stop_timeout_seconds: Final = stop_timeout_seconds
        self.restarts = 0
        self.log: Path | None = None
        self.stopping: str | None = None  # the reason, once we were asked to stop
        self._attached: _Attached | None = None
        self._previous: _Attached | None = None  # the driver of ours that died last
        self._ended = Ended(exit_code=None)

    def run(self) -> Iterator[Status]:
        """Yield the driver's status whenever something in it has changed, until the work is done.

        :raises StopRequestedError: when it was stopped before its work was done
        :raises ExactlyOnceError: when it failed and is not restarted; the message starts with the driver's own
        """
        while True:
            attached = self._find() or self._start()
            self._attached = attached
            if self.stopping is not None:  # asked while we were starting it
                self._end(attached)
            yield from self._watch(attached)
            died = time.time()
            self._attached = None
            intents.remove(self.home.intent, attached.intent.token)
            if not attached.ours:
                continue
            error = verdict.failure(self.home, attached.driver.token, self._ended, Path(attached.intent.log))
            if error is None and self._is_done(attached):
                return
            if error is None or self.stopping is not None:
                raise StopRequestedError(f"the driver was stopped at {self._place(attached)}: {self.stopping}")
            self._prepare_restart(attached, error, died)

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
        _log.info("asking the driver to stop: %s", self.stopping)
        stopping.detach(
            self.home,
            attached.driver.token,
            reason=self.stopping or "",
            timeout_seconds=self.stop_timeout_seconds,
        )
        deadline = time.monotonic() + self.stop_timeout_seconds + stopping.TERM_SECONDS + _EXIT_GRACE_SECONDS
        while _lives(attached.driver):
            if time.monotonic() >= deadline:  # the stopping process was killed, too
                processes.sweep(attached.driver.token)
                return
            time.sleep(_PROCESS_POLL_SECONDS)

    # -- finding --------------------------------------------------------------------------------------------------

    def _find(self) -> _Attached | None:
        """Return a living driver, None when there is certainly none.

        :raises AlreadyRunningError: when a driver lives that this supervisor can't take over
        :raises StopRequestedError: when we were asked to stop while it was unknown
        """
        while True:
            if self.stopping is not None:
                raise StopRequestedError(f"stopped before a driver was started: {self.stopping}")
            intent = intents.read(self.home.intent)
            held, life = leases.settle(self.home.lease)
            if held is not None and life is Life.ALIVE:
                if intent is None or intent.token != held.token:
                    raise AlreadyRunningError(_occupied(self.home, held))
                return self._adopt(intent, self._driver_of(intent, held))
            plan = upgrade_plan.read(self.home)
            if plan is not None and plan.holds_starts:
                _log.info("%s; waiting for its end", plan.sentence)
                time.sleep(self.poll_seconds)
                continue
            if intent is None:
                return None
            if intent.is_here:
                return self._find_here(intent, held if life is Life.SILENT else None)
            if not drivers.may_be_starting(self.home, intent, held):
                return None
            _log.info("a driver was started on %s and has not reported yet; waiting for it", intent.host)
            time.sleep(self.poll_seconds)

    def _find_here(self, intent: Intent, silent: Lease | None) -> _Attached | None:
        driver = processes.leader(intent.token)
        if driver is not None and silent is not None and silent.token == intent.token:
            _log.warning("the driver (pid %s) gives no sign of life; it is killed and replaced", driver.pid)
            processes.sweep(intent.token)
            return None
        if driver is None:
            processes.sweep(intent.token)
            return None
        return self._adopt(intent, driver)

    def _driver_of(self, intent: Intent, held: Lease) -> Driver:
        if not intent.is_here:
            return RemoteDriver(intent.token, self.home.lease)
        return processes.leader(intent.token) or FoundDriver(intent.token, held.pid, held.process_started)

    def _adopt(self, intent: Intent, driver: Driver) -> _Attached:
        if intent.until == "forever" and self.until != "forever":
            raise AlreadyRunningError(
                f"{intent.owner} runs this pipeline until it is stopped, so it has no end to wait for; "
                "wait for a commit with CommitGateSensor, or stop that driver first"
            )
        # A driver that another task started for what was available *then* does not cover what is available now.
        ours = intent.until == self.until and (intent.owner == self.owner or self.until == "forever")
        self.log = Path(intent.log)
        if ours:
            self.restarts = intent.restarts
            _log.info("taking over the living driver of %s, output in %s", intent.owner, intent.log)
        else:
            _log.info("a driver of %s runs; waiting for its end before ours is started", intent.owner)
        return _Attached(driver=driver, intent=intent, ours=ours)

    # -- starting -------------------------------------------------------------------------------------------------

    def _start(self) -> _Attached:
        token = str(uuid.uuid4())
        previous = self._previous
        log = launching.next_log(self.home)
        intent = Intent(
            token=token,
            owner=self.owner,
            until=self.until,
            series=previous.intent.series if previous else token,
            restarts=self.restarts,
            log=str(log),
        )
        self.log = log
        driver = launching.start(self.home, self.launch, intent)
        if previous is not None:
            restarts.relaunched(self.home.control / "restarts.json", previous.intent.token, time.time())
        _log.info("started %s", self.launch.printable)
        _log.info("driver pid %s, output in %s", driver.process.pid, log)
        return _Attached(driver=driver, intent=intent, ours=True)

    def _prepare_restart(self, attached: _Attached, error: ExactlyOnceError, died: float) -> None:
        """Record the death and wait until the next start.

        :raises ExactlyOnceError: when the strategy allows no restart
        :raises StopRequestedError: when somebody wants it stopped
        """
        delay = self.strategy.delay(error, self.restarts)
        if delay is None:
            raise error
        self.restarts += 1
        self._previous = attached
        status = verdict.status_of(self.home, attached.driver.token)
        restarts.append(
            self.home.control / "restarts.json",
            restarts.Restart(
                series=attached.intent.series,
                number=self.restarts,
                token=attached.driver.token,
                run=status.run if status else 0,
                commit=status.commit if status else 0,
                cause=str(error),
                exit_code=self._ended.exit_code,
                died=died,
            ),
        )
        _log.warning(
            "%s; restart %s in %.1f s from the retained checkpoint", error, self.restarts, delay.total_seconds()
        )
        deadline = time.monotonic() + delay.total_seconds()
        while True:
            # A stop that was meant for the driver that died is meant for its successor, too.
            reason = self.stopping or commands.stop_requested(self.home, attached.driver.token)
            if reason is not None:
                raise StopRequestedError(
                    f"stopped before restart {self.restarts}: {reason}; the driver had died: {error}"
                )
            left = deadline - time.monotonic()
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
            ended = driver.ended()
            now = time.monotonic()
            if ended is not None or now >= next_look:
                next_look = now + self.poll_seconds
                status = verdict.status_of(self.home, driver.token)
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
        if self.stopping is None and self.until == "available":
            raise StopRequestedError(
                f"somebody stopped the driver at {self._place(attached)}, before everything available was committed: "
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

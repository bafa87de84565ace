"""Stops a driver: asks it under a name, so that it is asked once; and by force: waits, then SIGTERM, then SIGKILL.

The force runs as a process of its own (``python -m airflow_provider_exactlyonce.control.stopping TOKEN SECONDS``),
because Airflow gives a killed task about ten seconds before it kills its process: too short for a batch to end. It
needs no home, and works while the home's file system does not answer.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import asdict, dataclass, replace
from typing import Final

from airflow_provider_exactlyonce.control import drivers, json_store, processes, requests
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.drivers import Death, FailureDetector, RunningDriver
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import DriverProcess, RemoteDriver
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError, is_no_answer

#: How long a driver has between SIGTERM and SIGKILL.
TERM_SECONDS: Final = 10.0
#: From a driver's last status to the end of its JVM.
EXIT_GRACE_SECONDS: Final = 30.0
#: A driver on another host, which only the home reaches, is asked again so often while that does not answer.
ASK_AGAIN_SECONDS: Final = 5.0
#: The overhead of a restart is mostly this.
POLL_SECONDS: Final = 0.1

_log = logging.getLogger(__name__)


def ask_and_enforce(home: Home, token: str, *, reason: str, timeout_seconds: float) -> None:
    """Stop the driver with this start token. May be repeated, also at the same time by several.

    On another host only the command reaches it.

    :param timeout_seconds: how long it may take to end its batch before it gets SIGTERM
    """
    requests.request_stop(home, token, reason=reason)
    _enforce(token, timeout_seconds)


def _enforce(token: str, timeout_seconds: float) -> None:
    driver = processes.leader(token)
    if driver is None:
        return
    for number, seconds in ((None, timeout_seconds), (signal.SIGTERM, TERM_SECONDS)):
        if number is not None:
            driver.signal(number)
        if poll_until(driver.ended, seconds=seconds, poll_seconds=POLL_SECONDS) is not None:
            return
    processes.kill_leftovers(token)


def detach(token: str, timeout_seconds: float) -> None:
    """Do the force of :func:`ask_and_enforce` in a process that outlives this one."""
    command = [sys.executable, "-m", __name__, token, str(timeout_seconds)]
    null = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=null, setsid=True)
    # A triggerer lives for months, and each task that is killed in it would leave a zombie. Not threading.Thread: this
    # is called in signal handlers, too, and the interrupted code may hold its lock.
    _thread.start_new_thread(_reap, (child,))


def stop_and_wait(
    home: Home, driver: DriverProcess, *, reason: str, timeout_seconds: float, owner: str | None = None
) -> None:
    """Do :func:`detach`, ask the driver until it is known to be asked, and wait for its end.

    May be called in a signal handler.

    :param timeout_seconds: how long it may take to end its batch before it gets SIGTERM
    :param owner: the task with which the driver ends
    """
    _log.info("asking the driver to stop: %s", reason)
    detach(driver.token, timeout_seconds)
    asking = PersistentStopRequest(home, driver.token, reason=reason, owner=owner)
    asking.go_on()

    def has_ended() -> bool:
        if _has_ended(driver):
            return True
        asking.go_on()
        return False

    allowed = timeout_seconds + TERM_SECONDS + EXIT_GRACE_SECONDS
    if not poll_until(has_ended, seconds=allowed, poll_seconds=POLL_SECONDS):
        driver.signal(signal.SIGKILL)  # the stopping process was killed, too, or can't reach it
        processes.kill_leftovers(driver.token)


def ask_for_savepoint(home: Home, token: str, *, label: str) -> None:
    """Ask a driver that is about to be stopped for a savepoint with its end; a home that does not answer gets none.

    May be repeated.

    :param token: the driver's start token
    :param label: what people call the savepoint
    """
    request = requests.SavepointRequest(request=token.replace("-", "")[:16], token=token, label=label, stop=True)
    try:
        requests.request_savepoint(home, request)
    except (OSError, OutcomeUnknownError) as error:
        if not is_no_answer(error):
            raise
        _log.warning("nobody knows whether the driver was asked for a savepoint: %s", error)


class PersistentStopRequest:
    """Asks a driver to stop until it is known to be asked: a home that does not answer now may do so later.

    :param owner: the task with which the driver ends, None for none
    """

    def __init__(self, home: Home, token: str, *, reason: str, owner: str | None) -> None:
        self._home: Final = home
        self._token: Final = token
        self._reason: Final = reason
        self._owner: Final = owner
        self._next_try = float("-inf")
        self._done = False

    def go_on(self) -> bool:
        """Ask unless that is done, or was tried just now; returns whether it is done."""
        if self._done or time.monotonic() < self._next_try:
            return self._done
        try:
            if self._owner is not None:
                requests.note_killed(self._home, self._token, self._owner)
            requests.request_stop(self._home, self._token, reason=self._reason)
            self._done = True
        except (OSError, OutcomeUnknownError) as error:
            if not is_no_answer(error):
                raise
            _log.warning("nobody knows whether the driver was asked: %s", error)
        self._next_try = time.monotonic() + ASK_AGAIN_SECONDS
        return self._done


def _has_ended(driver: DriverProcess) -> bool:
    """Whether it has, without waiting for our child: a signal handler may have interrupted just that."""
    if isinstance(driver, RemoteDriver):
        return driver.ended() is not None
    return processes.leader(driver.token) is None


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):  # somebody waits for all children here
        os.waitpid(child, 0)


@dataclass(frozen=True, kw_only=True)
class _DriverToStop:
    """The driver that a request is for.

    :param token: start token of the driver, None when the pipeline was stopped already
    :param series: start token of the first driver of its supervisor's restarts, None without a supervisor
    """

    token: str | None
    series: str | None = None


class StopRequest:
    """One request for a stop: asked again under the same name, it is asked once.

    The driver to stop is chosen at the first call and recorded in the home: ``commands/stop-<request>.json``. A
    repetition, as after a lost worker, waits for that same driver and does not stop a driver that was started since.

    A driver may die before it sees the stop, and its supervisor start the next driver meanwhile. Each side writes
    first and then reads: the request asks the dead driver and looks for another intent; the supervisor writes that
    intent and checks whether the dead driver was asked. So at least one of them sees the other, without waiting.

    :param request: hexadecimal digits; the same request is made once
    :param reason: for the driver's log and its supervisor
    :param detector: kept by a caller that polls
    """

    def __init__(self, home: Home, request: str, *, reason: str, detector: FailureDetector | None = None) -> None:
        self._home: Final = home
        self._detector: Final = detector or FailureDetector(home)
        self._file: Final = home.commands / f"stop-{request}.json"
        self._reason: Final = reason

    def target(self) -> str | None:
        """Return the start token of the driver that is to stop, None when none ran; decided at the first call.

        It moves on when that driver has died and the same supervisor has started another one.
        """
        return self._target().token

    def advance(self) -> bool:
        """Ask the driver if that is to be done, and return whether it has ended or is lost. Waits for no end."""
        token = self._target().token
        if token is None:
            return True
        # In this order: one that is started or comes up between two looks is in an earlier one, or there in the last.
        if (
            drivers.is_announced(self._home, token)
            or drivers.is_unheard(self._home, token)
            or drivers.is_there(self._home, token)
        ):
            self._ask(token)  # one that is lost, too: it may come back, and its supervisor starts no other then
            if not self._detector.is_lost(token):
                return False
        death = drivers.awaiting_restart(self._home)
        if death is not None and death.token == token:
            self._ask(token)
        return self._target().token == token

    def _target(self) -> _DriverToStop:
        target = json_store.load(self._file, _DriverToStop) or self._decide()
        if target.token is None or self._detector.is_there(target.token):
            return target
        intent = intents.read(self._home.intent)
        if intent is None or intent.series != target.series or intent.token == target.token:
            return target
        return self._record(replace(target, token=intent.token))

    def _decide(self) -> _DriverToStop:
        target: RunningDriver | Death | Intent | None = drivers.find_or_awaited(self._home)
        if target is None:  # one that its cluster makes wait counts as neither when it was asked already
            intent = intents.read(self._home.intent)
            target = intent if intent is not None and drivers.is_unheard(self._home, intent.token) else None
        if target is None:
            return self._record(_DriverToStop(token=None))
        return self._record(_DriverToStop(token=target.token, series=target.series))

    def _ask(self, token: str) -> None:
        if requests.stop_requested(self._home, token) is None:
            requests.request_stop(self._home, token, reason=self._reason)

    def _record(self, target: _DriverToStop) -> _DriverToStop:
        requests.forget_older(self._home.commands, "stop-*.json")
        json_store.write(self._file, asdict(target))
        return target


if __name__ == "__main__":
    _token, _seconds = sys.argv[1:]
    _enforce(_token, float(_seconds))

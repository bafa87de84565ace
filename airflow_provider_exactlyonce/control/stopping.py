"""Stops a driver: asks it, waits, then SIGTERM, then SIGKILL.

Runs as a process of its own (``python -m airflow_provider_exactlyonce.control.stopping HOME TOKEN SECONDS REASON``),
because Airflow gives a killed task about ten seconds before it kills its process: too short for a batch to end.
"""

from __future__ import annotations

import _thread
import contextlib
import logging
import os
import signal
import sys
from typing import Final

from airflow_provider_exactlyonce.control import commands, processes
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import DriverProcess, RemoteDriver
from airflow_provider_exactlyonce.polling import poll_until

#: How long a driver has between SIGTERM and SIGKILL.
TERM_SECONDS: Final = 10.0
#: From a driver's last status to the end of its JVM.
EXIT_GRACE_SECONDS: Final = 30.0
#: The overhead of a restart is mostly this.
POLL_SECONDS: Final = 0.1

_log = logging.getLogger(__name__)


def ask_and_enforce(home: Home, token: str, *, reason: str, timeout_seconds: float) -> None:
    """Stop the driver with this start token. May be repeated, also at the same time by several.

    On another host only the command reaches it.

    :param timeout_seconds: how long it may take to end its batch before it gets SIGTERM
    """
    commands.request_stop(home, token, reason=reason)
    driver = processes.leader(token)
    if driver is None:
        return
    for number, seconds in ((None, timeout_seconds), (signal.SIGTERM, TERM_SECONDS)):
        if number is not None:
            driver.signal(number)
        if poll_until(driver.ended, seconds=seconds, poll_seconds=POLL_SECONDS) is not None:
            return
    processes.kill_leftovers(token)


def detach(home: Home, token: str, *, reason: str, timeout_seconds: float) -> None:
    """Do :func:`ask_and_enforce` in a process that outlives this one; returns as soon as the driver is asked."""
    commands.request_stop(home, token, reason=reason)  # at once: the process below needs a moment to start
    command = [sys.executable, "-m", __name__, str(home.path), token, str(timeout_seconds), reason]
    null = [(os.POSIX_SPAWN_OPEN, descriptor, os.devnull, os.O_RDWR, 0) for descriptor in (0, 1, 2)]
    child = os.posix_spawn(sys.executable, command, os.environ, file_actions=null, setsid=True)
    # A triggerer lives for months, and each task that is killed in it would leave a zombie. Not threading.Thread: this
    # is called in signal handlers, too, and what they have interrupted may hold its lock.
    _thread.start_new_thread(_reap, (child,))


def stop_and_wait(home: Home, driver: DriverProcess, *, reason: str, timeout_seconds: float) -> None:
    """Do :func:`detach` and wait for the driver's end. May be called in a signal handler.

    :param timeout_seconds: how long it may take to end its batch before it gets SIGTERM
    """
    _log.info("asking the driver to stop: %s", reason)
    detach(home, driver.token, reason=reason, timeout_seconds=timeout_seconds)
    allowed = timeout_seconds + TERM_SECONDS + EXIT_GRACE_SECONDS
    if not poll_until(lambda: _has_ended(driver), seconds=allowed, poll_seconds=POLL_SECONDS):
        driver.signal(signal.SIGKILL)  # the stopping process was killed, too, or can't reach it
        processes.kill_leftovers(driver.token)


def _has_ended(driver: DriverProcess) -> bool:
    """Whether it has, without waiting for our child: a signal handler may have interrupted just that."""
    if isinstance(driver, RemoteDriver):
        return driver.ended() is not None
    return processes.leader(driver.token) is None


def _reap(child: int) -> None:
    with contextlib.suppress(ChildProcessError):  # somebody waits for all children here
        os.waitpid(child, 0)


if __name__ == "__main__":
    _location, _token, _seconds, _reason = sys.argv[1:]
    ask_and_enforce(Home(_location), _token, reason=_reason, timeout_seconds=float(_seconds))

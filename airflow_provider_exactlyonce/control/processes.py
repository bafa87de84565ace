"""The operating-system side of a driver: the processes that carry its start token.

A driver is several processes (spark-submit's JVM, the Python driver, Python workers) in a session of their own. All
inherit the start token in their environment, so they are found by it and never taken for others, whatever the pids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control.lease import HeartbeatMonitor, Liveness, heartbeat_seconds
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.storage.opening import store_of

#: Environment variable with the start token; the driver's settings read the same name.
TOKEN_VARIABLE: Final = "EXACTLYONCE_TOKEN"
#: Environment variable with the path of the driver's output; on a cluster it is not there.
OUTPUT_VARIABLE: Final = "EXACTLYONCE_OUTPUT"

_KILL_SECONDS: Final = 5.0
_EXEC_SECONDS: Final = 0.001
_EXEC_LOOKS: Final = 1000

#: Children that were started here and may be left by their supervisor: kept to be reaped once they end.
_children: Final[list[subprocess.Popen[bytes]]] = []


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a driver's process ended.

    :param exit_code: negative for a signal, None when it could not be seen
    :param account: what a cluster's manager says of it
    :param is_silence: it has only fallen silent, and may come back
    """

    exit_code: int | None
    account: str = ""
    is_silence: bool = False


class DriverProcess(ABC):
    """A started driver, as far as its processes go."""

    def __init__(self, token: str) -> None:
        self.token: Final = token

    @abstractmethod
    def ended(self) -> Ended | None:
        """Return how it ended, None while it lives. After an end no process of the driver is left on this host."""

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to all its processes on this host."""
        _signal_all(self.token, number)


class _Detached(subprocess.Popen[bytes]):
    """A child that is meant to outlive this process, which Python would warn of when the process ends."""

    def __del__(self) -> None:
        """Leave the child alone."""


class ChildDriver(DriverProcess):
    """A driver that this process has started."""

    def __init__(self, token: str, process: subprocess.Popen[bytes]) -> None:
        super().__init__(token)
        self.process: Final = process

    def ended(self) -> Ended | None:
        """Reap the child if it has ended."""
        code = self.process.poll()
        if code is None:
            return None
        kill_leftovers(self.token)
        return Ended(exit_code=code)


class FoundDriver(DriverProcess):
    """A driver that another process of this host has started; its exit code can't be seen.

    :param pid: the process that leads it
    :param process_started: its start time, see :func:`~airflow_provider_exactlyonce.process_identity.process_start`
    """

    def __init__(self, token: str, pid: int, process_started: int) -> None:
        super().__init__(token)
        self.pid: Final = pid
        self.process_started: Final = process_started

    def ended(self) -> Ended | None:
        """Ask the process table."""
        if process_identity.process_start(self.pid) == self.process_started:
            return None
        kill_leftovers(self.token)
        return Ended(exit_code=None)


class RemoteDriver(DriverProcess):
    """A driver on another host: only its lease tells whether it lives, only commands reach it."""

    def __init__(self, token: str, lease: Path) -> None:
        super().__init__(token)
        self._heartbeats: Final = HeartbeatMonitor(token, lease)
        self._pause: Final = store_of(lease).seconds_per_read
        self._heartbeat_seconds: Final = heartbeat_seconds(lease)
        self._looked_at = float("-inf")
        self._answered_at = time.monotonic()
        self._ended: Ended | None = None

    def ended(self) -> Ended | None:
        """Ask the lease; while it can't be read, nothing is known of an end."""
        elapsed = time.monotonic() - self._answered_at
        self._heartbeats.not_counting(
            max(0.0, elapsed - self._heartbeat_seconds)
        )  # the caller was held up, perhaps by other documents
        if time.monotonic() - self._looked_at >= self._pause:
            self._looked_at, self._ended = time.monotonic(), None
            with contextlib.suppress(OSError):
                life = self._heartbeats.look()
                self._ended = (
                    None if life is Liveness.ALIVE else Ended(exit_code=None, is_silence=life is Liveness.STALE)
                )
        self._answered_at = time.monotonic()
        return self._ended


class ExitedDriver(DriverProcess):
    """A driver that has ended unwatched.

    :param end: how, as far as it is known
    """

    def __init__(self, token: str, end: Ended) -> None:
        super().__init__(token)
        self._end: Final = end

    def ended(self) -> Ended | None:
        """Return what is known of its end."""
        return self._end


def environment_with(added: Mapping[str, str | None]) -> dict[str, str]:
    """Return this process's environment with more, or less.

    :param added: variables; None takes one out
    """
    return {name: value for name, value in {**os.environ, **added}.items() if value is not None}


def start(
    command: Sequence[str], *, token: str, environment: Mapping[str, str | None], directory: Path, log: Path
) -> ChildDriver:
    """Start a driver in a session of its own, so that it outlives this process.

    :param environment: as :func:`environment_with` takes it
    :param directory: its working directory, created if absent
    :param log: receives its output; created, readable by its owner only
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        process = _Detached(
            list(command),
            env=environment_with({**environment, TOKEN_VARIABLE: token, OUTPUT_VARIABLE: str(log)}),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    finally:
        os.close(descriptor)
    _children[:] = [*(child for child in _children if child.poll() is None), process]
    return ChildDriver(token, process)


def members(token: str) -> list[int]:
    """Return the processes of this host and user that carry a start token."""
    assignment = f"{TOKEN_VARIABLE}={token}".encode()
    # A zombie's environment is empty, so the dead are not counted.
    environments = {pid: _read(pid, "environ") or b"" for pid in process_identity.pids() if pid != os.getpid()}
    return [pid for pid, environment in environments.items() if assignment in environment.split(b"\0")]


def _read(pid: int, name: str) -> bytes | None:
    """Return a file of a process in /proc, None when it has ended or is another user's.

    While a process changes its program, as Spark's launchers do, it has neither arguments nor environment for a moment:
    then it is read again, but not for ever, as some container runtimes show less of a process than Linux does.
    """
    content = b""
    for _ in range(_EXEC_LOOKS):
        try:
            content = Path(f"/proc/{pid}/{name}").read_bytes()
        except OSError:
            return None
        if content or not process_identity.may_have_environment(pid):
            break
        time.sleep(_EXEC_SECONDS)
    return content


def leader(token: str) -> FoundDriver | None:
    """Return the driver with this start token if it runs on this host."""
    for pid in members(token):
        with contextlib.suppress(ProcessLookupError):
            started = process_identity.process_start(pid)
            if started is not None and os.getpgid(pid) == pid:
                return FoundDriver(token, pid, started)
    return None


def kill_leftovers(token: str) -> None:
    """Kill the remaining processes of a driver after its leader has ended, and wait for their end.

    Without its JVM the Python driver can do nothing any more; alive, it would keep its lease and block the next start.
    """
    poll_until(lambda: not _signal_all(token, signal.SIGKILL), seconds=_KILL_SECONDS, poll_seconds=0.02)


def _signal_all(token: str, number: signal.Signals) -> int:
    pids = members(token)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return len(pids)


#: A shell's exit code for a program that a signal has ended, less the signal.
SIGNALLED: Final = 128
_WORKERS: Final = b"\0pyspark."  # they run a module of PySpark's, or are given its name


def run_in_foreground(command: Sequence[str]) -> int:
    """Run a command that starts a driver from a terminal; Ctrl-C makes the driver stop in order.

    All of its output goes to stderr; returns its exit code.

    It has a process group of its own: a signal to the terminal's group, or to us, is passed to the driver only. Spark's
    JVM and the Python workers would end at once, each with a traceback, within the batch that the driver ends first.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), process_group=0)
    signalled: set[int] = set()

    def tell(number: int, _: object) -> None:
        drivers = set(_drivers(process.pid))
        with contextlib.suppress(ProcessLookupError):
            if not drivers or drivers <= signalled:  # none yet, or asked for the second time
                os.killpg(process.pid, number)
            for pid in drivers - signalled:
                os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
        signalled.update(drivers)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, tell)
    code = process.wait()
    return code if code >= 0 else SIGNALLED - code


def _drivers(jvm: int) -> list[int]:
    """Return the Python processes that spark-submit has started, but for those that run tasks."""
    children = [pid for pid in process_identity.pids() if process_identity.parent(pid) == jvm]
    commands = {pid: _read(pid, "cmdline") for pid in children}
    return [pid for pid, command in commands.items() if command is not None and _WORKERS not in command]

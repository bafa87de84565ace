"""An engine's processes: the one that was started and all that came of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil


class ProcessTree:
    """A program with all its descendants; what it prints goes to a file.

    :param log: appended to
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._output: IO[bytes] = open(log, "ab")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=self._output, stderr=subprocess.STDOUT
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def exit_code(self) -> int | None:
        return self._process.poll()

    def kill(self) -> None:
        """End all of it at once, as the loss of a machine would."""
        alive = list(_members(self.pid))
        for process in alive:  # none may start another one meanwhile
            with suppress(psutil.NoSuchProcess):
                process.suspend()
        for process in {*alive, *_members(self.pid)}:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        psutil.wait_procs(alive, timeout=30)
        self._output.close()

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process and its descendants, those that have ended among them."""
    total = 0.0
    for process in _members(pid):
        with suppress(psutil.NoSuchProcess):
            total += sum(process.cpu_times()[:4])  # user, system, and both of children that were waited for
    return total


def machine_cpu_seconds() -> float:
    """Return the CPU time that all processes of the machine have had."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq)


def own_cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system


def _members(pid: int) -> Iterator[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(pid)
        yield process
        yield from process.children(recursive=True)

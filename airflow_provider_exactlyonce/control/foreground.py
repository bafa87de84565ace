"""Runs spark-submit for somebody at a terminal, of whose Ctrl-C the driver makes a stop in order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_SIGNALLED: Final = 128  # a shell's exit code for a program that a signal has ended, less the signal
_WORKERS: Final = b"pyspark.daemon"


def run(command: Sequence[str]) -> int:
    """Run a command that starts a driver, with all of its output on stderr; returns its exit code.

    It has a process group of its own: of a signal to the terminal's, or to us, only the driver is told. Spark's JVM and
    the Python workers would end at once, each with a traceback, in the middle of the batch that the driver ends first.
    """
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr.fileno(), process_group=0)
    told: set[int] = set()

    def tell(number: int, _: object) -> None:
        drivers = set(_drivers(process.pid))
        with contextlib.suppress(ProcessLookupError):
            if not drivers or drivers <= told:  # none yet, or asked for the second time
                os.killpg(process.pid, number)
            for pid in drivers - told:
                os.kill(pid, signal.SIGTERM if number == signal.SIGHUP else number)
        told.update(drivers)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, tell)
    code = process.wait()
    return code if code >= 0 else _SIGNALLED - code


def _drivers(jvm: int) -> list[int]:
    """Return the Python processes that spark-submit has started, but for those that run tasks."""
    found = []
    for directory in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            is_child = directory.name.isdigit() and _parent(directory) == jvm
            if is_child and _WORKERS not in (directory / "cmdline").read_bytes():
                found.append(int(directory.name))
    return found


def _parent(directory: Path) -> int:
    return int((directory / "stat").read_text().rpartition(")")[2].split()[1])

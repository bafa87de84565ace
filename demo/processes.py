"""Starts processes, and ends all of them, whatever they have started themselves in the meantime."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import psutil

_PR_SET_CHILD_SUBREAPER: Final = 36
_GRACE_SECONDS: Final = 8.0
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A driver of the demo lives for seconds: with the quick compiler alone it takes half the processor time.
_FAST_START: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
#: Beginnings of variables that would point the demo's Airflow or Spark somewhere else.
FOREIGN: Final = ("AIRFLOW", "SPARK_", "PYSPARK_", "EXACTLYONCE_KAFKA", "EXACTLYONCE_TOKEN", "EXACTLYONCE_FAILPOINTS")


class Interrupted(BaseException):
    """Somebody asked the demo to end: Ctrl-C, SIGTERM, or a terminal that was closed."""


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies.

    A killed driver leaves its JVM, and a killed supervisor its driver; as our children they can still be found.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Turn these signals into :class:`Interrupted`, once; while the demo ends things, more of them are ignored."""

    def interrupt(number: int, _: object) -> None:
        for repeated in _ENDING:
            signal.signal(repeated, signal.SIG_IGN)
        raise Interrupted(signal.Signals(number).name)

    previous_handlers = {number: signal.signal(number, interrupt) for number in _ENDING}
    try:
        yield
    finally:
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def start(command: list[str], *, environment: Mapping[str, str], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, so that a terminal's Ctrl-C reaches the demo alone.

    :param environment: added to this process's, but for what other Airflows and Sparks are set up by
    :param log: where its output goes
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env={**inherited, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes]) -> None:
    """End a process in order, so that it can end what it started; by force when that takes too long."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def end_descendants(*, spared: frozenset[int] = frozenset()) -> None:
    """End by force what is left of everything that was started. Needs :func:`adopt_orphans`.

    :param spared: process ids that somebody else ends in order
    """
    while remaining := [child for child in psutil.Process().children(recursive=True) if child.pid not in spared]:
        for child in remaining:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        psutil.wait_procs(remaining, timeout=_GRACE_SECONDS)


def tail(log: Path, lines: int) -> str:
    """Return the end of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else "(no log)"


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter."""
    return [sys.executable, *arguments]


def spark_submit() -> str:
    """Return the spark-submit that belongs to this interpreter."""
    return str(Path(sys.executable).with_name("spark-submit"))


def spark_environment(folder: Path) -> dict[str, str]:
    """Return what a driver needs to run on this interpreter and to import what this one does.

    :param folder: for temporary files, which a killed driver leaves behind; made if absent
    """
    root = str(Path(__file__).parents[1])
    folder.mkdir(exist_ok=True)
    return {
        "TMPDIR": str(folder),
        "SPARK_LOCAL_DIRS": str(folder),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "JAVA_TOOL_OPTIONS": f"{_FAST_START} '-Djava.io.tmpdir={folder}'",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])),
    }

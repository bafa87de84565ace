"""Start the devkit's JVMs under their guard, and keep their output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import IO, Final

from airflow_provider_exactlyonce.devkit import guard
from airflow_provider_exactlyonce.devkit.errors import DevkitError
from airflow_provider_exactlyonce.devkit.process import ProcessIdentity

GUARD_TIMEOUT_SECONDS: Final = 10.0
LOG_TAIL_LINES: Final = 20
LOG_ROTATION_BYTES: Final = 16 * 1024 * 1024


def launch(
    command: list[str], data_directory: Path, log: IO[bytes], mode: str
) -> tuple[subprocess.Popen[bytes] | None, ProcessIdentity]:
    """Start a server in a session of its own.

    :param mode: ``guard.SUPERVISE`` to end it with this process, ``guard.DETACH`` to leave it running
    :return: the guard that has to be waited for once the server has ended (None when detached), and the server
    :raises DevkitError: when it ended at once
    """
    reading, writing = os.pipe()
    try:
        supervisor = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, mode, str(os.getpid()), str(writing), *command],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=data_directory,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C is for the owner, who then stops the server in order
        )
    finally:
        os.close(writing)
    with open(reading, encoding="ascii") as report:
        answer = report.read().strip()
    process = ProcessIdentity.of(int(answer)) if answer else None
    if process is None or mode == guard.DETACH:
        supervisor.wait(GUARD_TIMEOUT_SECONDS)
    if process is None:
        raise DevkitError(f"the broker ended as soon as it was started:\n{log_tail(log_path(data_directory))}")
    return (None if mode == guard.DETACH else supervisor), process


def log_path(data_directory: Path) -> Path:
    """Return where everything is logged that runs on this data."""
    return data_directory / "logs" / "server.log"


def open_log(path: Path) -> IO[bytes]:
    """Open the log for appending; one that has grown large is put aside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_ROTATION_BYTES:
        path.replace(path.with_suffix(".log.1"))
    return open(path, "ab")


def log_tail(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-LOG_TAIL_LINES:])

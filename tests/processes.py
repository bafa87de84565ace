"""What tests ask of processes on this machine; one that ends meanwhile, or is another user's, is passed over."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil


def command_line(pid: int) -> str:
    """Return its words, empty when it has ended."""
    with suppress(psutil.Error):
        return " ".join(psutil.Process(pid).cmdline())
    return ""


def is_stopped(pid: int) -> bool:
    """Tell whether it is frozen, by SIGSTOP."""
    return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)


def started_with(name: str, value: object) -> list[int]:
    """Return those that have a variable in their environment, whatever sessions they have made for themselves."""
    wanted, found = f"{name}={value}".encode(), []
    for pid in psutil.pids():
        with suppress(OSError):  # psutil itself reads no further than the gap that a process's title leaves
            if wanted in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.append(pid)
    return found

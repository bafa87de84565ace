"""Which process is meant: a pid alone may be another's by now, on another host, or in another container.

The start time is the kernel's, in clock ticks since boot, as leases, intents and the broker's state have recorded it
since 0.1.0. psutil tells it by the wall clock only, and a clock that is set would make a living driver look dead.
"""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

#: Flags of a process, from the kernel's include/linux/sched.h.
_EXITING, _KERNEL_THREAD = 0x4, 0x200000


def pids() -> list[int]:
    """Return the processes of this pid namespace; some may have ended by now."""
    return [int(directory.name) for directory in Path("/proc").iterdir() if directory.name.isdigit()]


def process_start(pid: int) -> int | None:
    """Return when a process of this host started, in clock ticks since boot; None when it has ended or is a zombie."""
    fields = _fields(pid)
    return None if not fields or fields[0] in ("Z", "X") else int(fields[19])


def parent(pid: int) -> int | None:
    """Return the pid of a process's parent, None when it has ended."""
    fields = _fields(pid)
    return int(fields[1]) if fields else None


def may_have_environment(pid: int) -> bool:
    """Whether a process with an empty environment may have one: it changes its program, or has just done so.

    The kernel's own processes never have one, and those that end have none any more.
    """
    fields = _fields(pid)
    if not fields or fields[0] in ("Z", "X") or int(fields[6]) & (_KERNEL_THREAD | _EXITING):
        return False
    code, start, end = (int(fields[index]) for index in (23, 47, 48))  # of its memory; the kernel notes the code's last
    return code == 0 or start != end


def _fields(pid: int) -> list[str]:
    """Return the fields from the state on, none when it has ended: the command before may hold brackets and blanks."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return status.rpartition(")")[2].split()


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the host."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@functools.cache
def this_machine() -> str:
    """Return a unique name of this host, its boot and this pid namespace."""
    return f"{socket.gethostname()} {boot_id()} {os.readlink('/proc/self/ns/pid')}"


def is_here(machine: str, host: str) -> bool:
    """Whether a process can be seen from this one.

    :param machine: its machine, as :func:`this_machine` has it; empty where an older release has noted its host only
    :param host: name of its host, which others may have, too
    """
    return machine == this_machine() if machine else host == socket.gethostname()

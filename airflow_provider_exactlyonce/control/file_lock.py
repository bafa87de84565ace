"""Locks of files in a home, which the kernel gives back when the process dies."""

from __future__ import annotations

import fcntl


def try_lock(descriptor: int) -> bool:
    """Lock an open file unless somebody else has; returns whether it is ours. Closing it lets go."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

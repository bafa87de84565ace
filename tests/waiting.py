"""Waiting for another thread, process or broker: for as long as a slow machine takes; only a hang ends it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

#: No machine is so slow, and pytest's own time-out (pyproject.toml) comes later: so the error says what didn't come.
HANG_SECONDS = 300.0

Found = TypeVar("Found")


def eventually(
    condition: Callable[[], Found | None],
    what: str | Callable[[], str],
    *,
    poll_seconds: float = 0.05,
    hang_seconds: float = HANG_SECONDS,
) -> Found:
    """Return the first true value of a condition; what is said of a hang may be found out then."""
    deadline = time.monotonic() + hang_seconds
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"it never came true: {what if isinstance(what, str) else what()}"
        time.sleep(poll_seconds)
    return answer


async def eventually_in_loop(condition: Callable[[], Found | None], what: str, *, poll_seconds: float = 0.01) -> Found:
    """Do the same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + HANG_SECONDS
    while not (answer := condition()):
        assert time.monotonic() < deadline, f"it never came true: {what}"
        await asyncio.sleep(poll_seconds)
    return answer

"""Asking again and again until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll_until(condition: Callable[[], T], *, seconds: float, poll_seconds: float) -> T:
    """Ask at once, and again until the answer is true or the time is over; returns the last answer.

    :param seconds: for so long at most
    :param poll_seconds: pause between two questions
    """
    deadline = time.monotonic() + seconds
    while not (answer := condition()) and (left := deadline - time.monotonic()) > 0:
        time.sleep(min(poll_seconds, left))
    return answer

"""Asking again and again until something has happened."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def poll_until(ask: Callable[[], T], *, seconds: float, poll_seconds: float, done: Callable[[T], object] = bool) -> T:
    """Ask at once, and again until the answer is the awaited one or the time is over; returns the last answer.

    :param seconds: for so long at most
    :param poll_seconds: pause between two questions
    :param done: whether an answer is the awaited one; by default, one that is true
    """
    deadline = time.monotonic() + seconds
    while not done(answer := ask()) and (remaining := deadline - time.monotonic()) > 0:
        time.sleep(min(poll_seconds, remaining))
    return answer


def retry_while(
    passes: Callable[[Exception], object], ask: Callable[[], T], *, seconds: float, poll_seconds: float
) -> T:
    """Ask at once, and again while it fails with an error that passes; after the time, the last error is raised.

    :param passes: whether an error may be another answer a little later; called before each pause, so it may also say
        so, or connect anew
    :param seconds: for so long at most
    :param poll_seconds: pause between two questions
    """
    deadline = time.monotonic() + seconds
    while True:
        try:
            return ask()
        except Exception as error:
            if (remaining := deadline - time.monotonic()) <= 0 or not passes(error):
                raise
        time.sleep(min(poll_seconds, remaining))

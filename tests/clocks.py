"""Clocks that a test gives to a module in the place of ``time``, so that nobody waits for a time limit; and rounds."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tests.waiting import HANG_SECONDS


class StandingClock:
    """Stands still, but for what is slept.

    :param now: seconds since the epoch
    :param meanwhile: what others do while somebody sleeps
    """

    def __init__(self, now: float = 1_000_000.0, *, meanwhile: Callable[[], object] = lambda: None) -> None:
        self.now = now
        self.meanwhile = meanwhile

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()


class AheadClock:
    """Goes as real time does, and can be put forward."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead

    def monotonic(self) -> float:
        return time.monotonic() + self.ahead

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Rounds:
    """Stands for the event that ends a thread which looks again and again: the thread looks when the test says so."""

    def __init__(self) -> None:
        self._waits = threading.Semaphore(0)
        self._goes_on = threading.Semaphore(0)
        self._is_set = False

    def wait(self, _: float) -> bool:
        self._waits.release()
        assert self._goes_on.acquire(timeout=HANG_SECONDS)
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        self._goes_on.release()

    def look(self) -> None:
        """Let the thread look once; returns when it has."""
        assert self._waits.acquire(timeout=HANG_SECONDS)
        self._goes_on.release()
        assert self._waits.acquire(timeout=HANG_SECONDS)
        self._waits.release()

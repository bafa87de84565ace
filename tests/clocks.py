"""Clocks that a test gives to a module in the place of ``time``, so that nobody waits for a time limit."""

from __future__ import annotations

import time


class StandingClock:
    """Stands still, but for what is slept."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


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

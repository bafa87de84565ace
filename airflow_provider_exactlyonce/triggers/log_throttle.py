"""How often tasks that wait in the triggerer may log.

The logs of triggers go through a socket whose other end stops reading while it hands over work, and both then wait for
ever (Airflow 3.3.2; with 500 tasks that log with each commit within seconds).
"""

from __future__ import annotations

import time
from typing import Final

QUIET_SECONDS: Final = 60.0
LINES_PER_SECOND: Final = 20  # of all together


class LogThrottle:
    """One task's leave to log, now and then."""

    _second = 0
    _lines = 0

    def __init__(self) -> None:
        self._spoken = float("-inf")

    def allow(self) -> bool:
        """Whether one line may be logged now; it counts as logged."""
        now = time.monotonic()
        if now - self._spoken < QUIET_SECONDS:
            return False
        if int(now) != LogThrottle._second:
            LogThrottle._second, LogThrottle._lines = int(now), 0
        if LogThrottle._lines >= LINES_PER_SECOND:
            return False
        LogThrottle._lines += 1
        self._spoken = now
        return True

"""How often tasks that wait in the triggerer may log.

The logs of triggers go through a socket whose other end stops reading while it hands over work, and both then wait for
ever (Airflow 3.3.2; with 500 tasks that log with each commit within seconds).
"""

from __future__ import annotations

import time
from typing import Final

QUIET_SECONDS: Final = 60.0
LINES_PER_SECOND: Final = 20  # of all together
_SHORTEST_SECONDS: Final = 1.0


class LogThrottle:
    """One task's leave to log, now and then."""

    _second = 0
    _lines = 0

    def __init__(self) -> None:
        self._logged_at = float("-inf")
        self._unlogged = ""

    @property
    def seconds(self) -> float:
        """After how long :meth:`line` is to be asked again, without news."""
        return (
            max(_SHORTEST_SECONDS, self._logged_at + QUIET_SECONDS - time.monotonic())
            if self._unlogged
            else float("inf")
        )

    def line(self, news: str | None = None) -> str:
        """Return the newest line that was not logged yet, and count it as logged; empty when none may be logged now.

        :param news: the new line, None when nothing has changed
        """
        self._unlogged = self._unlogged if news is None else news
        if not self._unlogged or not self._is_allowed():
            return ""
        line, self._unlogged = self._unlogged, ""
        return line

    def _is_allowed(self) -> bool:
        now = time.monotonic()
        if now - self._logged_at < QUIET_SECONDS:
            return False
        if int(now) != LogThrottle._second:
            LogThrottle._second, LogThrottle._lines = int(now), 0
        if LogThrottle._lines >= LINES_PER_SECOND:
            return False
        LogThrottle._lines += 1
        self._logged_at = now
        return True

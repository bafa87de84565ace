"""Moments: milliseconds since the epoch between the parts, ISO 8601 for people."""

from __future__ import annotations

from calendar import timegm
from datetime import UTC, datetime


def milliseconds(moment: datetime | str) -> int:
    """Return a moment in milliseconds since the epoch, the next one if it lies between two: no record is before it.

    :param moment: as ISO 8601 if it is text; without a zone it is UTC
    :raises ValueError: when the text is no time
    """
    time = moment if isinstance(moment, datetime) else datetime.fromisoformat(moment.strip())
    seconds = timegm((time if time.tzinfo else time.replace(tzinfo=UTC)).utctimetuple())
    return seconds * 1000 - (-time.microsecond // 1000)


def text(milliseconds: float, timespec: str = "auto") -> str:
    """Return a moment as ISO 8601 in UTC; the number itself of one outside the years 1 to 9999, as data can have.

    :param milliseconds: since the epoch
    :param timespec: how exact, as :meth:`datetime.datetime.isoformat` takes it
    """
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec=timespec)
    except (ValueError, OverflowError, OSError):  # which of them it is depends on the platform's C library
        return str(round(milliseconds))

"""Properties of a table that make it keep less than its format's defaults, so that versions may be gone too soon."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

_PART: Final = re.compile(r"(\d+) *(microsecond|millisecond|second|minute|hour|day|week)s?\b")
_SECONDS: Final = {
    "microsecond": 1e-6,
    "millisecond": 1e-3,
    "second": 1,
    "minute": 60,
    "hour": 3_600,
    "day": 86_400,
    "week": 604_800,
}


@dataclass(frozen=True, kw_only=True)
class _Retention:
    """One property.

    :param usual: the default, in the format's own words
    :param sink: the danger of less where a sink writes to the table
    :param source: the same where it is a source
    """

    usual: str
    sink: str
    source: str


_OF_SNAPSHOTS: Final = {
    "sink": "once snapshots expire, the audit can't compare older commits, and the table can't be set back to them",
    "source": "once snapshots expire, a pipeline that was stopped for longer, or is restored, can't go on: the newest "
    "snapshot that it has read is gone",
}
_RETENTIONS: Final = {
    "delta.deletedFileRetentionDuration": _Retention(
        usual="interval 7 days",
        sink="VACUUM removes what a batch that takes longer has written, and readers of its commit would miss the "
        "files; and RESTORE can't go back to older versions",
        source="VACUUM removes files that were replaced by a compaction, and a pipeline that was stopped for longer, "
        "or is restored, can't read them any more",
    ),
    "delta.logRetentionDuration": _Retention(
        usual="interval 30 days",
        sink="the audit can't compare older commits, and after a longer stop a RESTORE is not noticed",
        source="older versions are cleaned up, and a pipeline that was stopped for longer, or is restored, can't read "
        "them any more",
    ),
    "history.expire.max-snapshot-age-ms": _Retention(usual="432000000", **_OF_SNAPSHOTS),
    "history.expire.min-snapshots-to-keep": _Retention(usual="1", **_OF_SNAPSHOTS),
}


def dangers(properties: Mapping[str, str], role: Literal["sink", "source"]) -> list[str]:
    """Return a sentence for each property of a table that keeps less than usual, or that can't be read.

    :param properties: the table's
    :param role: the table's role in the pipeline
    """
    sentences = []
    for name, retention in _RETENTIONS.items():
        if (value := properties.get(name)) is None:
            continue
        kept, usual = _amount(value), _amount(retention.usual) or 0
        if kept is None or kept < usual:
            unreadable = "" if kept is not None else ", which can't be read"
            danger = retention.sink if role == "sink" else retention.source
            sentences.append(
                f"{name}={value!r}{unreadable}: {danger}. Keep {retention.usual!r} or more, which is the default: "
                f"ALTER TABLE … UNSET TBLPROPERTIES ('{name}')"
            )
    return sentences


def _amount(text: str) -> float | None:
    """Return a number, or the seconds of an interval; None when it is neither."""
    words = text.strip().lower().removeprefix("interval").strip()
    if words.isdecimal():
        return int(words)
    parts = _PART.findall(words)
    if not parts or _PART.sub("", words).strip():
        return None
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)

"""A request for a backfill, as a user gives it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self, cast

from airflow_provider_exactlyonce import codec, moments
from airflow_provider_exactlyonce.exceptions import RefusedError

_COMMITS: Final = re.compile(r"\s*(\d+)\s*\.\.\s*(\d+)\s*")
_NAME_DIGITS: Final = 16
_TOPIC: Final = "topic="

#: {topic: {partition: (start, end)}}, end exclusive
Offsets = Mapping[str, Mapping[int, tuple[int, int]]]


class BackfillState(StrEnum):
    """From which state the range is run."""

    SAVEPOINT = "savepoint"  # the state of the commit before it
    EMPTY = "empty"


class Output(StrEnum):
    """The use of the rows."""

    REEMIT = "reemit"  # into the sink itself
    TOPIC = "topic"  # to another topic
    COMPARE = "compare"  # with the delivered rows


@dataclass(frozen=True, kw_only=True)
class BackfillRequest:
    """A range of a pipeline's source, and how it is run again. Exactly one of the first four says the range.

    :param commits: first and last commit
    :param offsets: source offsets; partitions that it does not name are not read
    :param watermark: (after, up to), milliseconds since the epoch: the commits after the commit that reached the first,
        up to the commit that reached the second
    :param time: (start, end), milliseconds since the epoch, end exclusive: per partition from the first record with the
        timestamp ``start`` or a later one, to the first one with ``end`` or a later one
    :param state: ``savepoint``: the state that the range began with; ``empty``: nothing but ``warm_up``
    :param warm_up: with empty state: what before the range is run without output; a number of commits, or a timedelta
        for a range of time
    :param output: ``reemit``, ``compare`` or ``topic=NAME``
    :raises RefusedError: when the values do not go together
    """

    commits: tuple[int, int] | None = None
    offsets: Offsets | None = None
    watermark: tuple[int, int] | None = None
    time: tuple[int, int] | None = None
    state: BackfillState = BackfillState.SAVEPOINT
    warm_up: int | timedelta | None = None
    output: str = Output.COMPARE

    def __post_init__(self) -> None:
        given = [name for name in ("commits", "offsets", "watermark", "time") if getattr(self, name) is not None]
        if len(given) != 1:
            raise RefusedError(
                "a backfill has exactly one range: commits, offsets, watermark or time; given: "
                f"{', '.join(given) or 'none'}"
            )
        if self.state not in list(BackfillState):
            raise RefusedError(f"state {self.state!r} of a backfill: {' or '.join(BackfillState)}")
        object.__setattr__(self, "state", BackfillState(self.state))  # its name will do
        if self.output not in (Output.REEMIT, Output.COMPARE) and not self.topic:
            raise RefusedError(f"output {self.output!r} of a backfill: reemit, compare or topic=NAME")
        self._check_range()
        self._check_warm_up()

    def _check_range(self) -> None:
        if self.commits is not None and not 1 <= self.commits[0] <= self.commits[1]:
            raise RefusedError(
                f"commits {self.commits[0]}..{self.commits[1]}: the first is at least 1 and not above the last"
            )
        for kind, span in (("watermark", self.watermark), ("time", self.time)):
            if span is not None and not span[0] < span[1]:
                raise RefusedError(
                    f"the range of {kind} from {moments.text(span[0])} to {moments.text(span[1])} is empty: its end "
                    "must be later"
                )
        for topic, partitions in (self.offsets or {}).items():
            for partition, (start, end) in partitions.items():
                if not 0 <= start <= end:
                    raise RefusedError(f"offsets {start} to {end} of {topic}-{partition} are no range")
        if self.offsets is not None and not any(self.offsets.values()):
            raise RefusedError("a range of offsets names at least one partition")

    def _check_warm_up(self) -> None:
        if self.warm_up is None:
            return
        if self.state is not BackfillState.EMPTY:
            raise RefusedError("warm_up goes with state 'empty': a savepoint has the state already")
        if isinstance(self.warm_up, timedelta) and self.time is None:
            raise RefusedError(
                "warm_up is a duration, and only a range of time has a moment to count back from: give a number of "
                "commits"
            )
        if (self.warm_up.total_seconds() if isinstance(self.warm_up, timedelta) else self.warm_up) <= 0:
            raise RefusedError(f"warm_up {self.warm_up}: above 0")

    @property
    def kind(self) -> Output:
        """The use of the rows, without the topic's name."""
        return Output.TOPIC if self.topic else Output(self.output)

    @property
    def topic(self) -> str | None:
        """The other topic that the rows go to, None for none."""
        return self.output.removeprefix(_TOPIC) or None if self.output.startswith(_TOPIC) else None

    @property
    def name(self) -> str:
        """Hexadecimal digits that tell this request from others."""
        return digits(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        seconds = self.warm_up.total_seconds() if isinstance(self.warm_up, timedelta) else None
        return {
            "commits": list(self.commits) if self.commits else None,
            "offsets": ranges_to_json(self.offsets) if self.offsets is not None else None,
            "watermark": list(self.watermark) if self.watermark else None,
            "time": list(self.time) if self.time else None,
            "state": self.state.value,
            "warm_up_commits": self.warm_up if seconds is None else None,
            "warm_up_seconds": seconds,
            "output": str(self.output),
        }

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """Read the result of :meth:`to_json`.

        :raises RefusedError: when it can't be read
        """
        seconds = body.get("warm_up_seconds")
        warm_up = body.get("warm_up_commits") if seconds is None else timedelta(seconds=seconds)
        return codec.load(cls, {**body, "warm_up": warm_up}, "the request of a backfill")

    @classmethod
    def parse(
        cls,
        *,
        commits: str | tuple[int, int] | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        watermark: tuple[datetime | str, datetime | str] | str | None = None,
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        state: str = BackfillState.SAVEPOINT,
        warm_up: timedelta | int | str | None = None,
        output: str = Output.COMPARE,
    ) -> Self:
        """Read a request as people and rendered templates write it. A time without a zone is UTC.

        :param commits: ``A..B``
        :param offsets: ``{topic: {partition: [start, end]}}``, or the same as JSON
        :param watermark: ``FROM..TO``
        :param warm_up: a number of commits, or a duration: a timedelta, or text as ``90s``, ``30m``, ``2h``, ``1d``
        :raises RefusedError: naming the value that can't be read
        """
        if (start is None) != (end is None):
            raise RefusedError("a range of time has a start and an end")
        return cls(
            commits=_commits(commits) if commits is not None else None,
            offsets=_offsets(offsets) if offsets is not None else None,
            watermark=_watermark(watermark) if watermark is not None else None,
            time=(_milliseconds("start", start), _milliseconds("end", end))
            if start is not None and end is not None
            else None,
            state=cast(BackfillState, state),  # which is checked above
            warm_up=_warm_up(warm_up),
            output=str(output),
        )


def digits(body: Mapping[str, Any]) -> str:
    """Return hexadecimal digits that tell JSON values from others."""
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:_NAME_DIGITS]


def ranges_to_json(ranges: Offsets) -> dict[str, dict[str, list[int]]]:
    """Return source ranges as JSON values."""
    return {
        topic: {str(partition): list(span) for partition, span in sorted(partitions.items())}
        for topic, partitions in sorted(ranges.items())
    }


def _milliseconds(name: str, value: datetime | str) -> int:
    try:
        return moments.milliseconds(value)
    except ValueError:
        raise RefusedError(f"{name}={value!r} is no time as 2026-01-31T12:00:00+00:00") from None


def _commits(value: str | tuple[int, int]) -> tuple[int, int]:
    if not isinstance(value, str):
        first, last = value
        return int(first), int(last)
    match = _COMMITS.fullmatch(value)
    if match is None:
        raise RefusedError(f"commits={value!r} is not FIRST..LAST, as in 17..25")
    return int(match[1]), int(match[2])


def _offsets(value: Mapping[str, Mapping[Any, Any]] | str) -> Offsets:
    try:
        ranges = json.loads(value) if isinstance(value, str) else value
        return {
            topic: {int(partition): (int(start), int(end)) for partition, (start, end) in partitions.items()}
            for topic, partitions in ranges.items()
        }
    except (ValueError, TypeError, AttributeError):
        raise RefusedError(
            f"offsets={value!r} is not {{topic: {{partition: [start, end]}}}}, as in "
            '{"shop.events": {"0": [0, 100]}}'
        ) from None


def _watermark(value: tuple[datetime | str, datetime | str] | str) -> tuple[int, int]:
    parts = value.split("..") if isinstance(value, str) else list(value)
    if len(parts) != 2:
        raise RefusedError(f"watermark={value!r} is not FROM..TO, two times")
    return _milliseconds("watermark", parts[0]), _milliseconds("watermark", parts[1])


_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _warm_up(value: timedelta | int | str | None) -> timedelta | int | None:
    if value is None or isinstance(value, timedelta | int):
        return value
    text = value.strip()
    if text.isdecimal():
        return int(text)
    if text[:-1].isdecimal() and text[-1:] in _UNITS:
        return timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
    raise RefusedError(f"warm_up={value!r} is neither a number of commits nor a duration as 90s, 30m, 2h or 1d")

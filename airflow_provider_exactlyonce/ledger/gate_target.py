"""Up to where a pipeline's output must be readable, as people write it and as the ledger is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Self

from airflow_provider_exactlyonce import moments

if TYPE_CHECKING:  # a DAG file imports this module, and the records are dear to import
    from airflow_provider_exactlyonce.ledger.records import CommitRecord

_EARLIEST_MILLISECONDS: Final = 100_000_000_000  # 1973; a smaller number is seconds by mistake

#: {topic: {partition: offset}}, the offset after the last record
Offsets = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, kw_only=True)
class GateTarget:
    """Up to where a pipeline's output must be readable; exactly one is set.

    :param commit: number of a commit
    :param watermark: event time, milliseconds since the epoch
    :param offsets: source offsets; everything before them must be in a commit
    :param timestamp: milliseconds since the epoch; every source record before the first one of this time or later
    :param up_to_now: everything that is in the source when that is asked first
    :raises ValueError: when not exactly one is set
    """

    commit: int | None = None
    watermark: int | None = None
    offsets: Offsets | None = None
    timestamp: int | None = None
    up_to_now: bool | None = None

    def __post_init__(self) -> None:
        check_one("a gate", vars(self))

    @property
    def is_resolved(self) -> bool:
        """Whether it says the same whenever it is asked for; else it becomes offsets first."""
        return self.timestamp is None and self.up_to_now is None

    @classmethod
    def parse(
        cls,
        *,
        commit: int | str | None = None,
        watermark: datetime | str | int | None = None,
        offsets: Mapping[str, Mapping[Any, Any]] | str | None = None,
        timestamp: datetime | str | int | None = None,
        up_to_now: bool | None = None,
    ) -> Self:
        """Read a target as people and rendered templates write it.

        :param watermark: a time of day without a zone is UTC; a number is milliseconds since the epoch
        :param offsets: a mapping, or the same as JSON
        :raises ValueError: naming the value that can't be read
        """
        return cls(
            commit=None if commit is None else _number("commit", commit),
            watermark=None if watermark is None else _milliseconds("watermark", watermark),
            offsets=None if offsets is None else _offsets(offsets),
            timestamp=None if timestamp is None else _milliseconds("timestamp", timestamp),
            up_to_now=up_to_now or None,
        )

    @property
    def is_empty(self) -> bool:
        """Whether a pipeline that has committed nothing meets it: of an empty source there is nothing to wait for."""
        if self.offsets is not None:
            return not any(offset for partitions in self.offsets.values() for offset in partitions.values())
        return self.commit == 0

    def to_json(self) -> dict[str, Any]:
        """Return JSON values from which :meth:`parse` makes an equal target; they are the same after that."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return {name: value for name, value in values.items() if value is not None}

    def missing(self, newest: CommitRecord) -> list[str]:
        """Return a text for each part of the target that the newest commit does not reach; empty when it is met."""
        if self.commit is not None:
            short = self.commit - newest.commit
            return [f"commit {newest.commit} of {self.commit}: {short} missing"] if short > 0 else []
        if self.watermark is not None:
            return _missing_watermark(self.watermark, newest)
        if self.offsets is not None:
            return _missing_offsets(self.offsets, newest)
        raise ValueError(f"{self} has to be resolved to offsets first")


def check_one(who: str, given: Mapping[str, object]) -> None:
    """Check that exactly one target is given.

    :param given: all that there are, by name
    :raises ValueError: naming those that are
    """
    names = [name for name, value in given.items() if value is not None and value is not False]
    if len(names) != 1:
        raise ValueError(f"{who}: give exactly one of {', '.join(given)}; given: {', '.join(names) or 'none'}")


def _missing_watermark(wanted: int, newest: CommitRecord) -> list[str]:
    if newest.watermark <= 0:
        return [
            f"commit {newest.commit} has no watermark; a job without withWatermark() never has one, "
            "and the first batches of a stream have none"
        ]
    short = wanted - newest.watermark
    if short <= 0:
        return []
    return [f"watermark {moment(newest.watermark)} is {span(short)} short of {moment(wanted)}"]


def _missing_offsets(wanted: Offsets, newest: CommitRecord) -> list[str]:
    problems = []
    for topic, partitions in sorted(wanted.items()):
        for partition, offset in sorted(partitions.items()):
            committed = newest.source.get(topic, {}).get(partition)
            if committed is None and offset > 0:
                problems.append(f"{topic}-{partition}: commit {newest.commit} does not read it, {offset} wanted")
            elif committed is not None and committed[1] < offset:
                problems.append(f"{topic}-{partition}: committed up to {committed[1]} of {offset}")
    return problems


def _number(name: str, value: object) -> int:
    try:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        number = int(value)
        if number < 0:
            raise ValueError
    except ValueError:
        raise ValueError(f"{name}={value!r} is not a whole number from 0 on") from None
    return number


def _milliseconds(name: str, value: datetime | str | int) -> int:
    if isinstance(value, str) and not value.strip().isdigit():
        try:
            return moments.milliseconds(value)
        except ValueError:
            raise ValueError(f"{name}={value!r} is neither a time in ISO 8601 nor a number") from None
    if isinstance(value, datetime):
        return moments.milliseconds(value)
    number = _number(name, value)
    if number < _EARLIEST_MILLISECONDS:
        raise ValueError(f"{name}={value!r} must be milliseconds since the epoch; {number} would be {moment(number)}")
    return number


def _offsets(value: Mapping[str, Mapping[Any, Any]] | str) -> Offsets:
    error = ValueError(f"offsets={value!r} is not {{topic: {{partition: offset}}}} with at least one partition")
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            raise error from None
    if not isinstance(value, Mapping) or not all(isinstance(part, Mapping) and part for part in value.values()):
        raise error
    offsets = {
        str(topic): {
            _number(f"partition of {topic}", partition): _number(f"offset of {topic}-{partition}", offset)
            for partition, offset in partitions.items()
        }
        for topic, partitions in value.items()
    }
    if not offsets:
        raise error
    return offsets


def moment(milliseconds: int) -> str:
    """Write a point of time as people read it."""
    return moments.text(milliseconds, "milliseconds" if milliseconds % 1000 else "seconds").replace("+00:00", "Z")


def span(milliseconds: int) -> str:
    """Write a duration as people read it."""
    seconds = milliseconds / 1000
    if seconds < 120:
        return f"{seconds:.3g} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86_400:.1f} days"

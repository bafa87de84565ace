"""When a run of a pipeline is done: the values of ``until``, and their text form for the driver's ``--until``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import ClassVar, Final

from airflow_provider_exactlyonce import moments

AVAILABLE: Final = "available"
FOREVER: Final = "forever"
RUNNING: Final = "running"  # the task's end, not the driver's, which runs for ever then

#: Their description, for the message on a wrong one.
FORMS: Final = "available, forever, commits:N, watermark:TIME (ISO 8601, after 1970-01-01 00:00) or duration:SECONDS"


@dataclass
class Commits:
    """After so many commits, counted from the first start on.

    :param number: at least 1. (templated)
    """

    template_fields: ClassVar[Sequence[str]] = ("number",)
    number: int | str

    def __str__(self) -> str:
        return f"{Bound.COMMITS.value}:{self.number}"


@dataclass
class Watermark:
    """When the output is complete up to a time: a commit's watermark is there.

    :param time: event time; without a zone it is UTC. (templated)
    """

    template_fields: ClassVar[Sequence[str]] = ("time",)
    time: datetime | str

    def __str__(self) -> str:
        return f"{Bound.WATERMARK.value}:{self.time}"


class Bound(Enum):
    """The bound of a run that would otherwise go on for ever."""

    COMMITS = "commits"  # a number of commits
    WATERMARK = "watermark"  # milliseconds since the epoch
    DURATION = "duration"  # seconds


@dataclass(frozen=True, kw_only=True)
class RunTarget:
    """A bound and how far it is; the unit is the bound's."""

    bound: Bound
    value: float


def text_of(until: str | Commits | Watermark | timedelta) -> str:
    """Return the checked text form of ``until``.

    :param until: a ``timedelta`` or a ``pendulum.Duration`` counts from the first start on
    :raises ValueError: when it is no value of ``until``
    """
    text = (
        f"{Bound.DURATION.value}:{until.total_seconds():.15g}" if isinstance(until, timedelta) else str(until).strip()
    )
    if text not in (AVAILABLE, FOREVER, RUNNING):
        target_of(text)
    return text


def target_of(text: str) -> RunTarget | None:
    """Return a run's target, None for a run that ends with the available records, or never.

    :param text: as the driver's ``--until`` takes it
    :raises ValueError: when it is in none of the forms
    """
    if text in (AVAILABLE, FOREVER):
        return None
    name, colon, value_text = text.partition(":")
    try:
        bound = Bound(name)
        value = float(moments.milliseconds(value_text)) if bound is Bound.WATERMARK else float(value_text)
        is_valid = value.is_integer() and value >= 1 if bound is Bound.COMMITS else value > 0
    except ValueError:
        is_valid = False
    if not colon or not is_valid:
        raise ValueError(f"until={text!r}: one of {FORMS}")
    return RunTarget(bound=bound, value=value)

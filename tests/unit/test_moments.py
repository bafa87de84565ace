"""Moments as the parts exchange them and as people write them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pendulum
import pytest

from airflow_provider_exactlyonce import moments

NOON = 1_795_262_400_000


@pytest.mark.parametrize(
    "moment",
    [
        "2026-11-21T12:00:00",
        " 2026-11-21 12:00:00Z ",
        "2026-11-21T13:00:00+01:00",
        datetime(2026, 11, 21, 12),
        datetime(2026, 11, 21, 12, tzinfo=UTC),
        pendulum.datetime(2026, 11, 21, 7, tz="America/New_York"),
    ],
)
def test_a_moment_without_a_zone_is_utc(moment: datetime | str) -> None:
    assert moments.milliseconds(moment) == NOON


@pytest.mark.parametrize("kind", [datetime, pendulum.datetime])
def test_a_moment_between_two_milliseconds_is_the_next_one(kind: Callable[..., datetime]) -> None:
    for microseconds, milliseconds in ((0, 0), (1, 1), (999, 1), (1000, 1), (1001, 2)):
        assert moments.milliseconds(kind(2026, 11, 21, 12, 0, 0, microseconds)) == NOON + milliseconds
        before = kind(1969, 12, 31, 23, 59, 59, 999_000 + microseconds) if microseconds < 1000 else None
        assert before is None or moments.milliseconds(before) == -1 + milliseconds


def test_a_text_that_is_no_time_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="noon"):
        moments.milliseconds("noon")


def test_people_read_iso_8601_in_utc() -> None:
    assert moments.text(NOON) == "2026-11-21T12:00:00+00:00"
    assert moments.text(NOON + 5, "milliseconds") == "2026-11-21T12:00:00.005+00:00"
    assert moments.milliseconds(moments.text(NOON + 5)) == NOON + 5


@pytest.mark.parametrize("milliseconds", [253_402_300_800_000, 1_767_225_600_000_000, 2**63 - 1, -62_135_596_800_001])
def test_a_moment_that_no_calendar_has_is_its_number(milliseconds: int) -> None:
    """Event times are data: one in microseconds takes a watermark to the year 57970."""
    assert moments.text(milliseconds, "seconds") == str(milliseconds)

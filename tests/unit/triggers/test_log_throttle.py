"""What a task that waits may log, and when."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.triggers import log_throttle
from airflow_provider_exactlyonce.triggers.log_throttle import LINES_PER_SECOND, QUIET_SECONDS, LogThrottle
from tests.clocks import StandingClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(log_throttle, "time", clock)
    monkeypatch.setattr(LogThrottle, "_lines", 0)
    return clock


def test_what_came_too_soon_is_said_later_once_and_only_the_newest(clock: StandingClock) -> None:
    throttle = LogThrottle()
    assert throttle.line("the driver runs") == "the driver runs"
    assert throttle.seconds == float("inf"), "nothing is left to be said"
    clock.now += 10
    assert throttle.line("the home does not answer") == throttle.line("the home still does not answer") == ""
    assert throttle.seconds == QUIET_SECONDS - 10
    clock.now += throttle.seconds
    assert throttle.line() == "the home still does not answer"
    assert throttle.line("the home does not answer") == throttle.line("") == ""
    clock.now += QUIET_SECONDS
    assert throttle.line() == "", "it answers again"


def test_of_many_at_once_some_are_said_a_second_later(clock: StandingClock) -> None:
    throttles = [LogThrottle() for _ in range(LINES_PER_SECOND + 1)]
    assert [throttle.line("news") for throttle in throttles] == ["news"] * LINES_PER_SECOND + [""]
    assert throttles[-1].seconds > 0
    clock.now += throttles[-1].seconds
    assert throttles[-1].line() == "news"

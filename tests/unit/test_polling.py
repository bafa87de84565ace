"""Asking until something has happened, by a clock that only sleeping moves."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce import polling


class SleptClock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleptClock:
    clock = SleptClock()
    monkeypatch.setattr(polling, "time", clock)
    return clock


def test_the_answer_is_returned_as_soon_as_it_is_true(clock: SleptClock) -> None:
    answers = iter([None, "", "so"])
    assert polling.poll_until(lambda: next(answers), seconds=60, poll_seconds=1) == "so"
    assert clock.now == 2


def test_it_asks_at_the_deadline_for_the_last_time(clock: SleptClock) -> None:
    asked: list[float] = []
    assert polling.poll_until(lambda: asked.append(clock.now), seconds=2.5, poll_seconds=1) is None
    assert asked == [0, 1, 2, 2.5]


def test_without_any_time_it_asks_once(clock: SleptClock) -> None:
    asked: list[float] = []
    polling.poll_until(lambda: asked.append(clock.now), seconds=0, poll_seconds=1)
    assert asked == [0]


def test_an_answer_may_be_awaited_that_is_not_just_true(clock: SleptClock) -> None:
    answers = iter([1, 2, 3])
    assert polling.poll_until(lambda: next(answers), done=lambda answer: answer > 2, seconds=60, poll_seconds=1) == 3
    assert polling.poll_until(lambda: 1, done=lambda answer: answer > 2, seconds=60, poll_seconds=1) == 1


class BusyError(Exception):
    pass


def is_busy(error: Exception) -> bool:
    return isinstance(error, BusyError)


def test_an_error_that_passes_is_asked_through(clock: SleptClock) -> None:
    errors = [BusyError(), BusyError()]

    def ask() -> str:
        if errors:
            raise errors.pop()
        return "so"

    assert polling.retry_while(is_busy, ask, seconds=60, poll_seconds=1) == "so"
    assert clock.now == 2


def test_the_last_error_is_raised_when_the_time_is_over(clock: SleptClock) -> None:
    asked: list[float] = []

    def ask() -> None:
        asked.append(clock.now)
        raise BusyError(len(asked))

    with pytest.raises(BusyError, match="4"):
        polling.retry_while(is_busy, ask, seconds=2.5, poll_seconds=1)
    assert asked == [0, 1, 2, 2.5]


def test_any_other_error_is_raised_at_once(clock: SleptClock) -> None:
    with pytest.raises(ZeroDivisionError):
        polling.retry_while(is_busy, lambda: 1 // 0, seconds=60, poll_seconds=1)
    assert clock.now == 0

"""The restart strategies: they hold nothing, so a list of outages is all they need."""

from __future__ import annotations

import statistics
from datetime import timedelta
from itertools import pairwise

import pytest

from airflow_provider_exactlyonce.exceptions import (
    BadRecordError,
    BatchFailedError,
    DataLostError,
    DriverFailedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
)
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import Outage, RestartStrategy

LOST = DriverFailedError("killed by signal 9")


def seconds(strategy: RestartStrategy, *deaths: float, ran: float = 1.0) -> float | None:
    """Return the delay after the last of these deaths, each ``ran`` seconds after its driver's start."""
    past = [
        Outage(died=died, relaunched=following - ran, number=number)
        for number, (died, following) in enumerate(pairwise(deaths), 1)
    ]
    delay = strategy.delay(LOST, past, deaths[-1])
    return None if delay is None else delay.total_seconds()


def test_a_fixed_delay_is_the_same_for_a_number_of_restarts() -> None:
    strategy = RestartStrategy.fixed_delay(attempts=2, delay=timedelta(seconds=7))
    assert [seconds(strategy, *range(number)) for number in (1, 2, 3)] == [7, 7, None]


def test_a_number_of_restarts_is_counted_beyond_the_outages_that_are_remembered() -> None:
    strategy = RestartStrategy.fixed_delay(attempts=300, delay=timedelta(seconds=7))
    remembered = [Outage(died=0, number=number) for number in range(101, 301)]
    assert strategy.delay(LOST, remembered[:-1], 1.0) == timedelta(seconds=7)
    assert strategy.delay(LOST, remembered, 1.0) is None


def test_more_failures_within_a_time_than_are_remembered_can_not_be_counted() -> None:
    with pytest.raises(ValueError, match="max_failures=201: at most 200, for so many failures are remembered"):
        RestartStrategy.failure_rate(max_failures=201)
    with pytest.raises(ValueError, match="max_restarts=201: at most 200, for so many failures are remembered"):
        HealthRules(max_restarts=201)
    RestartStrategy.failure_rate(max_failures=200)
    HealthRules(max_restarts=200)


def test_the_default_exponential_delay_grows_from_a_second_to_a_minute_and_never_ends() -> None:
    strategy = RestartStrategy.exponential(jitter=0)
    delays = [seconds(strategy, *(100.0 * death for death in range(number))) for number in range(1, 15)]
    assert delays[:4] == [1, 1.5, 2.25, 3.375]
    assert delays[9] == pytest.approx(1.5**9)
    assert delays[11:] == [60, 60, 60]


def test_a_driver_that_has_run_long_enough_resets_the_delay() -> None:
    strategy = RestartStrategy.exponential(jitter=0, reset_after=timedelta(minutes=10))
    assert seconds(strategy, 0, 100, 200) == 2.25
    assert seconds(strategy, 0, 100, 900, ran=599) == 2.25
    assert seconds(strategy, 0, 100, 900, ran=600) == 1
    times = enumerate([(0, 10), (900, 901), (950, 951)], 1)
    grown = [Outage(died=died, relaunched=relaunched, number=number) for number, (died, relaunched) in times]
    assert strategy.delay(LOST, grown, 990.0) == timedelta(seconds=2.25), "it grows again after the reset"


def test_an_outage_without_a_known_start_counts_from_the_death() -> None:
    strategy = RestartStrategy.exponential(jitter=0, reset_after=timedelta(minutes=10))
    assert strategy.delay(LOST, [Outage(died=0, number=1)], 700.0) == timedelta(seconds=1)


def test_the_jitter_spreads_delays_either_way_and_within_the_bounds() -> None:
    strategy = RestartStrategy.exponential(jitter=0.1)
    middle = [seconds(strategy, 0, 100, 200) or 0 for _ in range(400)]
    assert 2.025 <= min(middle) < 2.1 < 2.4 < max(middle) <= 2.475
    assert statistics.mean(middle) == pytest.approx(2.25, abs=0.04)
    assert {(seconds(strategy, 0) or 0) >= 1 for _ in range(100)} == {True}
    assert max(seconds(strategy, *(100.0 * death for death in range(20))) or 0 for _ in range(100)) <= 60


def test_a_failure_rate_allows_so_many_failures_in_any_interval() -> None:
    strategy = RestartStrategy.failure_rate(max_failures=3, interval=timedelta(minutes=5), delay=timedelta(seconds=2))
    assert [seconds(strategy, *range(number)) for number in (1, 2, 3, 4)] == [2, 2, 2, None]
    assert seconds(strategy, 0, 100, 200, 300) is None
    assert seconds(strategy, 0, 100, 200, 301) == 2, "the first is out of the interval"
    assert seconds(RestartStrategy.failure_rate(), 0, 61) == 1
    assert seconds(RestartStrategy.failure_rate(), 0, 60) is None


def test_none_never_restarts() -> None:
    assert seconds(RestartStrategy.none(), 0) is None


@pytest.mark.parametrize(
    "strategy",
    [
        RestartStrategy.fixed_delay(5, timedelta(0)),
        RestartStrategy.exponential(),
        RestartStrategy.failure_rate(5),
    ],
    ids=lambda strategy: type(strategy).__name__,
)
@pytest.mark.parametrize("error", [RefusedError, FencedError, BadRecordError, DataLostError])
def test_what_would_fail_again_is_never_restarted(strategy: RestartStrategy, error: type[ExactlyOnceError]) -> None:
    assert strategy.delay(error("x"), [], 0.0) is None
    assert strategy.delay(BatchFailedError("x"), [], 0.0) is not None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RestartStrategy.fixed_delay(0, timedelta(0)), "attempts=0"),
        (lambda: RestartStrategy.fixed_delay(1, timedelta(seconds=-1)), "delay="),
        (lambda: RestartStrategy.exponential(initial=timedelta(0)), "initial="),
        (lambda: RestartStrategy.exponential(initial=timedelta(hours=1)), "at most maximum=0:01:00"),
        (lambda: RestartStrategy.exponential(multiplier=0.5), r"multiplier=0\.5"),
        (lambda: RestartStrategy.exponential(jitter=1.5), r"jitter=1\.5"),
        (lambda: RestartStrategy.exponential(reset_after=timedelta(-1)), "reset_after="),
        (lambda: RestartStrategy.failure_rate(max_failures=0), "max_failures=0"),
        (lambda: RestartStrategy.failure_rate(interval=timedelta(0)), "interval="),
        (lambda: RestartStrategy.failure_rate(delay=timedelta(-1)), "delay="),
    ],
)
def test_senseless_arguments_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]

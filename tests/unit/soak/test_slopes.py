"""A leak is found through noise and restarts, and what only starts, or jumps, is not taken for one."""

from __future__ import annotations

import random

import pytest

from tests.soak.slopes import GROWS, STEADY, TOO_SHORT, UNCERTAIN, Samples, slope

HOUR = 3600.0


def life(begin: float, seconds: float, per_hour: float, *, base: float = 500.0, noise: float = 5.0) -> Samples:
    """Return a sample each ten seconds."""
    chance = random.Random(f"{begin}/{seconds}/{per_hour}")
    times = [begin + 10 * step for step in range(int(seconds / 10))]
    return [(at, base + per_hour * (at - begin) / HOUR + chance.gauss(0, noise)) for at in times]


def test_a_leak_is_found_over_restarts_that_each_begin_anew() -> None:
    found = slope({pid: life(pid * 900, 900, 30.0) for pid in range(8)})
    assert found is not None
    assert found.per_hour == pytest.approx(30, abs=6)
    assert found.low < 30 < found.high
    assert found.verdict(allowed_per_hour=10) == GROWS
    assert found.processes == 8
    assert found.seconds == pytest.approx(8 * 710)


def test_what_stays_is_steady() -> None:
    found = slope({1: life(0, 2 * HOUR, 0.0)})
    assert found is not None
    assert abs(found.per_hour) < 1
    assert found.verdict(allowed_per_hour=5) == STEADY


def test_each_life_may_have_a_level_of_its_own() -> None:
    found = slope({pid: life(pid * HOUR, HOUR, 0.0, base=100.0 * pid) for pid in range(1, 4)})
    assert found is not None
    assert abs(found.per_hour) < 2


def test_a_start_is_left_out() -> None:
    begin = [(at, at * 3.0) for at in range(0, 180, 10)]
    found = slope({1: [*begin, *life(180, HOUR, 0.0)]})
    assert found is not None
    assert abs(found.per_hour) < 2


def test_single_peaks_change_nothing() -> None:
    samples = [(at, value * (10 if at % 300 == 0 else 1)) for at, value in life(0, HOUR, 0.0)]
    found = slope({1: samples})
    assert found is not None
    assert abs(found.per_hour) < 5


def test_a_number_that_never_changes_has_no_slope() -> None:
    found = slope({1: [(10.0 * step, 42.0) for step in range(400)]})
    assert found is not None
    assert (found.per_hour, found.low, found.high, found.typical) == (0, 0, 0, 42)


def test_of_a_short_time_nothing_is_concluded() -> None:
    assert slope({1: life(0, 150, 100.0)}) is None
    assert slope({}) is None
    for per_hour in (0.0, 2000.0):
        found = slope({1: life(0, 900, per_hour)})
        assert found is not None
        assert found.verdict(allowed_per_hour=50) == TOO_SHORT


def test_processes_side_by_side_make_no_long_time() -> None:
    found = slope({pid: life(0, 900, 0.0) for pid in range(9)})
    assert found is not None
    assert found.seconds == pytest.approx(710)
    assert found.verdict(allowed_per_hour=50) == TOO_SHORT


def test_a_wide_interval_is_said_to_be_one() -> None:
    found = slope({1: life(0, HOUR, 0.0, noise=200.0)})
    assert found is not None
    assert found.low < 0 < found.high
    assert found.verdict(allowed_per_hour=1) == UNCERTAIN

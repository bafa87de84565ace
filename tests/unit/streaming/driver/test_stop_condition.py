"""The target of a run, over the starts of its drivers."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.policies.termination import target_of
from airflow_provider_exactlyonce.streaming.driver import stop_condition as goals
from airflow_provider_exactlyonce.streaming.driver.stop_condition import StopCondition
from tests.clocks import StandingClock


def goal(tmp_path: Path, until: str, name: str | None, *, commit: int) -> StopCondition:
    made = StopCondition(Home(tmp_path), target_of(until), name)
    made.begin(commit)
    return made


def test_commits_count_from_the_first_start_of_the_run(tmp_path: Path) -> None:
    first = goal(tmp_path, "commits:5", "run", commit=10)
    assert [first.reached(commit, 0) is not None for commit in (10, 14, 15, 16)] == [False, False, True, True]
    again = goal(tmp_path, "commits:5", "run", commit=13)
    assert [again.reached(commit, 0) is not None for commit in (14, 15)] == [False, True]
    assert again.reached(15, 0) == "commit 15 is there"
    other = goal(tmp_path, "commits:5", "next", commit=13)
    assert [other.reached(commit, 0) is not None for commit in (17, 18)] == [False, True]


def test_a_run_without_a_name_keeps_nothing(tmp_path: Path) -> None:
    assert goal(tmp_path, "commits:5", None, commit=10).reached(15, 0)
    assert goal(tmp_path, "commits:5", None, commit=12).reached(16, 0) is None
    assert list(tmp_path.iterdir()) == []


def test_a_duration_goes_on_over_restarts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = StandingClock()
    monkeypatch.setattr(goals, "time", clock)
    first = goal(tmp_path, "duration:40", "run", commit=1)
    assert first.reached(1, 0) is None
    clock.sleep(25)
    again = goal(tmp_path, "duration:40", "run", commit=1)
    assert again.reached(1, 0) is None
    clock.sleep(20)
    assert again.reached(1, 0) is not None


def test_a_watermark_is_reached_by_a_commits_own(tmp_path: Path) -> None:
    made = goal(tmp_path, "watermark:1970-01-01T00:00:10Z", "run", commit=1)
    assert [made.reached(9, watermark) is not None for watermark in (0, 9_999, 10_000)] == [False, False, True]


def test_what_has_no_target_is_never_reached(tmp_path: Path) -> None:
    for until in ("available", "forever"):
        assert goal(tmp_path, until, "run", commit=1).reached(10**9, 10**15) is None

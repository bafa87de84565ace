"""Under which name a task instance asks, over its tries, its clears, and DAG runs that were made again."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import TaskRequest

TASK = ("shop", "stop", "scheduled__2026-01-01", "-1")


@dataclass(frozen=True)
class Try:
    """What Airflow says of a try."""

    clears: int = 0
    started: str | None = "2026-01-01T00:00:05+00:00"
    max_tries: int | None = 2


FIRST = Try()
#: Of the whole DAG run, after it has ended: it starts again.
CLEARED = Try(clears=1, started="2026-01-01T09:00:00+00:00", max_tries=3)
#: Of this task beside a DAG run that goes on; of another task of it.
CLEARED_ALONE, ANOTHER_CLEARED = replace(FIRST, clears=1, max_tries=3), replace(FIRST, clears=1)
#: Over REST with reset_dag_runs=false.
CLEARED_QUIETLY = replace(FIRST, max_tries=3)
MADE_AGAIN = replace(FIRST, started="2026-01-01T10:00:00+00:00")
UNTOLD = Try(started=None, max_tries=None)


def asked(home: Home, told: Try) -> TaskRequest:
    return TaskRequest(home, TASK, clears=told.clears, started=told.started, max_tries=told.max_tries)


def begun(home: Home, told: Try) -> str:
    request = asked(home, told)
    request.begin()
    return request.name


def done(home: Home, told: Try) -> str:
    request = asked(home, told)
    request.begin()
    request.done()
    return request.name


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("shop")
    return home


@pytest.mark.parametrize("later", [CLEARED, CLEARED_ALONE, CLEARED_QUIETLY, ANOTHER_CLEARED, MADE_AGAIN])
def test_what_was_done_is_asked_anew_by_a_cleared_task_and_by_a_dag_run_that_was_made_again(
    home: Home, later: Try
) -> None:
    first = done(home, FIRST)
    assert begun(home, FIRST) == first, "a retry, of whose earlier try Airflow does not know that it was done"
    assert asked(home, FIRST).name == first
    second = done(home, later)
    assert begun(home, later) == second != first


@pytest.mark.parametrize("later", [FIRST, CLEARED, CLEARED_ALONE, CLEARED_QUIETLY, ANOTHER_CLEARED])
def test_what_is_still_waited_for_is_gone_on_with_whatever_was_cleared(home: Home, later: Try) -> None:
    assert begun(home, FIRST) == begun(home, later) == begun(home, later) == done(home, later)


def test_what_was_waited_for_in_a_dag_run_that_is_gone_is_not_gone_on_with(home: Home) -> None:
    """Such as a stop that has timed out: the driver that it was for has ended since, and another one runs."""
    names = [begun(home, told) for told in (FIRST, MADE_AGAIN, CLEARED, replace(CLEARED, started="later", clears=0))]
    assert names[0] != names[1] == names[2] != names[3] != names[0]


def test_a_dag_run_that_was_cleared_and_is_made_again_counts_its_clears_from_zero(home: Home) -> None:
    names = [done(home, told) for told in (FIRST, CLEARED, MADE_AGAIN, replace(MADE_AGAIN, clears=1, started="later"))]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("now", [FIRST, MADE_AGAIN, UNTOLD, replace(UNTOLD, clears=2)])
def test_what_release_0_1_0_has_noted_is_judged_by_its_clears_alone(home: Home, now: Try) -> None:
    first = done(home, FIRST)
    [file] = home.commands.glob("task-*.json")
    json_store.write(file, {"number": 0, "clears": 0})
    assert (asked(home, now).name == first) == (now.clears == 0)
    json_store.write(file, {"number": 0, "clears": 0, "started": None, "max_tries": None, "done": True})
    assert (asked(home, now).name == first) == (now.clears == 0)


def test_a_name_is_noted_once_for_all_tries(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(home, FIRST)
    with monkeypatch.context() as sealed:
        sealed.setattr(json_store, "write", lambda *_, **__: pytest.fail("it is noted already"))
        begun(home, FIRST)
    done(home, FIRST)
    with monkeypatch.context() as sealed:
        sealed.setattr(json_store, "write", lambda *_, **__: pytest.fail("it would be open again"))
        begun(home, FIRST)

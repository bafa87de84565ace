"""What is over for a task that waits in the triggerer, judged by its home alone."""

from __future__ import annotations

import socket
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import drivers, json_store, processes
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.triggers import home_checker
from airflow_provider_exactlyonce.triggers.home_checker import HomeChecker
from airflow_provider_exactlyonce.triggers.shared_poller import CheckResult
from tests.clocks import StandingClock

QUEUED = Intent(
    token="t", owner="d/t/r/-1", until="forever", series="t", restarts=0, log="", host="yarn", machine="yarn"
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    for module in (home_checker, drivers, leases, processes):
        monkeypatch.setattr(module, "time", clock)
    return clock


def looking(
    home: Home, intent: Intent, *, no_commit_within: float | None = None
) -> tuple[HomeChecker, dict[str, object]]:
    intents.write(home.intent, intent)
    return HomeChecker(str(home.path)), {"intent": asdict(intent), "no_commit_within": no_commit_within}


def why(checker: HomeChecker, subject: dict[str, object]) -> object:
    result = checker._check({"driver": subject}, diagnose=False)["driver"]
    assert isinstance(result, CheckResult)
    return result.found and result.found["why"]


def test_a_driver_that_waits_for_room_in_a_cluster_has_not_ended_and_its_manager_is_asked_now_and_then(
    home: Home, clock: StandingClock
) -> None:
    checker, subject = looking(home, replace(QUEUED, written=clock.now - 3600))
    assert why(checker, subject) is None
    clock.now += 299
    assert why(checker, subject) is None
    clock.now += 2
    assert why(checker, subject) == "the driver has not reported yet"


def test_a_driver_of_another_host_that_has_not_reported_for_long_has_ended(home: Home, clock: StandingClock) -> None:
    elsewhere = replace(QUEUED, host="worker-2", machine="worker-2 boot pid:[1]", written=clock.now - 3600)
    assert why(*looking(home, elsewhere)) == "the driver has ended"


def test_a_driver_in_a_cluster_that_has_left_its_last_words_or_a_successor_has_ended(
    home: Home, clock: StandingClock
) -> None:
    checker, subject = looking(home, replace(QUEUED, written=clock.now - 3600))
    statuses.write(home.final_status_path("t"), Status(pipeline="p", token="t", state=DriverState.FINISHED))
    assert why(checker, subject) == "the driver has ended"
    checker, subject = looking(home, replace(QUEUED, token="u", written=clock.now - 3600))
    intents.write(home.intent, replace(QUEUED, token="v"))
    assert why(checker, subject) == "the driver has ended"


def test_a_driver_that_waits_for_room_for_too_long_is_stuck(home: Home) -> None:
    subject = looking(home, replace(QUEUED, written=0.0), no_commit_within=900.0)
    assert "no_commit_within is 900 s" in str(why(*subject))


@pytest.mark.parametrize("commits", [None, 5])
def test_a_driver_that_is_asked_for_something_and_lost_with_its_host_is_waited_for_no_longer(
    home: Home, clock: StandingClock, commits: int | None
) -> None:
    home.control.mkdir()
    lease = replace(leases.acquire(home.lease, "p", "t", run=1), machine="elsewhere")
    json_store.write(home.lease, asdict(lease))
    statuses.write(home.status, Status(pipeline="p", token="t", state=DriverState.RUNNING, commits_of_run=1))
    checker, began = HomeChecker(str(home.path)), clock.now
    subject: dict[str, object] = {"token": "t", "request": None, "commits": commits}
    while why(checker, subject) is None and clock.now < began + 60:
        clock.now += 1
    assert leases.STALE_SECONDS <= clock.now - began <= 2 * leases.STALE_SECONDS


@pytest.mark.parametrize("has_reported", [True, False])
def test_a_driver_of_this_host_that_has_ended_and_whose_process_stays_is_not_waited_for(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch, *, has_reported: bool
) -> None:
    here = replace(QUEUED, host=socket.gethostname(), machine=process_identity.this_machine(), written=clock.now)
    monkeypatch.setattr(processes, "leader", lambda _: object())
    checker, subject = looking(home, here)
    assert why(checker, subject) is None
    if has_reported:
        statuses.write(home.final_status_path("t"), Status(pipeline="p", token="t", state=DriverState.FINISHED))
    else:
        leases.acquire(home.lease, "p", "t", run=1)
        monkeypatch.setattr(leases, "is_dead", lambda _: True)
    clock.now += 1
    assert why(checker, subject) is None
    clock.now += 30
    assert why(checker, subject) is None, "it has time to end"
    clock.now += 1
    assert why(checker, subject) == "the driver has ended, and its process has not"

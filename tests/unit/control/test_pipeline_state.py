"""What is said of a driver between its death and its restart."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, lease, requests, restarts, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.pipeline_state import outlook
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.status import DriverState, Status

DEAD = "and no successor has started; "


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """Give a home whose driver was killed: its lease and its last account are there, its process isn't."""
    home = Home(tmp_path / "home")
    held = lease.acquire(home.lease, "p", "t", run=3)
    json_store.write(home.lease, asdict(replace(held, process_started=held.process_started + 1)))
    status.write(home.status, Status(pipeline="p", token="t", state=DriverState.RUNNING, run=3, commit=7))
    return home


def record(home: Home, *, token: str = "t", died: float = 0.0, due: float = 0.0) -> None:
    now = time.time()
    entry = Restart(
        series="t", number=2, token=token, run=3, commit=7, cause="killed", exit_code=-9, died=now + died, due=now + due
    )
    restarts.append(home.restarts, entry)


def said(home: Home) -> str:
    sentence = outlook(home)
    assert sentence is not None
    assert "the driver (pid " in sentence
    assert "is gone without an account, " in sentence
    return sentence.partition(DEAD)[2]


def test_a_driver_without_a_supervisor_is_started_by_nobody(home: Home) -> None:
    assert said(home) == "no supervisor is known to start the next one"


def test_a_supervisor_that_has_not_looked_yet_promises_nothing(home: Home) -> None:
    intent = Intent(token="t", owner="shop/stream", until="forever", series="t", restarts=0, log="driver-1.log")
    intents.write(home.intent, intent)
    assert said(home) == "its supervisor (shop/stream) has not noted its end yet, and has to decide on a restart"


@pytest.mark.parametrize(
    ("due", "expected"),
    [
        (60.0, r"its supervisor starts the next one at \S+ \(restart 2\)"),
        (-10.0, r"restart 2 by its supervisor is due since \S+"),
        (-3600.0, r"restart 2 was due at \S+ and has not come: its supervisor is lost, start it again"),
    ],
)
def test_a_restart_is_expected_when_its_supervisor_has_recorded_it(home: Home, due: float, expected: str) -> None:
    record(home, due=due)
    assert re.fullmatch(expected, said(home))


def test_a_restart_of_an_older_driver_says_nothing_of_one_that_was_started_by_hand(home: Home) -> None:
    record(home, token="older", died=-3600, due=-3600)
    assert said(home) == "no supervisor is known to start the next one"


def test_after_a_stop_nobody_starts_the_next_one(home: Home) -> None:
    record(home, due=60.0)
    requests.request_stop(home, "t", reason="exactlyonce stop")
    assert said(home) == "a stop was asked for (exactlyonce stop), so nobody starts the next one"


def test_of_a_driver_that_runs_or_has_ended_in_order_nothing_is_said(home: Home) -> None:
    held = lease.acquire(home.lease, "p", "u")
    assert outlook(home) is None
    lease.release(home.lease, held)
    for state in (DriverState.FINISHED, DriverState.STOPPED):
        status.write(home.status, Status(pipeline="p", token="u", state=state))
        assert outlook(home) is None

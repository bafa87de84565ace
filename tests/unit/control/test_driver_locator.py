"""What a supervisor does about a driver that it finds alive."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import requests
from airflow_provider_exactlyonce.control.driver_locator import DriverLocator
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy

OWNER = "d/t/r/-1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Give a home whose driver, of an earlier try of the same task on another host, lives."""
    home = Home(tmp_path / "home")
    held = leases.acquire(home.lease, "p", "t", run=1)
    monkeypatch.setattr(leases, "observe", lambda _, **__: (held, Liveness.ALIVE))
    elsewhere = Intent(
        token="t", owner=OWNER, until="forever", series="t", restarts=0, log="", host="worker-2", machine="m"
    )
    intents.write(home.intent, elsewhere)
    return home


def found(home: Home) -> tuple[str, bool]:
    ours = Supervision(owner=OWNER, until="forever", strategy=RestartStrategy.none())
    attached = DriverLocator(home, ours, StopSignal()).find()
    assert attached is not None
    return attached.intent.token, attached.ours


@pytest.mark.parametrize("was_asked", [False, True])
def test_a_driver_that_ends_with_an_earlier_try_is_asked_to_stop_unless_that_try_has_asked(
    home: Home, *, was_asked: bool
) -> None:
    requests.note_killed(home, "t", OWNER)
    if was_asked:
        requests.request_stop(home, "t", reason="the first")
    assert found(home) == ("t", False), "its end is waited for"
    assert requests.stop_requested(home, "t") == ("the first" if was_asked else "its task was killed")


def test_a_driver_that_nobody_has_killed_is_taken_over_and_asked_for_nothing(home: Home) -> None:
    assert found(home) == ("t", True)
    assert requests.stop_requested(home, "t") is None

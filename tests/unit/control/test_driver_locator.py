"""What a supervisor does about a driver that it finds alive."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import processes, requests
from airflow_provider_exactlyonce.control.driver_locator import DriverLocator
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.processes import Ended, FoundDriver
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy

OWNER = "d/t/r/-1"
OURS = Supervision(owner=OWNER, until="forever", strategy=RestartStrategy.none())


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
    attached = DriverLocator(home, OURS, StopSignal()).find()
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


def test_a_driver_that_another_supervisor_starts_while_the_lease_is_observed_is_no_stranger(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, elsewhere = leases.read(home.lease), intents.read(home.intent)
    assert elsewhere is not None
    intents.remove(home.intent, elsewhere.token)

    def observe(_: Path, **__: object) -> object:
        intents.write(home.intent, elsewhere)
        return held, Liveness.ALIVE

    monkeypatch.setattr(leases, "observe", observe)
    assert found(home) == ("t", True)


def test_a_driver_that_no_task_has_started_is_left_alone(home: Home) -> None:
    intents.remove(home.intent, "t")
    with pytest.raises(AlreadyRunningError, match="which no Airflow task has started"):
        found(home)


def test_a_jvm_that_is_left_when_its_driver_has_ended_is_watched_to_its_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    intent, held = intents.read(home.intent), leases.read(home.lease)
    assert intent is not None
    here = replace(intent, host=socket.gethostname(), machine=process_identity.this_machine())
    intents.write(home.intent, here)
    monkeypatch.setattr(leases, "is_dead", lambda _: True)
    monkeypatch.setattr(leases, "observe", lambda _, **__: (held, Liveness.DEAD))
    leader = FoundDriver("t", 4711, 1)
    leaders: list[FoundDriver | None] = [leader, None]
    monkeypatch.setattr(processes, "leader", lambda _: leaders[0])
    assert DriverLocator(home, OURS, StopSignal()).end_of(here) is None
    assert found(home) == ("t", True)
    del leaders[0]
    assert DriverLocator(home, OURS, StopSignal()).end_of(here) == Ended(exit_code=None)


@pytest.mark.parametrize(
    ("owner", "way"), [(OWNER, "`exactlyonce stop` does"), ("d/other/r/-1", "if_running='replace' does")]
)
def test_what_is_told_to_do_about_a_driver_without_an_end_does_it(home: Home, owner: str, way: str) -> None:
    supervision = replace(OURS, owner=owner, until="available")
    with pytest.raises(AlreadyRunningError, match=f"stop that driver first: {way}"):
        DriverLocator(home, supervision, StopSignal()).find()

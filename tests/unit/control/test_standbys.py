"""Whose turn it is: a driver is judged by its process on this machine, elsewhere by its silence."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, lease, standbys
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease
from airflow_provider_exactlyonce.control.standbys import LeaseTurn, SupervisedTurn
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.exceptions import DataError, StopRequestedError
from tests.clocks import StandingClock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(lease, "time", clock)
    return clock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def held(home: Home, clock: StandingClock, **other: object) -> Lease:
    """Give the lease to a driver, by default to this process, and let it beat."""
    theirs = replace(lease.acquire(home.lease, "p", "theirs"), heartbeat=clock.now, **other)  # type: ignore[arg-type]
    json_store.write(home.lease, asdict(theirs))
    return theirs


def ended(home: Home, state: DriverState, error: DriverError | None = None, *, token: str = "theirs") -> None:
    """Let the driver leave its last words, and the lease."""
    statuses.write(home.final_status_path(token), Status(pipeline="p", token=token, state=state, error=error))
    json_store.remove(home.lease, Lease, lambda _: True)


def test_where_nobody_holds_the_lease_it_is_its_turn(home: Home) -> None:
    assert LeaseTurn(home).has_come()


def test_a_driver_of_this_machine_lives_however_long_it_is_silent(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = LeaseTurn(home)
    held(home, clock)
    assert not turn.has_come()
    clock.now += 100 * lease.STALE_SECONDS
    assert not turn.has_come(), "it is frozen"
    json_store.remove(home.lease, Lease, lambda _: True)
    assert not turn.has_come(), "somebody has removed its lease"
    monkeypatch.setattr(process_identity, "process_start", lambda _: None)
    assert turn.has_come(), "its process has ended"
    assert turn.left is not None
    assert turn.left.token == "theirs"


def test_a_driver_elsewhere_is_lost_when_it_is_silent_for_long_enough(home: Home, clock: StandingClock) -> None:
    turn = LeaseTurn(home)
    theirs = held(home, clock, machine="elsewhere", pid=2**22 + 1)
    assert not turn.has_come()
    clock.now += lease.STALE_SECONDS - 1
    assert not turn.has_come()
    json_store.write(home.lease, asdict(replace(theirs, heartbeat=theirs.heartbeat + 2)))
    clock.now += 2
    assert not turn.has_come(), "it beats"
    clock.now += lease.STALE_SECONDS + 1
    assert turn.has_come()
    assert turn.left == lease.read(home.lease), "the start need not watch it for as long again"


def test_it_ends_with_a_driver_that_has_done_its_work(home: Home, clock: StandingClock) -> None:
    turn = LeaseTurn(home)
    held(home, clock)
    assert not turn.has_come()
    ended(home, DriverState.FINISHED)
    with pytest.raises(StopRequestedError, match="has done its work"):
        turn.has_come()


def test_it_takes_over_from_a_driver_that_a_signal_has_stopped(home: Home, clock: StandingClock) -> None:
    turn = LeaseTurn(home)
    held(home, clock)
    assert not turn.has_come()
    ended(home, DriverState.STOPPED)
    assert turn.has_come()


@pytest.mark.parametrize("final", [True, False])
def test_an_error_that_comes_again_ends_it_and_any_other_is_a_loss(
    home: Home, clock: StandingClock, final: bool
) -> None:
    turn = LeaseTurn(home)
    held(home, clock)
    assert not turn.has_come()
    kind, decision, code = ("DataError", "fix_data", 67) if final else ("BatchFailedError", "replay_batch", 1)
    ended(home, DriverState.FAILED, DriverError(kind=kind, decision=decision, exit_code=code, message="it says why"))
    if final:
        with pytest.raises(DataError, match="it says why"):
            turn.has_come()
    else:
        assert turn.has_come()


def test_a_successor_is_stood_by_for_as_well(home: Home, clock: StandingClock) -> None:
    turn = LeaseTurn(home)
    held(home, clock)
    assert not turn.has_come()
    ended(home, DriverState.FAILED, DriverError(kind="FencedError", decision="exit", exit_code=66, message="fenced"))
    held(home, clock, token="successor")
    assert not turn.has_come()
    ended(home, DriverState.STOPPED, token="successor")
    assert turn.has_come()


def test_a_home_that_does_not_answer_is_no_reason_to_take_over(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = LeaseTurn(home)
    held(home, clock, machine="elsewhere")
    assert standbys.keeps_waiting(turn)

    def silent(_: Path) -> None:
        raise TimeoutError("no answer")

    clock.now += 100 * lease.STALE_SECONDS
    with monkeypatch.context() as patched:
        patched.setattr(lease, "read", silent)
        assert standbys.keeps_waiting(turn)


def test_a_supervised_standby_waits_for_an_intent_with_its_name_and_a_pid(home: Home) -> None:
    me = 1
    turn = SupervisedTurn(home, "mine", me, process_identity.process_start(me) or 0)
    intent = Intent(token="theirs", owner="o", until="forever", series="s", restarts=0, log="l", pid=7)
    intents.write(home.intent, intent)
    assert not turn.has_come()
    intents.write(home.intent, replace(intent, token="mine", pid=0))
    assert not turn.has_come(), "it may be taken back"
    intents.write(home.intent, replace(intent, token="mine"))
    assert turn.has_come()
    intents.remove(home.intent, "mine")
    with pytest.raises(StopRequestedError, match="supervisor of this standby"):
        SupervisedTurn(home, "mine", me, 4711).has_come()

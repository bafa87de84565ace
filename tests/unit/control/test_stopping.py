"""Asking a driver to stop whose home does not always answer, or that has not come up yet."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.control import drivers, processes, requests, stopping
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import Ended, RemoteDriver
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from tests.clocks import StandingClock


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no answer"), OutcomeUnknownError("no answer")])
def test_a_driver_on_another_host_is_asked_again_until_its_home_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    home, clock, request_stop, asked = Home(tmp_path), StandingClock(), requests.request_stop, list[float]()
    for module in (polling, stopping, processes):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(stopping, "detach", lambda *_: None)

    def ask(*args: Any, **kwargs: Any) -> None:
        asked.append(clock.now)
        if len(asked) < 3:
            raise error
        request_stop(*args, **kwargs)

    monkeypatch.setattr(requests, "request_stop", ask)
    driver = RemoteDriver("t", home.lease)
    has_stopped = lambda: Ended(exit_code=None) if requests.stop_requested(home, "t") else None  # noqa: E731
    monkeypatch.setattr(driver, "ended", has_stopped)
    began = clock.now
    stopping.stop_and_wait(home, driver, reason="the task was killed", timeout_seconds=60, owner="d/t/r/-1")
    assert [round(at - began) for at in asked] == [0, 5, 10]
    assert clock.now - began < 60, "nothing is forced"
    assert requests.killed_by(home, "t") == "d/t/r/-1"


def queued(home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the trace of a driver that was submitted long ago, and for which its cluster has no room."""
    monkeypatch.setattr(drivers, "time", clock)
    home.commands.mkdir(parents=True)
    waits = Intent(
        token="t", owner="o", until="forever", series="t", restarts=0, log="/l",
        host="yarn", machine="yarn", written=clock.now - 1000,
    )  # fmt: skip
    intents.write(home.intent, waits)


def test_a_stop_of_a_driver_that_waits_for_room_is_done_when_its_supervisor_or_itself_has_told_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    homes = [Home(tmp_path / name) for name in ("removed", "stopped")]
    for home in homes:
        queued(home, StandingClock(), monkeypatch)
        asked = StopRequest(home, "ab", reason="maintenance")
        assert not asked.advance()
        assert requests.stop_requested(home, "t") == "maintenance"
        assert not StopRequest(home, "cd", reason="another stop").advance(), "asked already, and still waiting"
        assert not drivers.has_happened(home, WaitCondition(token="t")), "so that nobody is woken for nothing"
    intents.remove(homes[0].intent, "t")
    statuses.write(homes[1].status, Status(pipeline="shop", token="t", state=DriverState.STOPPED))
    for home in homes:
        assert StopRequest(home, "ab", reason="maintenance").advance()
        assert drivers.has_happened(home, WaitCondition(token="t"))


def test_a_driver_that_comes_up_while_it_is_looked_for_is_not_stopped_yet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, is_unheard = Home(tmp_path), drivers.is_unheard
    queued(home, StandingClock(), monkeypatch)
    request = StopRequest(home, "ab", reason="maintenance")
    assert not request.advance()

    def comes_up(*given: Any) -> bool:
        if leases.read(home.lease) is None:
            leases.acquire(home.lease, "shop", "t")
        return is_unheard(*given)

    monkeypatch.setattr(drivers, "is_unheard", comes_up)
    assert not request.advance()


def test_a_driver_that_waits_for_room_is_named_by_what_its_cluster_knows_it_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = Home(tmp_path)
    queued(home, StandingClock(), monkeypatch)
    assert drivers.describe(home, "t").startswith("the driver that was submitted to yarn")
    assert "start token t" in drivers.describe(home, "t")


def test_a_home_that_does_not_answer_gets_no_savepoint_and_its_driver_is_stopped_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, token = Home(tmp_path), "6f1c0a52-0000-4000-8000-000000000001"
    for error in (OSError(errno.EIO, "no answer"), OutcomeUnknownError("no answer")):
        with monkeypatch.context() as patched:
            patched.setattr(requests, "request_savepoint", raising(error))
            stopping.ask_for_savepoint(home, token, label="worker shutdown")
    with monkeypatch.context() as patched:
        patched.setattr(requests, "request_savepoint", raising(PermissionError("read-only")))
        with pytest.raises(PermissionError):
            stopping.ask_for_savepoint(home, token, label="worker shutdown")
    stopping.ask_for_savepoint(home, token, label="worker shutdown")
    (request,) = requests.savepoint_requests(home, token)
    assert (request.label, request.stop) == ("worker shutdown", True)


def raising(error: Exception) -> Callable[..., None]:
    def raises(*_: object) -> None:
        raise error

    return raises

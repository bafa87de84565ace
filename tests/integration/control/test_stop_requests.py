"""Stops that a task, a person or a signal asks for: real processes, real signals."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease, processes, requests, restarts, stopping
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.control.alarms import alarm
from tests.integration.control.contract_driver import let_go
from tests.integration.control.supervising import (
    AT_ONCE,
    committed,
    first_supervisor_killed,
    launch,
    notes,
    supervisor,
    wait_for,
)
from tests.processes import command_line


def test_a_stop_that_was_meant_for_a_driver_that_dies_first_is_meant_for_its_successor_too(home: Home) -> None:
    supervised = supervisor(
        home, "take-lease commit die", "take-lease end=finished", strategy=RestartStrategy.fixed_delay(3, timedelta(30))
    )
    seen = supervised.run()
    requests.request_stop(home, next(seen).token, reason="maintenance")
    with pytest.raises(StopRequestedError, match=r"restart 1: maintenance; the driver had died: .* signal 9"):
        list(seen)
    assert len(notes(home, "started")) == 1


def test_a_stop_ends_the_driver_at_its_batch_boundary(home: Home) -> None:
    supervised = supervisor(home, "take-lease commit until-stop")
    with (
        alarm(committed(home), lambda: supervised.stop("the task was killed")),
        pytest.raises(StopRequestedError, match="commit 1"),
    ):
        list(supervised.run())
    status = statuses.read(home.status)
    assert status is not None
    assert status.state is DriverState.STOPPED
    assert len(notes(home, "started")) == 1


class Interrupt(BaseException):
    """What Airflow raises in the main thread, wherever that is, when a task's execution time-out has passed."""


def test_a_driver_that_was_started_when_its_supervisor_was_interrupted_is_stopped(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    supervised = supervisor(home, "take-lease commit until-stop", stop_timeout_seconds=0.1)

    def interrupted(path: Path, intent: Intent) -> None:
        assert intent.pid, "the process is there, and nobody watches it yet"
        raise Interrupt

    monkeypatch.setattr(intents, "confirm", interrupted)
    with pytest.raises(Interrupt):
        list(supervised.run())
    intent = intents.read(home.intent)
    assert intent is not None
    assert processes.members(intent.token)
    supervised.stop("the task's execution time-out has passed")
    assert requests.killed_by(home, intent.token) == "shop/stream/run1/-1"
    wait_for(lambda: not processes.members(intent.token))


@pytest.mark.parametrize(
    ("owner", "until", "if_running", "is_stopped"),
    [
        ("shop/stream/run1/-1", "available", IfRunning.FAIL, True),
        ("shop/stream/run2/-1", "available", IfRunning.ADOPT, False),
        ("shop/stream/run2/-1", "forever", IfRunning.ADOPT, True),
        ("shop/stream/run2/-1", "forever", IfRunning.FAIL, False),
    ],
)
def test_a_driver_that_would_be_taken_over_is_stopped_when_its_supervisor_is_interrupted(
    home: Home, monkeypatch: pytest.MonkeyPatch, owner: str, until: str, if_running: IfRunning, is_stopped: bool
) -> None:
    intents.write(
        home.intent,
        Intent(token="t", owner="shop/stream/run1/-1", until=until, series="t", restarts=0, log="", host="elsewhere"),
    )
    forced: list[str] = []
    monkeypatch.setattr(stopping, "detach", lambda token, _: forced.append(token))

    def interrupt() -> None:
        raise Interrupt

    asked = Supervision(
        owner=owner, until=until, strategy=AT_ONCE, if_running=if_running, on_poll=interrupt, stop_timeout_seconds=0.1
    )
    supervised = Supervisor(home, launch(home, "exit=1"), asked)
    with pytest.raises(Interrupt):
        list(supervised.run())
    supervised.stop("the task's execution time-out has passed")
    assert (requests.stop_requested(home, "t") is not None) == is_stopped
    assert forced == (["t"] if is_stopped else [])


def test_a_stop_while_a_living_driver_is_looked_for_waits_for_its_end(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_supervisor_killed(home, "take-lease commit note=up until-stop", until_note="up")
    supervised, observe = supervisor(home, "exit=1"), lease.observe

    def stopped(path: Path, **how: Any) -> tuple[lease.Lease | None, lease.Liveness]:
        seen = observe(path, **how)
        supervised.stop("the task was killed")
        return seen

    monkeypatch.setattr(lease, "observe", stopped)
    with pytest.raises(StopRequestedError, match="the driver was stopped at commit 1: the task was killed"):
        list(supervised.run())
    assert all(command_line(int(str(note["pid"]))) == "" for note in notes(home, "started"))


def test_a_second_stop_changes_nothing(home: Home) -> None:
    supervised = supervisor(home, "take-lease commit until-stop")

    def twice() -> None:
        supervised.stop("first")
        supervised.stop("second")

    with alarm(committed(home), twice), pytest.raises(StopRequestedError, match="first"):
        list(supervised.run())


def test_a_stop_during_the_delay_before_a_restart_starts_nothing(home: Home) -> None:
    strategy = RestartStrategy.fixed_delay(attempts=1, delay=timedelta(seconds=30))
    supervised = supervisor(home, "take-lease commit die", strategy=strategy)
    with (
        alarm(lambda: restarts.read(home.restarts), lambda: supervised.stop("enough")),
        pytest.raises(StopRequestedError, match="before restart 1: enough"),
    ):
        list(supervised.run())
    assert len(notes(home, "started")) == 1


def test_a_driver_that_does_not_stop_is_killed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stopping, "TERM_SECONDS", 0.3)
    first_supervisor_killed(home, "ignore-sigterm take-lease commit note=up sleep=60", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    stopping.ask_and_enforce(home, intent.token, reason="test", timeout_seconds=0.3)
    assert processes.members(intent.token) == []


def test_the_stop_goes_on_when_the_supervisor_is_killed_in_the_middle(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up sleep=60", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    stopping.detach(intent.token, 0.2)
    wait_for(lambda: not processes.members(intent.token))


def stop_by_a_person(home: Home) -> None:
    wait_for(lambda: lease.read(home.lease) is not None)
    held = lease.read(home.lease)
    assert held is not None
    requests.request_stop(home, held.token, reason="maintenance")


def test_a_stop_by_somebody_else_is_no_success_while_records_were_available(home: Home) -> None:
    supervised = supervisor(home, "take-lease commit until-stop")
    with (
        alarm(committed(home), lambda: stop_by_a_person(home)),
        pytest.raises(StopRequestedError, match=r"before its work was done \(until available\): maintenance"),
    ):
        list(supervised.run())
    assert len(notes(home, "started")) == 1


def test_a_stop_by_somebody_else_is_the_normal_end_of_a_driver_that_runs_for_ever(home: Home) -> None:
    with alarm(committed(home), lambda: stop_by_a_person(home)):
        seen = list(supervisor(home, "take-lease commit until-stop", until="forever").run())
    assert seen[-1].state is DriverState.STOPPED
    assert len(notes(home, "started")) == 1


@pytest.mark.parametrize("until", ["available", "forever"])
def test_a_driver_that_a_signal_stopped_is_started_again(home: Home, until: str) -> None:
    """A node that is drained sends SIGTERM: the driver ends in order, and nobody wanted that."""
    list(supervisor(home, "take-lease commit end=stopped", "take-lease commit end=finished", until=until).run())
    assert len(notes(home, "started")) == 2


def test_a_driver_that_finishes_while_it_is_asked_to_stop_has_finished(home: Home) -> None:
    supervised = supervisor(home, "take-lease commit sleep=1 end=finished")
    with alarm(committed(home), lambda: supervised.stop("the task was killed")):
        assert list(supervised.run())[-1].state is DriverState.FINISHED


def test_a_stop_while_waiting_for_another_tasks_driver_leaves_that_driver_alone(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go end=finished", until_note="up")
    two = supervisor(home, "exit=1", owner="shop/stream/run2/-1")
    with (
        alarm(lambda: two.waits_for_another, lambda: two.stop("killed")),
        pytest.raises(StopRequestedError, match="waiting for shop/stream/run1"),
    ):
        list(two.run())
    intent = intents.read(home.intent)
    assert intent is not None
    assert processes.leader(intent.token) is not None
    let_go(home)
    wait_for(lambda: not processes.members(intent.token))
    status = statuses.read(home.status)
    assert status is not None
    assert status.state is DriverState.FINISHED

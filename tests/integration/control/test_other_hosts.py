"""Drivers that another host has started: real processes whose intents and leases say so."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease, processes, restarts
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.storage.opening import store_of
from tests.integration.control.alarms import after, alarm
from tests.integration.control.contract_driver import let_go
from tests.integration.control.supervising import launch, notes, supervisor, wait_for
from tests.waiting import HANG_SECONDS


@pytest.mark.parametrize(
    "place",
    [
        {"host": "elsewhere"},
        {"machine": process_identity.this_machine().replace(" ", " another-boot-", 1)},
        {"machine": f"{process_identity.this_machine()}0"},
    ],
    ids=["of another name", "of the same name", "in another container of the same name on this host"],
)
def test_a_driver_that_may_be_starting_on_another_host_is_waited_for(home: Home, place: dict[str, Any]) -> None:
    elsewhere = Intent(
        token="t", owner="shop/stream/run1/-1", until="available", series="t", restarts=0, log="", **place
    )
    intents.write(home.intent, elsewhere)
    ends_there = Status(pipeline="shop", token="t", state=DriverState.FAILED)
    supervised = supervisor(home, "take-lease end=finished")
    with alarm(after(0.7), lambda: statuses.write(home.status, ends_there)):
        began = time.monotonic()
        list(supervised.run())
    assert time.monotonic() - began > 0.6, "while it is unknown, no second driver is started"
    assert len(notes(home, "started")) == 1


def test_a_start_on_another_host_that_never_reported_blocks_only_for_a_while(home: Home) -> None:
    elsewhere = Intent(
        token="t",
        owner="o",
        until="available",
        series="t",
        restarts=0,
        log="",
        host="elsewhere",
        written=time.time() - 300,
    )
    intents.write(home.intent, elsewhere)
    list(supervisor(home, "take-lease end=finished").run())
    assert len(notes(home, "started")) == 1


def driver_elsewhere(home: Home, plan: str) -> processes.ChildDriver:
    """Start a driver for which another host's worker has written the intent and taken the notes."""
    home.control.mkdir(parents=True)
    driver = processes.start(
        launch(home, plan).command, token="far", environment={}, directory=home.control, log=home.control / "log"
    )
    intent = Intent(
        token="far",
        owner="shop/stream/run1/-1",
        until="available",
        series="far",
        restarts=0,
        log=str(home.control / "log"),
        host="elsewhere",
    )
    intents.write(home.intent, intent)
    return driver


@pytest.mark.parametrize("clock", [-3600, 3600])
def test_a_driver_of_another_host_is_taken_over_whatever_its_clock_says(
    home: Home, monkeypatch: pytest.MonkeyPatch, clock: int
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
    driver = driver_elsewhere(home, f"take-lease-elsewhere={clock} commit note=up go commit end=finished")
    wait_for(lambda: notes(home, "up"))
    seen = supervisor(home, "exit=1").run()
    next(seen)
    let_go(home)
    assert list(seen)[-1].commit == 2
    assert len(notes(home, "started")) == 1, "no second driver was started while the first one lived"
    assert driver.process.wait() == 0


def silenced(home: Home, driver: processes.ChildDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    """Freeze a driver of another host between two heartbeats, for long enough to count as lost."""
    with store_of(home.path).holding(home.lease, seconds=HANG_SECONDS):  # its successor wants the lock
        driver.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, driver.process.pid, os.WSTOPPED)
    monkeypatch.setattr(lease, "STALE_SECONDS", 2.0)


def driver_that_is_up(
    home: Home, monkeypatch: pytest.MonkeyPatch, then: str = "go commit end=finished"
) -> processes.ChildDriver:
    """Start a driver of another host whose silence counts for nothing yet; returns it after its first commit."""
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
    driver = driver_elsewhere(home, f"take-lease-elsewhere=0 commit note=up {then}")
    wait_for(lambda: notes(home, "up"))
    return driver


def test_a_driver_of_another_host_that_falls_silent_is_lost_and_another_one_is_started(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_is_up(home, monkeypatch, "until-stop")
    frozen = 0.0
    try:
        for status in supervisor(home, "exit=1", "take-lease commit end=finished").run():
            if not frozen:
                silenced(home, driver, monkeypatch)
                frozen = time.monotonic()
            elif status.run == 2:
                assert time.monotonic() - frozen > lease.STALE_SECONDS, "silence is borne for so long"
    finally:
        driver.process.kill()
        driver.process.wait()
    assert (status.state, status.commit) == (DriverState.FINISHED, 2)
    assert len(notes(home, "started")) == 2


def test_a_driver_of_another_host_that_comes_back_before_its_successor_is_started_is_supervised_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_is_up(home, monkeypatch)
    lost: list[str] = []

    def come_back(dead: Intent, _: float) -> None:
        lost.append(dead.token)
        driver.process.send_signal(signal.SIGCONT)

    commits = []
    for status in supervisor(home, "exit=1", on_delay=come_back).run():
        commits.append(status.commit)
        if lost:
            let_go(home)
        else:
            silenced(home, driver, monkeypatch)
    assert (commits[-1], lost) == (2, ["far"])
    assert len(notes(home, "started")) == 1
    assert restarts.read(home.restarts) == (), "what it has committed is not counted twice"
    assert driver.process.wait() == 0


def test_one_that_falls_silent_while_its_task_is_deferred_and_comes_back_is_supervised_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_is_up(home, monkeypatch)
    silenced(home, driver, monkeypatch)
    lost: list[str] = []

    def come_back(dead: Intent, _: float) -> None:
        lost.append(dead.token)
        monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
        driver.process.send_signal(signal.SIGCONT)

    commits = []
    try:
        for status in supervisor(home, "exit=1", on_delay=come_back, left=intents.read(home.intent)).run():
            commits.append(status.commit)
            if lost:
                let_go(home)
    finally:
        driver.process.send_signal(signal.SIGCONT)
        let_go(home)
        assert driver.process.wait() == 0
    assert (commits[-1], lost) == (2, ["far"])
    assert len(notes(home, "started")) == 1
    assert restarts.read(home.restarts) == (), "what it has committed is not counted twice"
    assert intents.read(home.intent) is None


def test_a_driver_of_another_host_that_comes_back_before_its_successor_has_the_lease_is_supervised_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_is_up(home, monkeypatch)
    heard = home.path / "heard"

    def come_back() -> None:
        driver.process.send_signal(signal.SIGCONT)
        heard.touch()

    commits = []
    with alarm(lambda: notes(home, "refused"), come_back):
        for status in supervisor(home, "exit=1", f"note=refused wait-for={heard} exit=65").run():
            commits.append(status.commit)
            if heard.exists():
                let_go(home)
            elif lease.STALE_SECONDS == HANG_SECONDS:
                silenced(home, driver, monkeypatch)
    assert commits[-1] == 2
    assert len(notes(home, "started")) == 2
    assert restarts.read(home.restarts) == ()
    assert driver.process.wait() == 0


class _Left(BaseException):
    """The task defers."""


def test_one_that_comes_back_when_its_task_has_deferred_since_its_successor_was_started_is_supervised_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_that_is_up(home, monkeypatch)
    heard = home.path / "heard"
    plans = "exit=1", f"note=waits wait-for={heard} fail=AlreadyRunningError:refuse:65:held"
    first = supervisor(home, *plans)

    def leave() -> None:
        raise _Left

    seen = first.run()
    next(seen)
    silenced(home, driver, monkeypatch)
    with alarm(lambda: notes(home, "waits"), leave), pytest.raises(_Left):
        list(seen)
    successor = first.living
    assert successor is not None
    driver.process.send_signal(signal.SIGCONT)
    heard.touch()
    wait_for(lambda: home.final_status_path(successor.token).exists())
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)

    def is_supervised() -> bool:
        intent = intents.read(home.intent)
        return intent is not None and intent.token == "far"

    with alarm(is_supervised, lambda: let_go(home)):
        statuses_seen = list(supervisor(home, *plans, left=successor).run())
    assert statuses_seen[-1].commit == 2
    assert len(notes(home, "started")) == 2
    assert restarts.read(home.restarts) == ()
    assert driver.process.wait() == 0

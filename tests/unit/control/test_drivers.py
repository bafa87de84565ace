"""Which driver is there: one on another host is lost when it is silent while somebody watches it, by one clock."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import (
    driver_locator,
    drivers,
    json_store,
    processes,
    requests,
    restarts,
    stopping,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.driver_locator import DriverLocator
from airflow_provider_exactlyonce.control.drivers import Death, FailureDetector, RunningDriver
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.lease import Lease
from airflow_provider_exactlyonce.control.processes import RemoteDriver
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.control.restarts import Restart
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.control.supervision import IfRunning, StopSignal, Supervision
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests.clocks import StandingClock


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    for module in (drivers, driver_locator, leases, processes, stopping):
        if hasattr(module, "time"):
            monkeypatch.setattr(module, "time", clock)
    return clock


def held_elsewhere(home: Home, *, ahead: float = 0.0) -> Lease:
    """Let a driver of another host, whose clock may be ahead, hold the lease."""
    lease = leases.acquire(home.lease, "p", "t", run=2)
    lease = replace(lease, machine="elsewhere", host="elsewhere", heartbeat=lease.heartbeat + ahead)
    json_store.write(home.lease, asdict(lease))
    return lease


def beat(home: Home) -> None:
    held = leases.read(home.lease)
    assert held is not None
    json_store.write(home.lease, asdict(replace(held, heartbeat=held.heartbeat + 1)))


def intended(home: Home, token: str = "t", machine: str = "elsewhere boot pid", written: float = 0.0) -> None:
    intent = Intent(token=token, owner="o", until="forever", series="t", restarts=0, log="/l")
    intents.write(home.intent, replace(intent, host="elsewhere", machine=machine, written=written))


@pytest.mark.parametrize("ahead", [-3600, 0, 3600])
@pytest.mark.parametrize("waits", [True, False])
def test_a_driver_elsewhere_is_lost_once_it_was_silent_while_we_watched_and_there_when_it_comes_back(
    home: Home, clock: StandingClock, ahead: float, *, waits: bool
) -> None:
    held_elsewhere(home, ahead=ahead)
    detector, began = FailureDetector(home, waits=waits), clock.now
    while detector.is_there("t") and clock.now < began + 60:
        clock.sleep(leases.HEARTBEAT_SECONDS)
    assert detector.is_lost("t")
    assert leases.STALE_SECONDS <= clock.now - began <= leases.STALE_SECONDS + 3 * leases.HEARTBEAT_SECONDS
    clock.sleep(3600)
    assert detector.is_lost("t"), "though nobody has looked for long"
    beat(home)
    assert detector.is_there("t")


@pytest.mark.parametrize("seconds_per_read", [0.0, 5.0])
def test_a_driver_elsewhere_that_beats_is_there_and_each_look_but_the_first_is_at_once(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch, seconds_per_read: float
) -> None:
    monkeypatch.setattr(LocalStore, "seconds_per_read", seconds_per_read)
    held_elsewhere(home, ahead=-3600)
    detector, clock.meanwhile = FailureDetector(home), lambda: beat(home)
    for _ in range(20):
        looked = clock.now
        assert detector.is_there("t")
        assert not _ or clock.now == looked
        clock.sleep(leases.heartbeat_seconds(home.lease))


def test_a_beat_that_comes_after_a_read_which_told_of_silence_is_one(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalStore, "seconds_per_read", 5.0)
    held_elsewhere(home)
    detector = FailureDetector(home, waits=False)
    while not detector.is_lost("t"):
        clock.sleep(1)
    beat(home)
    assert detector.is_there("t")


def test_a_driver_of_this_host_of_a_cluster_or_without_the_lease_is_not_judged_by_silence(
    home: Home, clock: StandingClock
) -> None:
    began = clock.now
    leases.acquire(home.lease, "p", "t")
    clock.now += 3600
    assert FailureDetector(home).is_there("t"), "its process lives"
    held_elsewhere(home)
    assert not FailureDetector(home).is_lost("another")
    intended(home, machine="elsewhere")
    assert FailureDetector(home).is_there("t"), "the manager of its cluster has not been asked"
    assert clock.now == began + 3600, "nobody waits for what would tell nothing"


def test_a_driver_that_is_lost_is_a_death_which_its_supervisor_may_be_about_to_notice(
    home: Home, clock: StandingClock
) -> None:
    held = held_elsewhere(home)
    assert drivers.find_or_awaited(home) == RunningDriver(token="t", series=None, stale=True, is_lost=True)
    intended(home)
    assert drivers.find_or_awaited(home) == Death(token="t", series="t", due=held.heartbeat)
    requests.request_stop(home, "t", reason="maintenance")
    assert drivers.find_or_awaited(home) == RunningDriver(token="t", series="t", stale=True, is_lost=True)


@pytest.mark.parametrize("by_silence", [False, True])
@pytest.mark.parametrize("delay", [None, 0, 1, 120, 600])
def test_a_restart_is_awaited_from_the_death_until_some_time_after_it_is_due(
    home: Home, clock: StandingClock, delay: float | None, *, by_silence: bool
) -> None:
    home.control.mkdir(parents=True)
    if by_silence:
        held_elsewhere(home)
        intended(home)
    died = Restart(
        series="t", number=1, token="t", run=1, commit=7, cause="killed", exit_code=-9, died=clock.now,
        due=0.0 if delay is None else clock.now + delay,  # as an old release may have left it
    )  # fmt: skip
    restarts.append(home.restarts, died)
    over, waits = max(died.died, died.due) + drivers.RESTART_GRACE_SECONDS, WaitCondition(token=None, request="ab")
    while clock.now < over:
        dead = drivers.find_or_awaited(home)
        assert isinstance(dead, Death)
        is_over = clock.now >= over  # a look at a silent driver takes its time
        assert drivers.is_restarted_soon(dead) is not is_over, f"{clock.now - died.died:.0f} s after the death"
        assert drivers.has_happened(home, waits) is is_over
        clock.sleep(29)
    dead = drivers.find_or_awaited(home)
    assert isinstance(dead, Death)
    assert not drivers.is_restarted_soon(dead), "its supervisor is lost"
    assert drivers.has_happened(home, waits)


def test_a_stop_of_a_driver_that_is_lost_is_asked_for_and_done(home: Home, clock: StandingClock) -> None:
    held_elsewhere(home)
    clock.meanwhile = lambda: beat(home)
    assert not StopRequest(home, "ab", reason="maintenance").advance()
    clock.meanwhile = lambda: None
    assert StopRequest(home, "ab", reason="maintenance").advance(), "by another process"
    assert requests.stop_requested(home, "t") == "maintenance", "it may come back"


def test_a_stop_goes_on_to_the_successor_of_a_driver_that_is_lost(home: Home, clock: StandingClock) -> None:
    held_elsewhere(home)
    intended(home)
    clock.meanwhile = lambda: beat(home)
    request = StopRequest(home, "ab", reason="maintenance")
    assert not request.advance()
    clock.meanwhile = lambda: None
    intended(home, token="next", written=clock.now)
    assert not StopRequest(home, "ab", reason="maintenance").advance()
    assert request.target() == "next"
    assert not StopRequest(home, "ab", reason="maintenance").advance()
    assert requests.stop_requested(home, "next") == "maintenance"


@pytest.mark.parametrize("falls_silent", [True, False])
def test_a_driver_that_falls_silent_while_it_is_to_be_replaced_is_replaced(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch, *, falls_silent: bool
) -> None:
    held_elsewhere(home)
    monkeypatch.setattr(stopping, "stop_and_wait", lambda *_, **__: None)
    clock.meanwhile = (lambda: None) if falls_silent else lambda: beat(home)
    ours = Supervision(owner="b", until="forever", strategy=RestartStrategy.none(), if_running=IfRunning.REPLACE)
    locator = DriverLocator(home, ours, StopSignal())
    if falls_silent:
        locator._replace(RemoteDriver("t", home.lease), "a driver of o")
    else:
        with pytest.raises(AlreadyRunningError, match="was not stopped within"):
            locator._replace(RemoteDriver("t", home.lease), "a driver of o")

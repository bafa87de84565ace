from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.control import json_store, lease, processes
from airflow_provider_exactlyonce.control.lease import Liveness
from airflow_provider_exactlyonce.control.processes import RemoteDriver
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from tests.clocks import StandingClock


def seen(path: Path, held: lease.Lease) -> Liveness:
    json_store.write(path, asdict(held))
    return lease.look(path)[1]


def test_no_lease_is_none(tmp_path: Path) -> None:
    assert lease.look(tmp_path / "lease.json") == (None, Liveness.NONE)


def test_this_process_is_alive_until_it_falls_silent(tmp_path: Path) -> None:
    path = tmp_path / "l"
    held = lease.acquire(path, "p", "token")
    assert lease.look(path) == (held, Liveness.ALIVE)
    assert seen(path, replace(held, heartbeat=held.heartbeat - lease.STALE_SECONDS - 1)) is Liveness.STALE


def test_a_recycled_pid_is_not_taken_for_the_holder(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path / "l", "p", "t")
    assert seen(tmp_path / "l", replace(held, process_started=held.process_started + 1)) is Liveness.DEAD


def test_a_holder_on_another_host_is_judged_by_its_heartbeat_only(tmp_path: Path) -> None:
    path = tmp_path / "l"
    held = replace(lease.acquire(path, "p", "t"), machine="elsewhere", pid=2**22 + 1)
    assert seen(path, held) is Liveness.ALIVE
    assert seen(path, replace(held, heartbeat=held.heartbeat - lease.STALE_SECONDS - 1)) is Liveness.STALE


def test_a_lease_that_was_taken_over_is_neither_renewed_nor_released_by_the_old_holder(tmp_path: Path) -> None:
    path = tmp_path / "l"
    old = lease.acquire(path, "p", "old")
    new = lease.acquire(path, "p", "new")
    assert lease.renew(path, old) is None
    assert lease.renew(path, replace(old, run=1)) is None
    lease.release(path, old)
    assert lease.read(path) == new
    renewed = lease.renew(path, new)
    assert renewed is not None
    lease.release(path, renewed)
    assert lease.read(path) is None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> StandingClock:
    clock = StandingClock()
    monkeypatch.setattr(lease, "time", clock)
    monkeypatch.setattr(polling, "time", clock)
    return clock


def test_settling_ends_as_soon_as_the_holder_beats_again(tmp_path: Path, clock: StandingClock) -> None:
    path = tmp_path / "l"
    held = lease.acquire(path, "p", "t")
    clock.meanwhile = lambda: lease.renew(path, held)
    renewed, life = lease.observe(path)
    assert life is Liveness.ALIVE
    assert renewed is not None
    assert renewed.heartbeat > held.heartbeat


def test_settling_waits_until_a_frozen_holder_is_silent(tmp_path: Path, clock: StandingClock) -> None:
    path = tmp_path / "l"
    lease.acquire(path, "p", "t")
    began = clock.now
    assert lease.observe(path)[1] is Liveness.STALE
    assert clock.now - began >= lease.STALE_SECONDS


def test_settling_asks_as_often_as_a_heartbeat_was_due_whether_there_can_be_one(
    tmp_path: Path, clock: StandingClock
) -> None:
    path, asked = tmp_path / "l", list[float]()
    held, began = lease.acquire(path, "p", "t"), clock.now

    def ask() -> None:
        asked.append(clock.now - began)
        if len(asked) == 9:
            raise OSError("the disk is full")

    assert lease.observe(path, while_silent=ask)[1] is Liveness.STALE
    assert asked == pytest.approx([2, 4, 6, 8, 10], abs=0.3)
    with pytest.raises(OSError, match="the disk is full"):
        lease.observe(path, while_silent=ask)
    clock.meanwhile = lambda: lease.renew(path, held)
    assert lease.observe(path, while_silent=ask)[1] is Liveness.ALIVE
    assert len(asked) == 9


def stalling(clock: StandingClock, monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Let the file system answer the second read late, as it is before what others do when it answers again."""
    read, reads = lease.read, itertools.count(1)

    def late(path: Path) -> lease.Lease | None:
        held = read(path)
        if next(reads) == 2:
            clock.now += 10 * lease.STALE_SECONDS
            meanwhile()
        return held

    monkeypatch.setattr(lease, "read", late)


def test_a_monitor_does_not_take_a_late_answer_for_silence(
    tmp_path: Path, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l"
    held = lease.acquire(path, "p", "t")
    monitor = lease.HeartbeatMonitor("t", path)
    stalling(clock, monkeypatch, lambda: lease.renew(path, held))
    assert monitor.look() is Liveness.ALIVE
    clock.now += lease.HEARTBEAT_SECONDS
    assert monitor.look() is Liveness.ALIVE, "the holder was held up, too"
    assert monitor.look() is Liveness.ALIVE
    clock.now += lease.STALE_SECONDS + 1
    assert monitor.look() is Liveness.STALE


def test_settling_does_not_take_a_late_answer_for_silence(
    tmp_path: Path, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "l"
    held = lease.acquire(path, "p", "t")
    stalling(clock, monkeypatch, lambda: lease.renew(path, held))
    assert lease.observe(path)[1] is Liveness.ALIVE


def test_a_driver_elsewhere_is_not_lost_while_other_documents_are_waited_for(
    tmp_path: Path, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "time", clock)
    path = tmp_path / "l"
    held = replace(lease.acquire(path, "p", "t"), machine="elsewhere")
    json_store.write(path, asdict(held))
    driver = RemoteDriver("t", path)
    assert driver.ended() is None
    clock.now += 10 * lease.STALE_SECONDS
    assert driver.ended() is None, "it was held up, too"
    while (ended := driver.ended()) is None and clock.now < 2_000_000:
        clock.now += 5 * lease.HEARTBEAT_SECONDS
    assert ended is not None, "however slowly the file system answers"


@pytest.mark.parametrize("ahead_seconds", [-3600, 3600])
def test_a_beating_holder_is_alive_and_a_silent_one_is_not_whatever_its_clock_says(
    tmp_path: Path, clock: StandingClock, ahead_seconds: int
) -> None:
    path = tmp_path / "l"
    theirs = replace(lease.acquire(path, "p", "t"), machine="elsewhere", heartbeat=clock.now + ahead_seconds)
    json_store.write(path, asdict(theirs))
    later = replace(theirs, heartbeat=theirs.heartbeat + 2)
    clock.meanwhile = lambda: json_store.write(path, asdict(later))
    assert lease.observe(path)[1] is Liveness.ALIVE
    assert lease.observe(path)[1] is Liveness.STALE, "what is written is the same from now on"


def test_a_higher_run_takes_its_lease_back_from_a_lower_one_that_was_frozen_while_it_renewed(tmp_path: Path) -> None:
    path = tmp_path / "l"
    successor = replace(lease.acquire(path, "p", "successor"), run=2)
    json_store.write(path, asdict(replace(successor, token="zombie", run=1)))
    assert lease.renew(path, successor) is not None
    held = lease.read(path)
    assert held is not None
    assert held.token == "successor"


def test_the_same_pid_in_another_namespace_is_not_looked_up(tmp_path: Path) -> None:
    held = lease.acquire(tmp_path / "l", "p", "t")
    assert not lease.is_dead(replace(held, machine=f"{held.host} boot pid:[1]", process_started=1))


def test_a_lease_that_a_newer_release_has_taken_under_another_schema_is_left_alone(tmp_path: Path) -> None:
    mine = lease.acquire(tmp_path / "l", "p", "mine")
    json_store.write(tmp_path / "l", {**asdict(mine), "schema": 2, "token": "newer"})
    assert lease.renew(tmp_path / "l", mine) is None
    lease.release(tmp_path / "l", mine)
    assert json_store.read(tmp_path / "l", readable=(2,)) is not None
    with pytest.raises(RefusedError, match="schema 2"):
        lease.read(tmp_path / "l")


@pytest.mark.parametrize("error", [OSError("no answer"), OutcomeUnknownError("no answer")])
def test_a_release_without_an_answer_does_not_hide_why_a_hold_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(json_store, "remove", fail)
    with pytest.raises(RefusedError, match="the work"), lease.holding(tmp_path / "l", "p", "t"):
        raise RefusedError("the work")


@pytest.mark.parametrize("error", [OSError("no answer"), OutcomeUnknownError("no answer"), ValueError("a client")])
def test_a_renewal_that_failed_is_followed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    renewed: list[lease.Lease] = []
    waits, outcomes = iter([False, False, True]), iter([error, None, None])

    def renew(_: Path, held: lease.Lease) -> lease.Lease:
        if (failure := next(outcomes)) is not None:
            raise failure
        renewed.append(held)
        return held

    monkeypatch.setattr(lease, "renew", renew)
    ended = SimpleNamespace(wait=lambda _: next(waits), set=lambda: None)
    monkeypatch.setattr(lease, "threading", SimpleNamespace(Event=lambda: ended, Thread=ThreadOfItsStarter))
    with lease.holding(tmp_path / "l", "p", "t"):
        assert len(renewed) == 1


class ThreadOfItsStarter:
    def __init__(self, target: Callable[[], None], **_: object) -> None:
        self.start, self.join = target, lambda: None

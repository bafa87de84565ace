"""A stop that meets a supervisor between two drivers: it is held exactly there, with real processes and files."""

from __future__ import annotations

import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control import drivers, processes, restarts
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.status import Status
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.waiting import HANG_SECONDS, eventually

SCRIPT = Path(__file__).with_name("contract_driver.py")
DIES = "take-lease commit die"
LIVES = "take-lease commit until-stop"


class Hold:
    """A place where a thread waits until it is let go."""

    def __init__(self) -> None:
        self.reached, self._go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.reached.set()
        assert self._go.wait(HANG_SECONDS)

    def let_go(self) -> None:
        self._go.set()


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    for token in tokens(home):  # a failed test leaves nothing running
        processes.kill_leftovers(token)


@pytest.fixture
def hold() -> Iterator[Hold]:
    hold = Hold()
    yield hold
    hold.let_go()  # a failed test leaves no thread behind


def held_before(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, hold: Hold, *, call: int) -> None:
    """Hold before the given call of a function, the first being 1."""
    real, calls = getattr(module, name), iter(range(1, 1000))

    def waits(*arguments: Any, **more: Any) -> Any:
        if next(calls) == call:
            hold()
        return real(*arguments, **more)

    monkeypatch.setattr(module, name, waits)


@contextmanager
def supervising(
    home: Home, *plans: str, launching: Callable[[int], None] = lambda start: None
) -> Iterator[Future[list[Status]]]:
    """Supervise in a thread; the first driver follows the first plan, the next one the next."""
    starts = iter(range(1, 100))

    def launch() -> Launch:
        number = next(starts)
        launching(number)
        command = [sys.executable, str(SCRIPT), "--home", str(home.path), "--until", "forever", *plans]
        return Launch(command=command, printable="", environment={})

    supervisor = Supervisor(
        home,
        launch,
        Supervision(
            owner="o",
            until="forever",
            strategy=RestartStrategy.fixed_delay(1000, timedelta(0)),
            poll_seconds=0.02,
            stop_timeout_seconds=HANG_SECONDS,
        ),
    )
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(lambda: list[Status](supervisor.run()))


def stop(home: Home, request: StopRequest) -> None:
    """Advance a request to its end; from then on nothing may be running, or start."""
    eventually(request.advance, "the request's end", poll_seconds=0.02)
    started = logs(home)
    time.sleep(0.5)
    assert logs(home) == started, "a driver was started after the stop was done"
    assert all(processes.leader(token) is None for token in tokens(home))


def check_ending(ending: Future[list[Status]], reason: str) -> None:
    """A supervisor ends in order when its driver does, and with the reason when that died."""
    error = ending.exception(HANG_SECONDS)
    assert error is None or (isinstance(error, StopRequestedError) and reason in str(error)), error


def logs(home: Home) -> list[str]:
    return sorted(file.name for file in home.logs.glob("driver-*.log"))


def tokens(home: Home) -> set[str]:
    recorded = {entry.token for entry in restarts.read(home.restarts)}
    intent = intents.read(home.intent)
    return recorded | ({intent.token} if intent is not None else set())


def died_once(home: Home, hold: Hold, monkeypatch: pytest.MonkeyPatch, where: str) -> Callable[[int], None]:
    """Hold a supervisor at a place of its way from the first driver's death to the second one's process."""
    if where == "its death is seen":
        held_before(monkeypatch, restarts, "append", hold, call=1)
    elif where == "its death is on record":
        held_before(monkeypatch, intents, "remove", hold, call=1)
    elif where == "the wait is over":
        return lambda start: hold() if start == 2 else None
    elif where == "the next is announced":
        held_before(monkeypatch, processes, "start", hold, call=2)
    return lambda start: None


@pytest.mark.parametrize("successor", [LIVES, DIES], ids=["lives", "dies"])
@pytest.mark.parametrize(
    "where", ["its death is seen", "its death is on record", "the wait is over", "the next is announced"]
)
@pytest.mark.parametrize("waits", [False, True], ids=["goes on at once", "is held"])
def test_a_stop_after_a_drivers_death_reaches_its_supervisor(
    home: Home, hold: Hold, monkeypatch: pytest.MonkeyPatch, where: str, successor: str, waits: bool
) -> None:
    launching = died_once(home, hold, monkeypatch, where)
    with supervising(home, DIES, successor, launching=launching) as ending:
        assert hold.reached.wait(HANG_SECONDS)
        request = StopRequest(home, "abc", reason="maintenance")
        done = request.advance() if waits else False
        assert not (done and where == "the next is announced"), "that driver is still to come"
        hold.let_go()
        stop(home, request)
        check_ending(ending, "maintenance")
    assert len(logs(home)) <= 2 or not waits, "nothing is started after the driver that was announced"


def test_a_stop_is_not_done_because_a_driver_started_and_died_between_two_looks(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, third = Hold(), Hold()
    look, looks = drivers.awaiting_restart, iter(range(1, 1000))

    def look_while_the_second_lives(home: Home, *, lost: str | None = None) -> drivers.Death | None:
        if next(looks) > 1:
            return look(home, lost=lost)
        second.let_go()
        assert third.reached.wait(HANG_SECONDS)
        return None

    monkeypatch.setattr(drivers, "awaiting_restart", look_while_the_second_lives)
    launching = {2: second, 3: third}
    with supervising(home, DIES, DIES, LIVES, launching=lambda start: launching.get(start, lambda: None)()) as ending:
        assert second.reached.wait(HANG_SECONDS)
        request = StopRequest(home, "abc", reason="maintenance")
        assert request.target() is not None, "a driver is to come"
        third.let_go()
        stop(home, request)
        check_ending(ending, "maintenance")


def test_a_stop_is_not_done_because_a_driver_is_started_between_two_looks(
    home: Home, hold: Hold, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looks = drivers.is_there, iter(range(1, 1000))

    def look_before_it_is_started(home: Home, token: str) -> bool:
        seen = look(home, token)
        if next(looks) == 2:  # the first is at which driver is meant
            hold.let_go()
            eventually(lambda: (intent := intents.read(home.intent)) is not None and intent.pid, "it is started")
        return seen

    held_before(monkeypatch, processes, "start", hold, call=1)
    with supervising(home, LIVES) as ending:
        assert hold.reached.wait(HANG_SECONDS)
        request = StopRequest(home, "abc", reason="maintenance")
        assert request.target() is not None
        with monkeypatch.context() as patched:
            patched.setattr(drivers, "is_there", look_before_it_is_started)
            done = request.advance()
        hold.let_go()
        stop(home, request)
        check_ending(ending, "maintenance")
    assert not done, "it has just been started"


@pytest.mark.parametrize("plan", [LIVES, DIES], ids=["lives", "dies"])
def test_a_stop_of_a_driver_that_has_no_process_yet_reaches_it(
    home: Home, hold: Hold, monkeypatch: pytest.MonkeyPatch, plan: str
) -> None:
    held_before(monkeypatch, processes, "start", hold, call=1)
    with supervising(home, plan) as ending:
        assert hold.reached.wait(HANG_SECONDS)
        request = StopRequest(home, "abc", reason="maintenance")
        assert not request.advance()
        hold.let_go()
        stop(home, request)
        check_ending(ending, "before restart 1: maintenance")
    assert len(logs(home)) == 1


def test_a_stop_after_a_supervisor_that_died_before_its_driver_had_a_process_ends(home: Home) -> None:
    token = secrets.token_hex(8)
    intents.write(home.intent, Intent(token=token, owner="o", until="forever", series=token, restarts=0, log="x"))
    stop(home, StopRequest(home, "abc", reason="maintenance"))

"""Standbys with real processes: of a supervisor, and alone; scripts that speak the control contract stand for Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease, processes, requests, restarts, standbys, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.pipeline_state import outlook
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, DriverFailedError, StopRequestedError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.control.supervising import SCRIPT, launch, notes, wait_for

RUNS = "take-lease commit until-stop"
DIES = "take-lease commit go die"
STANDBY = "take-lease commit until-stop"


def supervisor(home: Home, how: Launch | Callable[[], Launch], attempts: int = 3) -> Supervisor:
    strategy = (
        RestartStrategy.fixed_delay(attempts=attempts, delay=timedelta(0)) if attempts else RestartStrategy.none()
    )
    return Supervisor(
        home,
        how,
        Supervision(owner="shop/stream/run1/-1", until="forever", strategy=strategy, poll_seconds=0.05, standby=True),
    )


@contextmanager
def supervised(watching: Supervisor) -> Iterator[list[BaseException]]:
    """Supervise beside the test, and stop at its end."""
    raised: list[BaseException] = []

    def work() -> None:
        try:
            for _ in watching.run():
                pass
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield raised
    finally:
        watching.stop("the test is over")
        thread.join()


def pids_of(home: Home, event: str) -> list[int]:
    return [int(str(note["pid"])) for note in notes(home, event)]


def lives(pid: int) -> bool:
    return process_identity.process_start(pid) is not None


def let(home: Home, run: int) -> None:
    (home.here / f"go-{run}").touch()


def test_the_standby_is_the_next_driver_in_the_same_series_and_a_new_one_stands_by(home: Home) -> None:
    watching = supervisor(home, launch(home, DIES, STANDBY, until="forever"))
    with supervised(watching):
        wait_for(lambda: len(notes(home, "stands by")) == 1)
        wait_for(lambda: standbys.waiting(home))
        first = intents.read(home.intent)
        let(home, 1)
        wait_for(lambda: len(notes(home, "stands by")) == 2)
        second = intents.read(home.intent)
        assert first is not None
        assert second is not None
        assert [note["token"] for note in notes(home, "takes over")] == [second.token]
        assert second.token == notes(home, "stands by")[0]["token"]
        assert (second.series, second.restarts) == (first.series, 1)
        assert Path(second.log) != Path(first.log)
        assert second.pid == notes(home, "takes over")[0]["pid"]
        [restart] = restarts.read(home.restarts)
        assert restart.token == first.token
        assert restart.relaunched is not None
    assert len(notes(home, "takes over")) == 1, "the stop ends driver and standby"
    assert not any(map(lives, pids_of(home, "started")))
    assert standbys.waiting(home) is None


def test_a_standby_that_dies_costs_the_driver_nothing_and_the_next_start_is_an_ordinary_one(home: Home) -> None:
    watching = supervisor(home, launch(home, DIES, STANDBY, STANDBY, until="forever"))
    with supervised(watching):
        wait_for(lambda: notes(home, "stands by"))
        [standby] = pids_of(home, "stands by")
        os.kill(standby, signal.SIGKILL)
        wait_for(lambda: not lives(standby))
        assert lives(pids_of(home, "started")[0])
        let(home, 1)
        wait_for(lambda: restarts.read(home.restarts) and len(notes(home, "started")) >= 3)
        assert notes(home, "takes over") == []


def test_no_restart_ends_the_standby(home: Home) -> None:
    watching = supervisor(home, launch(home, DIES, STANDBY, until="forever"), attempts=0)
    with supervised(watching) as raised:
        wait_for(lambda: notes(home, "stands by"))
        let(home, 1)
        wait_for(lambda: raised)
        assert isinstance(raised[0], DriverFailedError)
        wait_for(lambda: not any(map(lives, pids_of(home, "started"))))
    assert notes(home, "takes over") == []


def test_a_standby_of_another_launch_is_not_the_next_driver(home: Home) -> None:
    hows = [launch(home, DIES, STANDBY, STANDBY, until="forever")]
    watching = supervisor(home, lambda: hows[-1])
    with supervised(watching):
        wait_for(lambda: notes(home, "stands by"))
        [standby] = pids_of(home, "stands by")
        hows.append(replace(hows[0], environment={"EXACTLYONCE_KAFKA": "another password"}))
        let(home, 1)
        wait_for(lambda: len(notes(home, "started")) >= 3)
        assert not lives(standby)
        assert notes(home, "takes over") == []


def test_a_stop_that_was_meant_for_the_driver_that_died_ends_the_standby_that_is_about_to_go_on(home: Home) -> None:
    how, asked = launch(home, DIES, STANDBY, until="forever"), threading.Event()

    def stopped_meanwhile() -> Launch:
        dead = restarts.read(home.restarts)
        if dead:  # the delay is over, and nobody has looked at the home since
            requests.request_stop(home, dead[-1].token, reason="somebody")
            asked.set()
        return how

    with supervised(supervisor(home, stopped_meanwhile)) as raised:
        wait_for(lambda: notes(home, "stands by"))
        let(home, 1)
        wait_for(lambda: raised)
        assert asked.is_set()
        assert isinstance(raised[0], StopRequestedError)
        assert not any(map(lives, pids_of(home, "started")))
    assert notes(home, "takes over") == []
    assert intents.read(home.intent) is None


def test_a_standby_ends_with_its_supervisor_and_the_driver_goes_on(home: Home) -> None:
    code = f"""
from datetime import timedelta
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
launch = Launch(command={list(launch(home, RUNS, STANDBY, until="forever").command)!r}, printable="", environment={{}})
for _ in Supervisor(Home({str(home.path)!r}), launch, Supervision(owner="shop/stream/run1/-1", until="forever",
                    strategy=RestartStrategy.none(), poll_seconds=0.05, standby=True)).run():
    pass
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: notes(home, "stands by"))
    process.kill()
    process.wait()
    driver, standby = pids_of(home, "started")
    wait_for(lambda: not lives(standby))
    assert lives(driver)
    assert notes(home, "takes over") == []
    with supervised(supervisor(home, launch(home, RUNS, STANDBY, until="forever"))):  # the task's next try
        wait_for(lambda: len(notes(home, "stands by")) == 2)
        assert lives(driver)
    assert not any(map(lives, pids_of(home, "started")))


# -- without a supervisor ---------------------------------------------------------------------------------------------


def start(home: Home, token: str, *plan: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(SCRIPT), "--home", str(home.path), "--until", "forever", *plan]
    return subprocess.Popen(
        command, env={**os.environ, processes.TOKEN_VARIABLE: token}, start_new_session=True, stderr=subprocess.DEVNULL
    )


def test_alone_it_takes_over_from_a_driver_whose_process_has_ended(home: Home) -> None:
    home.control.mkdir(parents=True)
    driver = start(home, "first", RUNS)
    wait_for(lambda: lease.read(home.lease))
    standby = start(home, "second", RUNS, RUNS, "--standby", "warm")
    wait_for(lambda: standbys.waiting(home))
    driver.kill()
    driver.wait()
    wait_for(lambda: (held := lease.read(home.lease)) is not None and held.token == "second")
    requests.request_stop(home, "second", reason="test")
    assert standby.wait() == 0


def test_alone_it_ends_where_the_driver_was_asked_to_stop_though_it_was_killed_first(home: Home) -> None:
    home.control.mkdir(parents=True)
    driver = start(home, "first", "take-lease go")
    wait_for(lambda: lease.read(home.lease))
    turn = standbys.LeaseTurn(home)
    assert not turn.has_come()
    requests.request_stop(home, "first", reason="somebody")
    driver.kill()
    driver.wait()
    with pytest.raises(StopRequestedError, match="was asked to stop: somebody"):
        turn.has_come()
    assert standbys.LeaseTurn(home).has_come(), "who begins to stand by now has seen nobody stop"


def test_alone_it_is_refused_where_a_supervisor_starts_the_next_driver(home: Home) -> None:
    with supervised(supervisor(home, launch(home, RUNS, STANDBY, until="forever"))):
        wait_for(lambda: lease.read(home.lease))
        with pytest.raises(AlreadyRunningError, match=r"is supervised by shop/stream/run1/-1.*standby='warm'"):
            standbys.LeaseTurn(home).has_come()


def test_between_death_and_takeover_the_outlook_names_the_standby_and_a_stop_is_meant_for_it(home: Home) -> None:
    home.control.mkdir(parents=True)
    driver = start(home, "first", "take-lease go")
    wait_for(lambda: lease.read(home.lease))
    standby = start(home, "second", RUNS, RUNS, "--standby", "warm")
    wait_for(lambda: standbys.waiting(home))
    os.kill(standby.pid, signal.SIGSTOP)  # so that it does not take over at once
    driver.kill()
    driver.wait()
    assert f"the standby (pid {standby.pid} on" in str(outlook(home))
    stop = stopping.StopRequest(home, "aa11", reason="somebody")
    assert stop.target() == "first"
    assert stop.advance()
    os.kill(standby.pid, signal.SIGCONT)
    assert standby.wait() != 0, "it sees that the driver was asked to stop"
    assert lease.read(home.lease).token == "first"  # type: ignore[union-attr]

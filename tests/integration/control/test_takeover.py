"""Drivers that a supervisor finds: of its own task, of another one, of a person; real processes, real files."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import json_store, lease, processes, requests, restarts, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.control.alarms import after, alarm
from tests.integration.control.contract_driver import let_go
from tests.integration.control.supervising import (
    AT_ONCE,
    first_supervisor_killed,
    launch,
    notes,
    supervising_process,
    supervisor,
    wait_for,
)
from tests.waiting import HANG_SECONDS


def test_a_driver_outlives_its_supervisor_and_the_next_one_takes_it_over(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go commit end=finished", until_note="up")
    two = supervisor(home, "exit=1")
    seen = two.run()
    assert next(seen).commit == 1
    let_go(home)
    assert [status.commit for status in seen][-1] == 2
    assert len(notes(home, "started")) == 1
    assert two.restarts == 0


def test_a_driver_that_has_no_lease_yet_is_found_by_its_token(home: Home) -> None:
    first_supervisor_killed(home, "note=up go take-lease commit end=finished", until_note="up")
    assert lease.read(home.lease) is None
    with alarm(after(1), lambda: let_go(home)):
        list(supervisor(home, "exit=1").run())
    assert len(notes(home, "started")) == 1


def test_a_driver_whose_supervisor_died_before_it_noted_the_pid_is_found_by_its_token(home: Home) -> None:
    first_supervisor_killed(home, "note=up go take-lease commit end=finished", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    intents.write(home.intent, replace(intent, pid=0, process_started=0))
    with alarm(after(1), lambda: let_go(home)):
        list(supervisor(home, "exit=1").run())
    assert len(notes(home, "started")) == 1


def test_a_driver_that_died_unseen_is_replaced(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go die", until_note="up")
    let_go(home)
    wait_for(lambda: lease.look(home.lease)[1] is lease.Liveness.DEAD)
    list(supervisor(home, "exit=1", "take-lease end=finished").run())
    assert len(notes(home, "started")) == 2


def test_a_driver_that_is_taken_over_and_dies_is_restarted_in_its_series(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go die", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    intents.write(home.intent, replace(intent, restarts=2))
    two = supervisor(home, "exit=1", "take-lease end=finished")
    seen = two.run()
    next(seen)
    let_go(home)
    list(seen)
    assert two.restarts == 3
    [restart] = restarts.read(home.control / "restarts.json")
    assert (restart.series, restart.number, restart.exit_code) == (intent.series, 3, None)


def test_another_task_waits_for_a_living_driver_and_then_starts_its_own(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go end=finished", until_note="up")
    two = supervisor(home, "exit=1", "take-lease commit end=finished", owner="shop/stream/run2/-1")
    seen = two.run()
    next(seen)
    let_go(home)
    assert list(seen)[-1].commit == 2, "what came after the first driver's start is committed, too"
    assert len(notes(home, "started")) == 2


def driver_of_a_person(home: Home) -> processes.ChildDriver:
    """Start a driver that no task has started; it runs until it is stopped."""
    home.control.mkdir(parents=True)
    process = processes.start(
        launch(home, "take-lease note=up until-stop").command,
        token="of-a-person",
        environment={},
        directory=home.control,
        log=home.control / "log",
    )
    wait_for(lambda: notes(home, "up"))
    return process


def test_a_driver_that_no_task_started_is_left_alone(home: Home) -> None:
    process = driver_of_a_person(home)
    with pytest.raises(AlreadyRunningError, match=rf"pid {process.process.pid} on .* no Airflow task has started"):
        list(supervisor(home, "exit=1").run())
    assert process.ended() is None
    stopping.ask_and_enforce(home, "of-a-person", reason="test", timeout_seconds=HANG_SECONDS)
    wait_for(process.ended)  # it has no name any more before it has an exit code
    assert process.ended() == processes.Ended(exit_code=0)


def test_a_driver_that_runs_for_ever_can_not_be_waited_for(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up until-stop", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    intents.write(home.intent, replace(intent, until="forever"))
    with pytest.raises(AlreadyRunningError, match="CommitGateSensor"):
        list(supervisor(home, "exit=1", owner="shop/stream/run2/-1").run())
    stopping.ask_and_enforce(home, intent.token, reason="test", timeout_seconds=HANG_SECONDS)
    assert processes.leader(intent.token) is None


def test_a_driver_that_hangs_is_killed_and_replaced(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 2.0)
    first_supervisor_killed(home, "take-lease commit note=up sleep=60", until_note="up")
    [up] = notes(home, "up")
    os.kill(int(str(up["pid"])), signal.SIGSTOP)
    held = lease.read(home.lease)
    assert held is not None
    json_store.write(home.lease, {**vars(held), "heartbeat": held.heartbeat - 60})
    list(supervisor(home, "exit=1", "take-lease end=finished").run())
    assert process_identity.process_start(int(str(up["pid"]))) is None
    assert len(notes(home, "started")) == 2


def test_a_driver_that_is_silent_because_its_home_takes_no_writes_goes_on(home: Home, tmp_path: Path) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go commit end=finished", until_note="up")
    [up] = notes(home, "up")
    pid, said = int(str(up["pid"])), tmp_path / "said"

    def lives() -> bool:
        return process_identity.process_start(pid) is not None

    limit_files(pid, 0)
    prepared = """
import logging, resource
from airflow_provider_exactlyonce.control import lease
lease.STALE_SECONDS = 2.0
logging.basicConfig(level=logging.INFO)
resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
"""
    with said.open("wb") as file, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as kept:
        second = supervising_process(home, "exit=1", before=prepared, stderr=kept.stdin)
        try:
            wait_for(lambda: not lives() or said.read_bytes().count(b"it takes no writes") >= 2)
            assert lives(), "its home can be read, and does not tell of it"
            assert "[Errno 27] File too large" in said.read_text()
            silent = lease.read(home.lease)
            limit_files(pid, resource.RLIM_INFINITY)
            wait_for(lambda: lease.read(home.lease) != silent)
            limit_files(second.pid, resource.RLIM_INFINITY)
            let_go(home)
            assert second.wait(HANG_SECONDS) == 0
        finally:
            second.kill()
            second.wait()
            let_go(home)
    assert len(notes(home, "started")) == 1


def limit_files(pid: int, size: int) -> None:
    """Let a process write nothing beyond a size to any file."""
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


def forever_of_another_task(home: Home) -> Intent:
    first_supervisor_killed(home, "take-lease commit note=up until-stop", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    intents.write(home.intent, replace(intent, until="forever"))
    return replace(intent, until="forever")


def another(home: Home, *plans: str, if_running: IfRunning, until: str = "available") -> Supervisor:
    return Supervisor(
        home,
        launch(home, *plans, until=until),
        Supervision(
            owner="shop/stream/run2/-1",
            until=until,
            strategy=RestartStrategy.none(),
            if_running=if_running,
            poll_seconds=0.05,
            stop_timeout_seconds=HANG_SECONDS,
        ),
    )


@pytest.mark.parametrize("until", ["available", "forever"])
def test_another_tasks_driver_is_replaced_when_that_is_wanted(home: Home, until: str) -> None:
    intent = forever_of_another_task(home)
    two = another(home, "exit=1", "take-lease commit end=finished", if_running=IfRunning.REPLACE, until=until)
    assert [status.commit for status in two.run()][-1] == 2
    assert requests.stop_requested(home, intent.token) == "shop/stream/run2/-1 replaces it"
    assert processes.members(intent.token) == []
    assert len(notes(home, "started")) == 2


def test_another_tasks_driver_fails_the_task_when_that_is_wanted(home: Home) -> None:
    intent = forever_of_another_task(home)
    with pytest.raises(AlreadyRunningError, match=r"a driver of shop/stream/run1/-1 runs this pipeline, .* is fail"):
        list(another(home, "exit=1", if_running=IfRunning.FAIL, until="forever").run())
    assert processes.leader(intent.token) is not None
    stopping.ask_and_enforce(home, intent.token, reason="test", timeout_seconds=HANG_SECONDS)


def test_a_persons_driver_is_replaced_when_that_is_wanted(home: Home) -> None:
    process = driver_of_a_person(home)
    list(another(home, "exit=1", "take-lease end=finished", if_running=IfRunning.REPLACE).run())
    assert process.ended() == processes.Ended(exit_code=0)


@pytest.mark.parametrize("if_running", list(IfRunning))
def test_the_own_driver_is_taken_over_whatever_is_to_happen_to_others(home: Home, if_running: IfRunning) -> None:
    first_supervisor_killed(
        home, "take-lease commit note=up go end=finished", until_note="up", owner="shop/stream/run2/-1"
    )
    seen = another(home, "exit=1", if_running=if_running).run()
    next(seen)
    let_go(home)
    assert list(seen)[-1].commit == 1
    assert len(notes(home, "started")) == 1


def test_a_driver_that_finished_unseen_is_done_and_not_started_again(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go end=finished", until_note="up")
    let_go(home)
    intent = intents.read(home.intent)
    assert intent is not None
    wait_for(lambda: not processes.members(intent.token))
    assert list(supervisor(home, "exit=1").run())[-1].commit == 1
    assert len(notes(home, "started")) == 1
    assert intents.read(home.intent) is None
    list(supervisor(home, "exit=1", "take-lease end=finished").run())
    assert len(notes(home, "started")) == 2, "only the first time"


def test_an_end_that_nobody_saw_counts_only_until_the_task_is_cleared(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go end=finished", until_note="up")
    let_go(home)
    intent = intents.read(home.intent)
    assert intent is not None
    wait_for(lambda: not processes.members(intent.token))
    cleared = Supervisor(
        home,
        launch(home, "exit=1", "take-lease commit end=finished"),
        Supervision(owner="shop/stream/run1/-1", until="available", strategy=AT_ONCE, clears=1, poll_seconds=0.05),
    )
    assert list(cleared.run())[-1].commit == 2


def test_a_new_task_that_runs_for_ever_does_not_end_with_the_stop_of_an_old_one(home: Home) -> None:
    intent = forever_of_another_task(home)
    requests.request_stop(home, intent.token, reason="maintenance")
    wait_for(lambda: not processes.members(intent.token))
    two = another(home, "exit=1", "take-lease commit end=finished", if_running=IfRunning.ADOPT, until="forever")
    assert list(two.run())[-1].commit == 2

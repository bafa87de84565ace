"""The life of a driver and its restarts: scripts that speak the control contract, real signals, real files."""

from __future__ import annotations

import signal
import stat
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.control import exit_classification, processes, restarts
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.driver_output import DriverOutput
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    DataError,
    DriverFailedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
)
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.streaming.settings import TOKEN_VARIABLE, program_of
from tests.integration.control.contract_driver import let_go
from tests.integration.control.supervising import (
    AT_ONCE,
    SECRET,
    first_supervisor_killed,
    launch,
    notes,
    supervisor,
)
from tests.processes import command_line


def test_both_halves_name_the_start_token_alike() -> None:
    assert processes.TOKEN_VARIABLE == TOKEN_VARIABLE


def test_a_driver_that_finishes_yields_each_change_once_and_leaves_no_intent(home: Home) -> None:
    plan = f"take-lease commit wait-for={home.path}/1 commit wait-for={home.path}/2 end=finished"
    seen = []
    for status in supervisor(home, plan).run():
        seen.append(status)
        (home.path / str(status.commit)).touch()
    assert [(status.state.value, status.commit) for status in seen[-3:]] == [
        ("running", 1),
        ("running", 2),
        ("finished", 2),
    ]
    assert intents.read(home.intent) is None
    assert len(seen) == len({(status.state, status.commit) for status in seen})


def test_a_killed_driver_is_started_again_at_once_and_the_death_is_on_record(home: Home) -> None:
    supervised = supervisor(home, "take-lease commit die", "take-lease commit end=finished")
    assert list(supervised.run())[-1].commit == 2
    [died] = notes(home, "died")
    [restart] = restarts.read(home.control / "restarts.json")
    assert (restart.number, restart.run, restart.commit, restart.exit_code) == (1, 1, 1, -signal.SIGKILL)
    assert restart.cause == "the driver was killed by signal 9"
    assert restart.died >= float(str(died["at"]))
    assert restart.due == restart.died
    assert restart.relaunched is not None
    assert supervised.restarts == 1


def test_the_driver_fails_the_work_when_its_restarts_are_used_up(home: Home) -> None:
    strategy = RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0))
    supervised = supervisor(home, "take-lease die", strategy=strategy)
    with pytest.raises(DriverFailedError, match="killed by signal 9"):
        list(supervised.run())
    assert len(notes(home, "started")) == 3
    assert [entry.number for entry in restarts.read(home.control / "restarts.json")] == [1, 2]


def test_the_delay_of_the_strategy_is_kept(home: Home) -> None:
    strategy = RestartStrategy.fixed_delay(attempts=1, delay=timedelta(seconds=0.6))
    list(supervisor(home, "take-lease die", "take-lease end=finished", strategy=strategy).run())
    [restart] = restarts.read(home.control / "restarts.json")
    assert restart.relaunched is not None
    assert restart.relaunched - restart.died >= 0.6
    assert restart.due == pytest.approx(restart.died + 0.6)


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ("take-lease fail=BadRecordError:fix_data:67:not_JSON_at_shop-0@12", DataError, "BadRecordError: not JSON"),
        ("take-lease fail=RefusedError:refuse:64:foreign_ledger", RefusedError, "foreign ledger"),
        ("take-lease fail=FencedError:exit:66:run_9_took_over", FencedError, "run 9 took over"),
        ("exit=65", AlreadyRunningError, "exit code 65"),
        ("print=12:00:00_ERROR_RefusedError:_another_home exit=64", RefusedError, "^RefusedError: another home$"),
        ("exit=66", FencedError, "exit code 66"),
        ("exit=67", DataError, "exit code 67"),
    ],
)
def test_a_driver_that_would_fail_again_is_not_started_again(
    home: Home, plan: str, error: type[ExactlyOnceError], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        list(supervisor(home, plan).run())
    assert exit_classification.is_final(caught.value)
    assert len(notes(home, "started")) == 1


@pytest.mark.parametrize("plan", ["exit=1", "take-lease fail=BatchFailedError:replay_batch:1:lost_an_executor"])
def test_a_failure_of_the_infrastructure_is_started_again(home: Home, plan: str) -> None:
    list(supervisor(home, plan, "take-lease end=finished").run())
    assert len(notes(home, "started")) == 2


def test_exit_code_zero_without_an_account_is_no_success(home: Home) -> None:
    with pytest.raises(RefusedError, match=r"main\(\)"):
        list(supervisor(home, "exit=0").run())


def test_the_output_goes_to_a_file_of_its_own_and_its_tail_can_be_shown(home: Home) -> None:
    supervised = supervisor(home, "print=first_words exit=1", "print=last_words exit=1", strategy=AT_ONCE)
    with pytest.raises(DriverFailedError):
        list(supervised.run())
    logs = sorted(home.logs.iterdir())
    assert [log.name for log in logs] == [f"driver-{number}.log" for number in (1, 2, 3, 4)]
    assert stat.S_IMODE(logs[0].stat().st_mode) == 0o600
    assert "first words" in exit_classification.log_tail(DriverOutput(home, "t", logs[0]))
    assert supervised.output is not None and supervised.output.log == logs[3]
    assert "last words" in exit_classification.log_tail(supervised.output)


def test_only_the_newest_outputs_are_kept(home: Home) -> None:
    home.logs.mkdir(parents=True)
    for number in range(1, 31):
        (home.logs / f"driver-{number}.log").touch()
    list(supervisor(home, "take-lease end=finished").run())
    numbers = sorted(int(log.stem.removeprefix("driver-")) for log in home.logs.iterdir())
    assert numbers == list(range(12, 32))


def test_the_intent_is_written_before_the_start_and_holds_no_secret(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, real = [], processes.start

    def start(*arguments: Any, **more: Any) -> processes.ChildDriver:
        seen.append((intents.read(home.intent), home.intent.read_text(), stat.S_IMODE(home.intent.stat().st_mode)))
        return real(*arguments, **more)

    monkeypatch.setattr(processes, "start", start)
    list(supervisor(home, "take-lease end=finished").run())
    ((intent, text, mode),) = seen
    assert intent is not None
    assert (intent.owner, intent.pid) == ("shop/stream/run1/-1", 0)
    assert SECRET not in text
    assert mode == 0o600


def test_a_start_that_never_happened_blocks_nobody(home: Home) -> None:
    with pytest.raises(FileNotFoundError):
        list(supervisor(home, command=["/nonexistent/spark-submit"]).run())
    assert intents.read(home.intent) is None
    assert list(supervisor(home, "take-lease end=finished").run())


def test_what_a_dead_leader_leaves_behind_is_killed_before_the_next_start(home: Home) -> None:
    """The JVM leads, the Python driver below it holds the lease; a JVM that dies alone must not block the pipeline."""
    plans = ["take-lease commit sleep=60", "take-lease end=finished"]
    inner = list(launch(home, *plans).command)
    outer = (
        f"import os, pathlib, subprocess, sys, time; child = subprocess.Popen({inner!r})\n"
        f"lease, before = pathlib.Path({str(home.lease)!r}), pathlib.Path({str(home.path / 'before')!r})\n"
        "if before.exists(): sys.exit(child.wait())\n"
        "before.touch()\n"
        "while not lease.exists(): time.sleep(0.02)\n"
        "os.kill(os.getpid(), 9)"
    )
    supervised = supervisor(home, command=[sys.executable, "-c", outer])
    list(supervised.run())
    assert len(notes(home, "started")) == 2
    assert all(command_line(int(str(note["pid"]))) == "" for note in notes(home, "started"))


def test_an_exponential_delay_grows_over_supervisors(home: Home) -> None:
    first_supervisor_killed(home, "take-lease commit note=up go die", until_note="up")
    intent = intents.read(home.intent)
    assert intent is not None
    now = time.time()
    for number in (1, 2, 3):
        earlier = restarts.Restart(
            series=intent.series,
            number=number,
            token=str(number),
            run=1,
            commit=0,
            cause="x",
            exit_code=1,
            died=now - 10 + number,
            relaunched=now - 9.5 + number,
        )
        restarts.append(home.restarts, earlier)
    intents.write(home.intent, replace(intent, restarts=3))
    strategy = RestartStrategy.exponential(initial=timedelta(seconds=0.2), multiplier=2, jitter=0)
    two = supervisor(home, "exit=1", "take-lease end=finished", strategy=strategy)
    seen = two.run()
    next(seen)
    let_go(home)
    list(seen)
    last = restarts.read(home.restarts)[-1]
    assert (last.number, two.restarts) == (4, 4)
    assert last.due == pytest.approx(last.died + 1.6)
    assert last.relaunched is not None
    assert last.relaunched >= last.due


def test_a_job_with_a_mistake_is_refused_at_its_first_start_in_the_jobs_own_words(home: Home, tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("import absent_package\n")
    with pytest.raises(RefusedError, match=rf"{job}:1: running it fails: ModuleNotFoundError"):
        list(supervisor(home, command=[sys.executable, *program_of(str(job))]).run())
    assert len(list(home.logs.iterdir())) == 1, "no restart"


def test_of_two_that_have_found_no_driver_one_starts_one_and_the_other_waits_for_its_end(home: Home) -> None:
    """Between a look and a start lie seconds: connections are read, and packages are made."""
    first = supervisor(home, "take-lease commit go end=finished", owner="shop/stream/run1/-1")
    running = first.run()
    late = supervisor(home, owner="shop/stream/run2/-1")

    def launch_late() -> Launch:
        if not notes(home, "started"):
            next(running)
        return launch(home, "take-lease commit go end=finished", "take-lease commit end=finished")

    second = Supervisor(home, launch_late, late.supervision)
    followed = second.run()
    next(followed)
    assert second.waits_for_another
    intent = intents.read(home.intent)
    assert intent is not None and intent.owner == "shop/stream/run1/-1"
    let_go(home)
    assert list(running)[-1].commit == 1
    assert list(followed)[-1].commit == 2
    assert len(notes(home, "started")) == 2, "one after the other"

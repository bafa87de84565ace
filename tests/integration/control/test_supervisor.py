"""The supervisor with real processes: scripts that speak the control contract, real signals, real files."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import (
    driver_watch,
    exit_classification,
    json_store,
    lease,
    processes,
    requests,
    restarts,
    stopping,
)
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    DataError,
    DriverFailedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    StopRequestedError,
    UnhealthyError,
)
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.streaming.settings import TOKEN_VARIABLE, program_of
from tests.clocks import AheadClock
from tests.integration.control.alarms import after, alarm
from tests.integration.control.contract_driver import let_go
from tests.waiting import HANG_SECONDS, eventually

SCRIPT = Path(__file__).with_name("contract_driver.py")
AT_ONCE = RestartStrategy.fixed_delay(attempts=3, delay=timedelta(0))
SECRET = "kafka-password-4711"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    for pid in (int(str(note["pid"])) for note in notes(home)):  # a failed test leaves nothing running
        if str(home.path) in cmdline(pid):
            os.kill(pid, signal.SIGKILL)


def cmdline(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except FileNotFoundError:
        return ""


def notes(home: Home, event: str | None = None) -> list[dict[str, object]]:
    path = home.control / "notes.jsonl"
    all_notes = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return [note for note in all_notes if event in (None, note["event"])]


def launch(home: Home, *plans: str, until: str = "available") -> Launch:
    command = [sys.executable, str(SCRIPT), "--home", str(home.path), "--until", until, *plans]
    return Launch(command=command, printable=" ".join(command), environment={"EXACTLYONCE_KAFKA": SECRET})


def supervisor(
    home: Home,
    *plans: str,
    owner: str = "shop/stream/run1/-1",
    until: str = "available",
    strategy: RestartStrategy = AT_ONCE,
    stop_timeout_seconds: float = HANG_SECONDS,
    command: Sequence[str] = (),
    on_delay: Callable[[Intent, float], None] = lambda dead, due: None,
) -> Supervisor:
    how = launch(home, *plans, until=until)
    return Supervisor(
        home,
        replace(how, command=command or how.command),
        Supervision(
            owner=owner,
            until=until,
            strategy=strategy,
            poll_seconds=0.05,
            stop_timeout_seconds=stop_timeout_seconds,
            on_delay=on_delay,
        ),
    )


def first_supervisor_killed(home: Home, plan: str, *, until_note: str, owner: str = "shop/stream/run1/-1") -> None:
    """Let another process supervise, and SIGKILL it once its driver has written a note."""
    code = f"""
from datetime import timedelta
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import IfRunning, Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
command = {list(launch(home, plan).command)!r}
launch = Launch(command=command, printable="", environment={{}})
for _ in Supervisor(Home({str(home.path)!r}), launch, Supervision(owner={owner!r}, until="available",
                    strategy=RestartStrategy.none())).run():
    pass
"""
    process = subprocess.Popen([sys.executable, "-c", code])
    wait_for(lambda: notes(home, until_note))
    process.kill()
    process.wait()


def wait_for(condition: Callable[[], object]) -> None:
    eventually(condition, "the condition", poll_seconds=0.02)


def committed(home: Home) -> Callable[[], bool]:
    """Return the condition that a driver has committed."""

    def condition() -> bool:
        status = statuses.read(home.status)
        return status is not None and status.commit > 0

    return condition


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


def test_a_stop_that_was_meant_for_a_driver_that_dies_first_is_meant_for_its_successor_too(home: Home) -> None:
    supervised = supervisor(
        home, "take-lease commit die", "take-lease end=finished", strategy=RestartStrategy.fixed_delay(3, timedelta(30))
    )
    seen = supervised.run()
    requests.request_stop(home, next(seen).token, reason="maintenance")
    with pytest.raises(StopRequestedError, match=r"restart 1: maintenance; the driver had died: .* signal 9"):
        list(seen)
    assert len(notes(home, "started")) == 1


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
    assert "first words" in exit_classification.log_tail(logs[0])
    assert supervised.log == logs[3]
    assert "last words" in exit_classification.log_tail(supervised.log)


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
    wait_for(lambda: lease.look(home.lease)[1] is lease.Life.DEAD)
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


def test_a_driver_that_no_task_started_is_left_alone(home: Home) -> None:
    home.control.mkdir(parents=True)
    process = processes.start(
        launch(home, "take-lease note=up until-stop").command,
        token="of-a-person",
        environment={},
        directory=home.control,
        log=home.control / "log",
    )
    wait_for(lambda: notes(home, "up"))
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
        token="far", owner="shop/stream/run1/-1", until="available", series="far", restarts=0, log="", host="elsewhere"
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


def test_a_driver_of_another_host_that_falls_silent_is_lost_and_another_one_is_started(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
    driver = driver_elsewhere(home, "take-lease-elsewhere=0 commit note=up until-stop")
    wait_for(lambda: notes(home, "up"))
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
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
    driver = driver_elsewhere(home, "take-lease-elsewhere=0 commit note=up go commit end=finished")
    wait_for(lambda: notes(home, "up"))
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


def test_a_driver_of_another_host_that_comes_back_before_its_successor_has_the_lease_is_supervised_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", HANG_SECONDS)
    driver = driver_elsewhere(home, "take-lease-elsewhere=0 commit note=up go commit end=finished")
    wait_for(lambda: notes(home, "up"))
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
    write, supervised = intents.write, supervisor(home, "take-lease commit until-stop", stop_timeout_seconds=0.1)

    def interrupted(path: Path, intent: Intent) -> None:
        if intent.pid:  # the process is there, and nobody watches it yet
            raise Interrupt
        write(path, intent)

    monkeypatch.setattr(intents, "write", interrupted)
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

    def stopped(path: Path) -> tuple[lease.Lease | None, lease.Life]:
        seen = observe(path)
        supervised.stop("the task was killed")
        return seen

    monkeypatch.setattr(lease, "observe", stopped)
    with pytest.raises(StopRequestedError, match="the driver was stopped at commit 1: the task was killed"):
        list(supervised.run())
    assert all(cmdline(int(str(note["pid"]))) == "" for note in notes(home, "started"))


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
    assert all(cmdline(int(str(note["pid"]))) == "" for note in notes(home, "started"))


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
    home.control.mkdir(parents=True)
    process = processes.start(
        launch(home, "take-lease note=up until-stop").command,
        token="of-a-person",
        environment={},
        directory=home.control,
        log=home.control / "log",
    )
    wait_for(lambda: notes(home, "up"))
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


def watched(home: Home, *plans: str, health: HealthRules, strategy: RestartStrategy = AT_ONCE) -> Supervisor:
    return Supervisor(
        home,
        launch(home, *plans),
        Supervision(
            owner="o", until="available", strategy=strategy, health=health, poll_seconds=0.05, stop_timeout_seconds=1
        ),
    )


def test_too_many_restarts_within_the_window_are_unhealthy(home: Home) -> None:
    rules = HealthRules(max_restarts=2, restart_window=timedelta(minutes=1))
    with pytest.raises(UnhealthyError, match=r"3 drivers died within 60 s; max_restarts is 2; .*signal 9"):
        list(watched(home, "take-lease die", health=rules, strategy=RestartStrategy.exponential(jitter=0)).run())
    assert len(notes(home, "started")) == 3


def test_restarts_outside_the_window_are_healthy(home: Home) -> None:
    rules = HealthRules(max_restarts=1, restart_window=timedelta(seconds=0.4))
    plans = ["take-lease sleep=0.6 die", "take-lease sleep=0.6 die", "take-lease end=finished"]
    list(watched(home, *plans, health=rules).run())
    assert len(notes(home, "started")) == 3


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("take-lease commit sleep=60", "after commit 1, lag unknown"),
        ("sleep=60", "since the driver was started"),
        ("take-lease commit freeze", "after commit 1"),
    ],
)
def test_a_driver_that_does_not_commit_is_stopped_and_unhealthy(
    home: Home, monkeypatch: pytest.MonkeyPatch, plan: str, message: str
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(driver_watch, "time", clock)
    monkeypatch.setattr(stopping, "TERM_SECONDS", 0.3)
    up = committed(home) if "commit" in plan else lambda: bool(notes(home, "started"))

    def an_hour_goes_by() -> None:
        clock.ahead += 3600

    rules = HealthRules(no_commit_within=timedelta(hours=1))
    with alarm(up, an_hour_goes_by), pytest.raises(UnhealthyError, match=rf"no commit for 36\d\d s {message}"):
        list(watched(home, plan, health=rules).run())
    assert len(notes(home, "started")) == 1
    assert processes.members(str(notes(home)[0]["token"])) == []


def test_a_pipeline_without_new_records_or_that_has_finished_is_healthy() -> None:
    rules = HealthRules(no_commit_within=timedelta(seconds=60))
    intent = Intent(token="t", owner="o", until="available", series="t", restarts=0, log="", written=900.0)
    quiet = Status(pipeline="shop", token="t", state=DriverState.RUNNING, commit=1, lag=0, progressed=1000.0)
    assert driver_watch.stuck(intent, quiet, rules, 1060.0) is None
    assert driver_watch.stuck(intent, quiet, rules, 1061.0) is not None
    assert driver_watch.stuck(intent, replace(quiet, state=DriverState.FINISHED), rules, 1061.0) is None


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

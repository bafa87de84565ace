"""The supervisor of a driver that a cluster runs: real processes, and a manager that says what the test wants."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import clusters, exit_classification, requests, stopping
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER, Cluster, ClusterDriver, ClusterState
from airflow_provider_exactlyonce.control.driver_locator import DriverLocator
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.status import ENDED
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import DriverFailedError, RefusedError, StopRequestedError, UnhealthyError
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.control.alarms import alarm
from tests.integration.control.contract_driver import let_go
from tests.integration.control.supervising import SCRIPT, notes, wait_for
from tests.processes import command_line
from tests.waiting import HANG_SECONDS

#: Submits as spark-submit does: leaves a process behind that is the manager's, on this host by chance, and ends.
SUBMIT = """
import os, subprocess, sys
code, token, *arguments = sys.argv[1:]
if code == "0":
    environment = {**os.environ, "EXACTLYONCE_TOKEN": token}
    subprocess.Popen([sys.executable, *arguments], env=environment, start_new_session=True)
sys.exit(int(code))
"""


class Manager(Cluster):
    """A manager of a cluster: knows what has ended in order, and says of all else what the test wants."""

    def __init__(self, home: Home, answer: ClusterState = ClusterState.ACTIVE, *, name: str = "yarn") -> None:
        super().__init__(name)
        self.home = home
        self.answer = answer
        self.gone: set[str] = set()
        self.asked: list[str] = []
        self.refusal: RefusedError | None = None

    def check_access(self) -> None:
        if self.refusal is not None:
            raise self.refusal

    def state(self, token: str) -> ClusterState:
        self.asked.append(token)
        driver_status = exit_classification.status_of(self.home, token)
        has_ended = token in self.gone or (driver_status is not None and driver_status.state in ENDED)
        return ClusterState.GONE if has_ended else self.answer

    def account(self, token: str) -> str:
        return f"driver {token} is {self.state(token).value}"

    def kill(self, token: str) -> None:
        raise AssertionError("nothing is to be killed")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    monkeypatch.setattr(clusters, "_ASK_SECONDS", 0.1)
    home = Home(tmp_path / "home")
    yield home
    for pid in pids(home):
        if str(home.path) in command_line(pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids(home: Home) -> list[int]:
    return [int(str(note["pid"])) for note in notes(home, "started")]


def supervisor(
    home: Home,
    manager: Manager | None,
    *plans: str,
    code: int = 0,
    stop_timeout: float = HANG_SECONDS,
    health: HealthRules | None = None,
    left: Intent | None = None,
) -> Supervisor:
    arguments = [str(SCRIPT), "--home", str(home.path), "--until", "available", *plans]
    command = [sys.executable, "-c", SUBMIT, str(code), TOKEN_PLACEHOLDER, *arguments]
    return Supervisor(
        home,
        Launch(command=command, printable="", environment={}),
        Supervision(
            owner="shop/stream/run1/-1",
            until="available",
            cluster=manager,
            strategy=RestartStrategy.fixed_delay(attempts=1, delay=timedelta(0)),
            health=health or HealthRules(),
            poll_seconds=0.05,
            stop_timeout_seconds=stop_timeout,
        ),
        left=left,
    )


def run(supervised: Supervisor) -> threading.Thread:
    thread = threading.Thread(target=lambda: [None for _ in supervised.run()], daemon=True)
    thread.start()
    return thread


def first_token(home: Home) -> str:
    intent = intents.read(home.intent)
    assert intent is not None
    return intent.token


def test_the_end_of_the_submission_is_not_the_drivers_end(home: Home) -> None:
    manager = Manager(home)
    thread = run(supervisor(home, manager, "take-lease commit go commit end=finished"))
    wait_for(lambda: notes(home, "started") and home.lease.exists())
    intent = intents.read(home.intent)
    assert intent is not None
    assert (intent.host, intent.is_here, intent.pid) == ("yarn", False, 0)
    thread.join(0.7)
    assert thread.is_alive()
    let_go(home)
    thread.join()
    assert not thread.is_alive()
    assert len(pids(home)) == 1
    assert intents.read(home.intent) is None


@pytest.mark.parametrize("answer", [ClusterState.UNKNOWN, ClusterState.ACTIVE])
def test_a_driver_without_a_sign_of_life_is_replaced_only_when_the_cluster_says_that_it_is_gone(
    home: Home, answer: ClusterState
) -> None:
    manager = Manager(home, answer)
    thread = run(supervisor(home, manager, "take-lease commit sleep=60", "take-lease commit end=finished"))
    wait_for(lambda: notes(home, "started") and home.lease.exists())
    os.kill(pids(home)[0], signal.SIGKILL)
    asked = len(manager.asked)
    wait_for(lambda: len(manager.asked) > asked + 10)
    assert len(pids(home)) == 1
    manager.gone.add(first_token(home))
    thread.join()
    assert not thread.is_alive()
    assert len(pids(home)) == 2


def test_a_driver_that_the_cluster_would_refuse_to_tell_of_is_not_submitted(home: Home) -> None:
    manager = Manager(home)
    manager.refusal = RefusedError("it may not be looked up")
    with pytest.raises(RefusedError, match="it may not be looked up"):
        list(supervisor(home, manager, "take-lease commit end=finished").run())
    assert intents.read(home.intent) is None
    assert not notes(home, "started")


def test_the_next_try_takes_over_a_driver_that_lives(home: Home) -> None:
    left = supervisor(home, Manager(home), "take-lease commit until-stop")
    for status in left.run():  # a worker that dies leaves it so
        if status.commit:
            break
    successor = supervisor(home, Manager(home), "take-lease commit end=finished")
    for _ in successor.run():
        break
    assert successor.living is not None
    assert left.living is not None
    assert successor.living.token == left.living.token
    assert len(pids(home)) == 1


class DeafManager(Manager):
    """A manager that does not answer when it is asked to end something."""

    def kill(self, token: str) -> None:
        pass


class KillingManager(Manager):
    """A manager that ends what it is asked to."""

    def kill(self, token: str) -> None:
        self.gone.add(token)


def test_a_driver_that_its_killed_task_could_only_ask_to_stop_is_ended_by_the_next_try(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever kills a task has no way to the manager: neither the triggerer nor the process that completes a stop."""
    plans = ("take-lease commit sleep=60", "take-lease commit end=finished")
    for status in supervisor(home, Manager(home), *plans).run():
        if status.commit:
            break
    token = first_token(home)
    for name in ("TERM_SECONDS", "EXIT_GRACE_SECONDS"):
        monkeypatch.setattr(stopping, name, 0.1)
    monkeypatch.setattr(stopping, "detach", lambda *_, **__: None)  # of this host, by whose signal it would end
    requests.note_killed(home, token, "shop/stream/run1/-1")
    requests.request_stop(home, token, reason="the task was killed")
    manager = KillingManager(home)
    assert [status.commit for status in supervisor(home, manager, *plans, stop_timeout=0.1).run()][-1] == 2
    assert manager.gone == {token}
    assert len(pids(home)) == 2


@pytest.mark.parametrize("answer", [ClusterState.UNKNOWN, ClusterState.ACTIVE])
def test_the_next_try_waits_while_the_cluster_does_not_say_that_the_driver_is_gone(
    home: Home, answer: ClusterState
) -> None:
    plans = ("take-lease commit sleep=60", "take-lease commit end=finished")
    for status in supervisor(home, Manager(home), *plans).run():
        if status.commit:
            break
    os.kill(pids(home)[0], signal.SIGKILL)
    manager = Manager(home, answer)
    thread = run(supervisor(home, manager, *plans))
    wait_for(lambda: len(manager.asked) > 2)
    assert len(pids(home)) == 1
    manager.gone.add(first_token(home))
    thread.join()
    assert not thread.is_alive()
    assert len(pids(home)) == 2


def waiting_for_room(home: Home) -> None:
    """Leave the trace of a driver that was submitted a while ago and has not come up."""
    ours = Intent(
        token="queued", owner="shop/stream/run1/-1", until="available", series="queued", restarts=0, log="/dev/null",
        host="yarn", machine="yarn", written=time.time() - 1000,
    )  # fmt: skip
    intents.write(home.intent, ours)


@pytest.mark.parametrize("answer", [ClusterState.UNKNOWN, ClusterState.ACTIVE])
def test_a_driver_that_waits_for_room_is_taken_over_and_a_stop_reaches_its_manager(
    home: Home, monkeypatch: pytest.MonkeyPatch, answer: ClusterState
) -> None:
    for name in ("TERM_SECONDS", "EXIT_GRACE_SECONDS"):
        monkeypatch.setattr(stopping, name, 0.1)
    waiting_for_room(home)
    manager = KillingManager(home, answer)
    supervised = supervisor(home, manager, "exit=1", stop_timeout=0.1)
    with (
        alarm(lambda: supervised.living, lambda: supervised.stop("the task was killed")),
        pytest.raises(StopRequestedError, match="the task was killed"),
    ):
        list(supervised.run())
    assert manager.gone == {"queued"}
    assert requests.killed_by(home, "queued") == "shop/stream/run1/-1"
    assert not notes(home, "started")


def test_a_driver_that_waits_for_room_for_too_long_is_unhealthy(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TERM_SECONDS", "EXIT_GRACE_SECONDS"):
        monkeypatch.setattr(stopping, name, 0.1)
    waiting_for_room(home)
    manager = KillingManager(home)
    health = HealthRules(no_commit_within=timedelta(seconds=900))
    with pytest.raises(UnhealthyError, match=r"no commit for \d+ s since the driver was started"):
        list(supervisor(home, manager, "exit=1", stop_timeout=0.1, health=health).run())
    assert manager.gone == {"queued"}


@pytest.mark.parametrize("other", ["yarn at http://rm-2:8088", None])
def test_a_driver_on_a_cluster_to_which_the_connection_does_not_lead_any_more_is_not_taken_for_gone(
    home: Home, other: str | None
) -> None:
    waiting_for_room(home)
    manager = None if other is None else Manager(home, ClusterState.GONE, name=other)
    now = "runs drivers on the task's host" if other is None else f"submits to {other}"
    with pytest.raises(
        RefusedError, match=rf"in {home}: shop/stream/run1/-1 .* \(start token queued\) to yarn, .* {now}"
    ):
        list(supervisor(home, manager, "exit=1").run())
    assert not notes(home, "started")
    queued = intents.read(home.intent)
    assert queued is not None
    back = supervisor(home, manager, "exit=1", left=queued)
    with pytest.raises(RefusedError, match="Set the connection back"):
        list(back.run())
    home.intent.unlink()  # as the error says
    list(supervisor(home, Manager(home), "take-lease end=finished").run())


def test_a_stop_while_nobody_knows_whether_a_driver_was_submitted_waits_for_it_in_the_home(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting_for_room(home)
    left = intents.read(home.intent)
    assert left is not None
    intents.write(home.intent, replace(left, written=time.time()))
    manager = Manager(home, ClusterState.UNKNOWN)
    supervised = supervisor(home, manager, "exit=1")
    wait = DriverLocator.wait

    def stopped_meanwhile(locator: DriverLocator, why: str, *, starts: Intent | None = None) -> None:
        if len(manager.asked) > 2:
            supervised.stop("the task was killed")
        wait(locator, why, starts=starts)

    monkeypatch.setattr(DriverLocator, "wait", stopped_meanwhile)
    with pytest.raises(StopRequestedError):
        list(supervised.run())
    assert requests.stop_requested(home, "queued") == "the task was killed"
    assert requests.killed_by(home, "queued") == "shop/stream/run1/-1"


def test_why_a_driver_waits_is_told_each_time_that_the_cluster_says_something_else(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(clusters, "_ASK_SECONDS", 0.0)
    manager = Manager(home)
    said = iter(["pod d is Pending", "pod d is Pending", "", "pod d is Pending (ImagePullBackOff)"])
    monkeypatch.setattr(manager, "account", lambda token: next(said))
    driver = ClusterDriver("t", home.lease, manager)
    with caplog.at_level("INFO"):
        assert [driver.ended() for _ in range(4)] == [None] * 4
    assert [record.getMessage() for record in caplog.records] == [
        "no sign of life: pod d is Pending",
        "no sign of life: pod d is Pending (ImagePullBackOff)",
    ]


def test_a_submission_that_fails_is_a_failure_with_its_exit_code(home: Home) -> None:
    with pytest.raises(DriverFailedError, match="exit code 3"):
        list(supervisor(home, Manager(home, ClusterState.GONE), "take-lease", code=3).run())
    assert pids(home) == []


def test_a_refusal_of_the_submission_is_told_as_one(home: Home) -> None:
    with pytest.raises(RefusedError):
        list(supervisor(home, Manager(home, ClusterState.GONE), "take-lease", code=RefusedError.exit_code).run())


def test_what_the_cluster_says_of_a_driver_that_left_no_account_is_in_the_error(home: Home) -> None:
    manager = Manager(home, ClusterState.GONE)
    with pytest.raises(DriverFailedError, match=r"without an account of its own: driver \S+ is gone"):
        list(supervisor(home, manager, "exit=1").run())


def test_a_driver_that_is_given_up_and_does_not_end_is_ended_by_the_next_try(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manager did not answer when it was to kill it: it waits for room, and would come up one day."""
    for name in ("TERM_SECONDS", "EXIT_GRACE_SECONDS"):
        monkeypatch.setattr(stopping, name, 0.1)
    waiting_for_room(home)
    health = HealthRules(no_commit_within=timedelta(seconds=900))
    with pytest.raises(UnhealthyError, match="was asked to stop, and is not known to have ended"):
        list(supervisor(home, DeafManager(home), "exit=1", stop_timeout=0.1, health=health).run())
    manager = KillingManager(home)
    assert list(supervisor(home, manager, "take-lease commit end=finished", stop_timeout=0.1).run())[-1].commit == 1
    assert manager.gone >= {"queued"}

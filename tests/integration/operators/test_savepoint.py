"""Savepoints and stops as tasks, with a real home; drivers are processes without Spark, or a service in a thread."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention, Savepoints
from airflow_provider_exactlyonce.control import intent, lease, requests, restarts
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, NotAnsweredError, StopRequestedError
from airflow_provider_exactlyonce.operators.savepoint import (
    CleanUpSavepointsOperator,
    SavepointOperator,
    StopPipelineOperator,
)
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from airflow_provider_exactlyonce.triggers.driver import DriverTrigger
from tests.task_state import TaskInstance
from tests.unit.checkpoint import crafted
from tests.waiting import HANG_SECONDS, eventually

#: Start tokens: a driver is found by its token on the whole machine, where other tests run, too.
FIRST, SECOND = (secrets.token_hex(8) for _ in range(2))
DRIVER = Path(__file__).parents[1] / "control" / "contract_driver.py"


#: When a DAG run has started, and the one that was made under its id when it was deleted.
BEFORE, AGAIN = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def execute(task: Any, ti: TaskInstance | None = None, clears: int = 0, started: datetime = BEFORE) -> dict[str, Any]:
    run = SimpleNamespace(clear_number=clears, start_date=started)
    xcom = task.execute({"ti": ti or TaskInstance("save"), "dag_run": run})
    assert json.loads(json.dumps(xcom)) == xcom
    return dict(xcom)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    crafted.checkpoint(home.checkpoint(crafted.LINEAGE))
    home.remember(Lineage(id=crafted.LINEAGE))
    home.use(crafted.LINEAGE)
    home.control.mkdir()
    return home


@pytest.fixture(autouse=True)
def quick_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let it be certain soon that a driver lives; those that are processes beat as often."""
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)


@contextmanager
def serving(home: Home, token: str = FIRST) -> Iterator[SavepointService]:
    """Hold the lease in this process and answer as a driver does that idles after commit 3."""
    service = SavepointService(
        home,
        crafted.LINEAGE,
        token,
        retention=SavepointRetention(),
        batch_of=lambda record: record.batch,
    )
    with lease.holding(home.lease, "p", token):
        service.start(crafted.record(2))
        yield service
        service.close(serve=True)


@contextmanager
def driver(home: Home, plan: str, token: str = FIRST) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process that follows a plan."""
    command = [sys.executable, str(DRIVER), "--home", str(home.path), "--until", "forever", plan]
    process = subprocess.Popen(command, env={**os.environ, "EXACTLYONCE_TOKEN": token}, start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def wait_for_lease(home: Home, token: str) -> None:
    def is_held() -> bool:
        held = lease.read(home.lease)
        return held is not None and held.token == token

    eventually(is_held, f"{token} has the lease", poll_seconds=0.02)


def save(home: Home, **options: Any) -> SavepointOperator:
    return SavepointOperator(task_id="save", **{"checkpoint": str(home.path), "poll_interval": 0.05, **options})


def stop(home: Home, **options: Any) -> StopPipelineOperator:
    return StopPipelineOperator(task_id="stop", **{"checkpoint": str(home.path), "poll_interval": 0.05, **options})


def test_a_task_instance_takes_one_savepoint_however_often_it_is_tried(home: Home) -> None:
    with serving(home):
        first = execute(save(home, label="nightly"))
        assert execute(save(home, label="nightly")) == first
        other = execute(save(home), TaskInstance("save", run_id="run2"))
        mapped = execute(save(home), TaskInstance("save", map_index=0))
    taken = Savepoints(home.savepoints).get(first["savepoint"])
    assert first == {
        "pipeline": "p",
        "savepoint": taken.id,
        "label": "nightly",
        "commit": 3,
        "lineage": crafted.LINEAGE,
        "batch": 2,
        "size": taken.size,
        "created": taken.created,
        "path": str(home.savepoints / taken.id),
    }
    ids = {savepoint.id for savepoint in Savepoints(home.savepoints).list()}
    assert ids == {first["savepoint"], other["savepoint"], mapped["savepoint"]}
    assert len(ids) == 3
    assert list(home.commands.glob("savepoint-*")) == []


def test_a_clear_saves_again_if_the_task_was_done_and_goes_on_if_it_was_not(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST):
        for clears in (0, 3):
            with pytest.raises(TaskDeferred):
                execute(save(home, deferrable=True), clears=clears)
        assert len(requests.savepoint_requests(home, FIRST)) == 1
    with serving(home):
        first = execute(save(home), clears=3)
        assert execute(save(home), clears=3) == first
        second = execute(save(home), clears=4)
        assert execute(save(home), clears=4) == second
    assert first["savepoint"] != second["savepoint"]
    assert len(Savepoints(home.savepoints).list()) == 2


@pytest.mark.parametrize(
    ("max_tries", "again"),
    [(1, {"clears": 1}), (2, {}), (1, {"started": AGAIN})],
    ids=["of the DAG run", "over REST with reset_dag_runs=false", "DAG run deleted and made again"],
)
def test_a_clear_of_a_stop_that_was_done_stops_what_was_started_since(
    home: Home, max_tries: int, again: dict[str, Any]
) -> None:
    execute(stop(home), TaskInstance("stop"))
    with lease.holding(home.lease, "p", "later"):
        execute(stop(home), TaskInstance("stop"))
        assert requests.stop_requested(home, "later") is None, "it is a retry"
        with pytest.raises(TaskDeferred):
            execute(stop(home, deferrable=True), TaskInstance("stop", max_tries=max_tries), **again)
        assert requests.stop_requested(home, "later") is not None


def test_a_stop_that_has_timed_out_is_not_that_of_a_dag_run_that_was_made_again(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST), pytest.raises(NotAnsweredError):
        execute(stop(home, timeout=0), TaskInstance("stop"))
    with lease.holding(home.lease, "p", "later"):
        with pytest.raises(TaskDeferred):
            execute(stop(home, deferrable=True), TaskInstance("stop"), started=AGAIN)
        assert requests.stop_requested(home, "later") is not None


def test_a_dag_run_that_was_made_again_takes_a_savepoint_of_its_own(home: Home) -> None:
    with serving(home):
        first = execute(save(home))
        again = execute(save(home), started=AGAIN)
        assert execute(save(home), started=AGAIN) == again
    assert first["savepoint"] != again["savepoint"]


def test_a_retry_finds_the_request_of_a_worker_that_died_and_its_answer(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST), pytest.raises(TaskDeferred):
        execute(save(home, deferrable=True))
    [asked] = requests.savepoint_requests(home, FIRST)
    with serving(home):
        eventually(lambda: requests.savepoint_answer(home, asked.request), "the answer", poll_seconds=0.02)
        xcom = execute(save(home))
    assert xcom["savepoint"].startswith("3-")
    assert xcom["savepoint"].endswith(f"-{asked.request}")
    assert [savepoint.id for savepoint in Savepoints(home.savepoints).list()] == [xcom["savepoint"]]


def test_it_defers_until_the_driver_has_answered_and_goes_on_from_there(home: Home) -> None:
    with serving(home), pytest.raises(TaskDeferred) as deferred:
        execute(save(home, deferrable=True, timeout=timedelta(seconds=HANG_SECONDS)))
    trigger = deferred.value.trigger
    assert isinstance(trigger, DriverTrigger)
    path, arguments = trigger.serialize()
    assert path == "airflow_provider_exactlyonce.triggers.driver.DriverTrigger"
    again = DriverTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == trigger.serialize()
    [event] = events(again)
    assert deferred.value.method_name == "resume_from_trigger"
    xcom = save(home).resume_from_trigger({"ti": TaskInstance("save")}, event)  # type: ignore[typeddict-item]
    assert xcom["commit"] == 3


def events(of: DriverTrigger, seconds: float = HANG_SECONDS) -> list[Any]:
    async def collect() -> list[Any]:
        return [event.payload async for event in of.run()]

    return asyncio.run(asyncio.wait_for(collect(), seconds))


def test_the_drivers_own_words_are_in_the_error(home: Home) -> None:
    next(home.checkpoint(crafted.LINEAGE).glob("state/0/1/SSTs/000002-*")).unlink()
    with serving(home), pytest.raises(ExactlyOnceError, match=r"RefusedError: batch 2 .* is not whole.*is missing"):
        execute(save(home))
    assert list(home.commands.glob("savepoint-*")) == []


def test_a_driver_that_does_not_answer_in_time_is_named_and_asked_no_longer(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST), pytest.raises(NotAnsweredError) as error:
        execute(save(home, timeout=0.3))
    assert f"pid {os.getpid()} on " in str(error.value)
    assert "last heartbeat 20" in str(error.value)
    assert requests.savepoint_requests(home, FIRST) == []


def test_a_path_that_is_no_home_and_another_pipelines_home_are_refused_for_good(home: Home, tmp_path: Path) -> None:
    for kind in (SavepointOperator, StopPipelineOperator, CleanUpSavepointsOperator):
        with pytest.raises(AirflowFailException, match="is no home of a pipeline"):
            execute(kind(task_id="x", checkpoint=str(tmp_path / "typo")))
        with pytest.raises(AirflowFailException, match="is the home of pipeline p, not of shop"):
            execute(kind(task_id="x", checkpoint=str(home.path), pipeline="shop"))
        with pytest.raises(ValueError, match="give pipeline or checkpoint"):
            kind(task_id="x")


def test_a_driver_is_stopped_once_and_what_was_started_since_is_left_alone(home: Home) -> None:
    ti = TaskInstance("stop")
    with driver(home, "take-lease commit commit until-stop") as process:
        wait_for_lease(home, FIRST)
        xcom = execute(stop(home), ti)
        assert process.wait() == 0
    ended = {"pipeline": "p", "home": str(home.path), "state": "stopped", "run": 1, "commit": 2, "savepoint": None}
    assert xcom == ended
    with driver(home, "take-lease sleep=60", token=SECOND) as process:
        wait_for_lease(home, SECOND)
        assert execute(stop(home), ti)["pipeline"] == "p"
        assert requests.stop_requested(home, SECOND) is None
        assert process.poll() is None


def test_a_worker_that_is_killed_while_it_waits_leaves_the_stop_to_the_retry(home: Home) -> None:
    code = f"from tests.integration.operators.test_savepoint import *\nexecute(stop(Home({str(home.path)!r})))"
    with lease.holding(home.lease, "p", FIRST):
        worker = subprocess.Popen([sys.executable, "-c", code])
        eventually(lambda: requests.stop_requested(home, FIRST), "the stop is asked")
        worker.kill()
        assert worker.wait() == -signal.SIGKILL
        written = (home.commands / "stop.json").stat().st_mtime_ns
        with pytest.raises(TaskDeferred):
            execute(stop(home, deferrable=True))
    assert (home.commands / "stop.json").stat().st_mtime_ns == written, "it is asked once"
    assert len(list(home.commands.glob("stop-*.json"))) == 1
    assert execute(stop(home))["pipeline"] == "p"


def test_a_pipeline_that_is_stopped_is_a_success_and_stays_one_for_the_retry(home: Home) -> None:
    ti = TaskInstance("stop")
    assert execute(stop(home), ti)["savepoint"] is None
    with lease.holding(home.lease, "p", "later"):
        execute(stop(home), ti)
    assert requests.stop_requested(home, "later") is None


def test_a_stop_with_a_savepoint_returns_it_when_the_driver_has_ended(home: Home) -> None:
    with serving(home), pytest.raises(TaskDeferred):
        execute(stop(home, savepoint="before the upgrade", deferrable=True), TaskInstance("stop"))
    assert lease.read(home.lease) is None
    xcom = execute(stop(home, savepoint="before the upgrade"), TaskInstance("stop"))
    assert (xcom["savepoint"]["label"], xcom["savepoint"]["commit"]) == ("before the upgrade", 3)
    assert execute(stop(home, savepoint=True), TaskInstance("stop")) == xcom
    assert len(Savepoints(home.savepoints).list()) == 1


def test_a_retry_of_a_stop_with_a_savepoint_waits_for_its_own_driver_only(home: Home) -> None:
    ti = TaskInstance("stop")
    with serving(home), pytest.raises(TaskDeferred):
        execute(stop(home, savepoint=True, deferrable=True), ti)
    with serving(home, "later"):
        xcom = execute(stop(home, savepoint=True), ti)
        assert xcom["savepoint"]["commit"] == 3
        assert requests.stop_requested(home, "later") is None
    with serving(home, "later") as service:
        for savepoint in Savepoints(home.savepoints).list():
            Savepoints(home.savepoints).delete(savepoint.id)
        assert execute(stop(home, savepoint=True), ti)["savepoint"]["commit"] == 3
        assert service.stop_reason() is None, "another driver gives a savepoint and goes on"


def test_a_driver_that_is_to_save_and_stop_is_known_to_its_supervisor_as_stopped_when_it_crashes(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST), pytest.raises(TaskDeferred):
        execute(stop(home, savepoint=True, deferrable=True), TaskInstance("stop"))
    [asked] = requests.savepoint_requests(home, FIRST)
    assert asked.stop
    assert requests.stop_requested(home, FIRST) is not None


def test_a_stop_that_is_not_answered_names_the_driver_and_says_what_to_do(home: Home) -> None:
    with lease.holding(home.lease, "p", FIRST), pytest.raises(NotAnsweredError) as error:
        execute(stop(home, timeout=0.3))
    for part in (f"pid {os.getpid()} on ", "last heartbeat 20", "0.3 s", str(home.control), "clear this task"):
        assert part in str(error.value)
    assert requests.stop_requested(home, FIRST) is not None, "it stays asked"


def test_a_driver_that_is_being_started_is_asked_before_it_has_a_lease(home: Home) -> None:
    with driver(home, "sleep=1 take-lease until-stop"):
        intent.write(home.intent, a_start(FIRST))
        xcom = execute(stop(home), TaskInstance("stop"))
    assert xcom["run"] == 1


def a_start(token: str) -> intent.Intent:
    return intent.Intent(token=token, owner="o", until="forever", series=FIRST, restarts=0, log="driver-1.log")


def test_the_driver_that_a_supervisor_starts_after_a_crash_is_stopped_too(home: Home) -> None:
    ti = TaskInstance("stop")
    intent.write(home.intent, a_start(FIRST))
    with driver(home, "take-lease sleep=60") as first:
        wait_for_lease(home, FIRST)
        with pytest.raises(TaskDeferred):
            execute(stop(home, deferrable=True), ti)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    with driver(home, "take-lease until-stop", token=SECOND) as second:
        intent.write(home.intent, replace(a_start(SECOND), restarts=1))
        wait_for_lease(home, SECOND)
        execute(stop(home), ti)
        assert second.wait() == 0


def test_a_stop_between_a_crash_and_the_restart_reaches_the_supervisor(home: Home) -> None:
    command = [sys.executable, str(DRIVER), "--home", str(home.path), "--until", "forever", "take-lease commit die"]
    supervisor = Supervisor(
        home,
        Launch(command=command, printable="", environment={}),
        Supervision(
            owner="o",
            until="forever",
            strategy=RestartStrategy.fixed_delay(3, timedelta(seconds=60)),
            poll_seconds=0.05,
        ),
    )
    with ThreadPoolExecutor(1) as pool:
        supervising = pool.submit(list, supervisor.run())
        eventually(lambda: restarts.read(home.restarts), "the death is on record")
        xcom = execute(stop(home), TaskInstance("stop"))
        with pytest.raises(StopRequestedError, match=r"before restart 1: task .*stop; the driver had died"):
            supervising.result(HANG_SECONDS)
    assert (xcom["state"], xcom["commit"]) == ("lost", 1)
    assert intent.read(home.intent) is None, "none was started"


def test_a_savepoint_between_a_crash_and_the_restart_is_left_to_the_next_driver(home: Home) -> None:
    died = restarts.Restart(
        series=FIRST, number=1, token=FIRST, run=1, commit=3, cause="killed", exit_code=-9, died=time.time()
    )
    restarts.append(home.control / "restarts.json", died)
    with pytest.raises(NotAnsweredError):
        execute(save(home, timeout=0.2))
    assert lease.read(home.lease) is None
    with serving(home, SECOND):
        assert execute(save(home))["commit"] == 3


@pytest.mark.parametrize("asked", [True, False], ids=["the dead driver was asked", "none was asked"])
def test_a_savepoint_between_a_crash_and_the_restart_waits_in_the_triggerer_for_the_next_driver(
    home: Home, asked: bool
) -> None:
    task = save(home, deferrable=True, timeout=60)
    if asked:
        with lease.holding(home.lease, "p", FIRST), pytest.raises(TaskDeferred):
            execute(task)
    died = restarts.Restart(
        series=FIRST, number=1, token=FIRST, run=1, commit=3, cause="killed", exit_code=-9, died=time.time()
    )
    restarts.append(home.restarts, died)
    with pytest.raises(TaskDeferred) as deferred:
        execute(task)
    trigger = deferred.value.trigger
    assert isinstance(trigger, DriverTrigger)
    older = DriverTrigger(**{**trigger.serialize()[1], "token": ""})  # as 0.1.0 has left it
    for waiting in (trigger, older):
        with pytest.raises(TimeoutError):
            events(waiting, seconds=0.4)
    with serving(home, SECOND):
        restarts.relaunched(home.restarts, FIRST, time.time())
        assert len(events(trigger)) == 1
        assert execute(save(home))["commit"] == 3


def test_clean_up_keeps_what_it_is_told_to_and_may_be_repeated(home: Home) -> None:
    with serving(home):
        ids = [execute(save(home), TaskInstance("save", run_id=f"run{number}"))["savepoint"] for number in range(3)]
    Savepoints(home.savepoints).pin(ids[0])
    clean_up = CleanUpSavepointsOperator(task_id="clean_up", checkpoint=str(home.path), count="1", days="0")
    assert execute(clean_up) == {"pipeline": "p", "deleted": [ids[1]], "kept": [ids[0], ids[2]]}
    assert execute(clean_up) == {"pipeline": "p", "deleted": [], "kept": [ids[0], ids[2]]}
    clean_up.count = "-1"  # as a template may render
    with pytest.raises(AirflowFailException, match="may be negative"):
        execute(clean_up)


def test_fields_are_templated() -> None:
    for kind, own in (
        (SavepointOperator, {"savepoint_label"}),
        (StopPipelineOperator, {"savepoint"}),
        (CleanUpSavepointsOperator, {"count", "days"}),
    ):
        assert set(kind.template_fields) == {"pipeline", "checkpoint", "kafka_conn_id"} | own
        task = kind(task_id="x", pipeline="p")
        assert all(hasattr(task, field) for field in kind.template_fields)

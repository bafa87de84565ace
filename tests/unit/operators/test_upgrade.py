"""Upgrades and rollbacks as tasks: plans that are on disk; the steps themselves have integration tests."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.definitions.callback import AsyncCallback
from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from airflow.sdk.definitions.retry_policy import RetryAction
from airflow.sdk.exceptions import TaskDeferred
from airflow.serialization.serialized_objects import DagSerialization

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.control import lease, releases, requests, status, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.releases import Release
from airflow_provider_exactlyonce.control.status import DriverState, ReplayReport, Status
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    ExactlyOnceError,
    IncompatibleVersionError,
    RefusedError,
    UpgradeUnstableError,
)
from airflow_provider_exactlyonce.operators import upgrade as operators
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from airflow_provider_exactlyonce.operators.upgrade import RollbackPipelineOperator, UpgradePipelineOperator
from airflow_provider_exactlyonce.triggers.upgrade import UpgradeTrigger
from airflow_provider_exactlyonce.upgrade.begin import begin_rollback
from tests.clocks import StandingClock
from tests.task_state import TaskInstance
from tests.waiting import HANG_SECONDS


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setattr(lease, "HEARTBEAT_SECONDS", 0.1)
    home = Home(tmp_path / "home")
    home.create("p")
    return home


@pytest.fixture
def job(tmp_path: Path) -> str:
    file = tmp_path / "job.py"
    file.write_text("new")
    return str(file)


#: When a DAG run has started, and the one that was made under its id when it was deleted.
BEFORE, AGAIN = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)


def execute(task: Any, ti: TaskInstance | None = None, clears: int = 0, started: datetime | None = None) -> Any:
    run = SimpleNamespace(clear_number=clears, start_date=started)
    xcom = task.execute({"ti": ti or TaskInstance("upgrade"), "dag_run": run})
    assert json.loads(json.dumps(xcom)) == xcom
    return xcom


def upgrade(home: Home, job: str, **options: Any) -> UpgradePipelineOperator:
    return UpgradePipelineOperator(task_id="upgrade", checkpoint=str(home.path), application=job, **options)


def begun(home: Home, job: str, step: UpgradeStep, started: datetime | None = None, **changes: Any) -> Plan:
    """Let the task write its plan, and bring that to a step."""
    with pytest.raises(ExactlyOnceError, match="is asked"):
        execute(upgrade(home, job), started=started)
    plan = upgrade_plan.read(home)
    assert plan is not None
    plan = replace(plan, step=step, **changes)
    upgrade_plan.write(home, plan, before=upgrade_plan.read(home))
    return plan


@pytest.fixture(autouse=True)
def no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_provider_exactlyonce.hooks import kafka

    def refuse(conn_id: str) -> None:
        raise ExactlyOnceError(f"connection {conn_id} is asked")

    monkeypatch.setattr(kafka, "client_config", refuse)


@pytest.fixture
def driver(home: Home) -> Iterator[None]:
    """Hold the lease as a driver with start token ``t`` does."""
    with lease.holding(home.lease, "p", "t"):
        yield


def test_a_try_waits_for_an_earlier_one_that_is_being_killed(
    home: Home, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as earlier:
        earlier.enter_context(upgrade_plan.working_on(home, "p"))
        clock = StandingClock(meanwhile=earlier.close)
        monkeypatch.setattr(polling, "time", clock)
        with pytest.raises(ExactlyOnceError, match="is asked"):
            execute(upgrade(home, job))
    assert clock.now > StandingClock().now
    assert upgrade_plan.read(home) is not None


def test_a_try_gives_up_when_another_process_never_ends(home: Home, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "time", StandingClock())
    begun(home, job, UpgradeStep.STOP)
    with (
        upgrade_plan.working_on(home, "p"),
        pytest.raises(AlreadyRunningError, match="waited 600 s for its end"),
    ):
        execute(upgrade(home, job))


def test_what_the_task_was_told_is_in_the_plan(home: Home, job: str) -> None:
    task = upgrade(
        home,
        job,
        savepoint="night",
        shadow_commits="20",
        stable_after="5",
        compare=["k", "n"],
        allow={"missing": 7},
        stable_timeout=timedelta(minutes=2),
        stop_timeout=30,
        on_unstable="fail",
    )
    with pytest.raises(ExactlyOnceError, match="connection kafka_default is asked"):
        execute(task)
    plan = upgrade_plan.read(home)
    assert plan is not None
    assert plan.application == job
    assert plan.options == Options(
        savepoint="night",
        shadow_commits=20,
        compare=("k", "n"),
        allow={"missing": 7},
        stable_after=5,
        stable_timeout=120.0,
        on_unstable="fail",
        stop_timeout=30.0,
    )


def test_a_plan_that_is_done_is_the_result_of_every_try_and_a_clear_makes_another(home: Home, job: str) -> None:
    plan = begun(
        home, job, UpgradeStep.DONE, old="v1", new="v2", token="t", savepoint="3-ab", reason="stable after 3 commits"
    )
    for _ in range(2):
        xcom = execute(upgrade(home, job))
        assert (xcom["outcome"], xcom["changed"], xcom["old"], xcom["new"]) == ("done", True, "v1", "v2")
    with pytest.raises(ExactlyOnceError, match="is asked"):
        execute(upgrade(home, job), clears=1)
    again = upgrade_plan.read(home)
    assert again is not None
    assert (again.id != plan.id, again.step) == (True, UpgradeStep.CHECK)


def test_a_dag_run_that_was_deleted_and_made_again_upgrades_again(home: Home, job: str) -> None:
    ended = {"old": "v1", "new": "v2", "token": "t", "savepoint": "3-ab"}
    first = begun(home, job, UpgradeStep.DONE, started=BEFORE, **ended)
    assert execute(upgrade(home, job), started=BEFORE)["outcome"] == "done"
    assert begun(home, job, UpgradeStep.DONE, started=AGAIN, **ended).id != first.id


@pytest.mark.parametrize(
    ("step", "error", "said"),
    [
        (
            UpgradeStep.ROLLED_BACK,
            UpgradeUnstableError,
            "version v2 of pipeline p was not stable: boom. Version v1 is in use again",
        ),
        (UpgradeStep.UNSTABLE, UpgradeUnstableError, "boom. It is left as it is; to go back: exactlyonce rollback p"),
        (UpgradeStep.FAILED, UpgradeUnstableError, "boom. No driver runs"),
        (UpgradeStep.REFUSED, IncompatibleVersionError, "^boom"),
    ],
)
def test_a_plan_that_ended_badly_fails_every_try_with_its_error_and_no_retry_is_spent(
    home: Home, job: str, step: UpgradeStep, error: type[Exception], said: str
) -> None:
    begun(home, job, step, old="v1", new="v2", token="t", reason="boom\nits log", error=error.__name__)
    for _ in range(2):
        ti, task = TaskInstance("upgrade"), upgrade(home, job)
        with pytest.raises(error, match=said) as raised:
            execute(task, ti)
        assert str(raised.value).endswith("\nits log")
        assert (ti.pushed["plan"]["outcome"], ti.pushed["plan"]["new"]) == (step.value, "v2")
        assert task.retry_policy is not None
        assert task.retry_policy.evaluate(raised.value, 1, 3).action is RetryAction.FAIL


def test_a_task_that_waits_gives_its_slot_back_and_the_retry_goes_on_where_it_was(
    home: Home, job: str, driver: None
) -> None:
    begun(home, job, UpgradeStep.WATCH_OLD, old="v1", token="t", savepoint="3-ab")
    with pytest.raises(TaskDeferred) as deferred:
        execute(upgrade(home, job, deferrable=True, poll_interval=0.1))
    trigger = deferred.value.trigger
    assert isinstance(trigger, UpgradeTrigger)
    assert (trigger.token, trigger.commits, trigger.request) == ("t", 0, None)
    path, arguments = trigger.serialize()
    assert path == "airflow_provider_exactlyonce.triggers.upgrade.UpgradeTrigger"
    assert UpgradeTrigger(**json.loads(json.dumps(arguments))).serialize() == (path, arguments)
    running = Status(pipeline="p", token="t", state=DriverState.RUNNING)
    status.write(home.status, replace(running, replay=ReplayReport(first=4, last=9, done=3)))
    with pytest.raises(TaskDeferred):
        execute(upgrade(home, job, deferrable=True))
    status.write(home.status, replace(running, replay=ReplayReport(first=4, last=9, done=9)))
    with pytest.raises(UpgradeUnstableError, match="Version v1 is in use again"):
        upgrade(home, job, deferrable=True).resume_from_trigger({"ti": TaskInstance("upgrade")}, {})  # type: ignore[typeddict-item]


def test_a_task_whose_pod_would_end_with_the_driver_that_it_watches_waits_there(
    home: Home, job: str, driver: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(home, job, UpgradeStep.WATCH_OLD, old="v1", token="t", savepoint="3-ab")

    def look_again() -> None:
        raise ExactlyOnceError("it waits in its worker")

    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    monkeypatch.setattr(operators, "time", StandingClock(meanwhile=look_again))
    with pytest.raises(ExactlyOnceError, match="it waits in its worker"):
        execute(upgrade(home, job, deferrable=True))


@pytest.mark.parametrize(
    ("changes", "end"),
    [
        ({"new": "v2", "reason": "stable after 3 commits"}, UpgradeStep.DONE),
        ({"new": "v2", "reason": "boom", "error": "UpgradeUnstableError"}, UpgradeStep.ROLLED_BACK),
        ({"application": None}, UpgradeStep.ROLLED_BACK),
    ],
)
def test_a_pipeline_that_was_stopped_is_stopped_again(
    home: Home, job: str, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], end: UpgradeStep
) -> None:
    plan = begun(home, job, UpgradeStep.REST, old="v1", token="t", was_stopped=True, **changes)
    task = upgrade(home, job, deferrable=True)
    held = lease.acquire(home.lease, "p", "t")
    clock = StandingClock(meanwhile=lambda: lease.renew(home.lease, held))
    monkeypatch.setattr(lease, "time", clock)
    monkeypatch.setattr(polling, "time", clock)
    with pytest.raises(TaskDeferred):
        execute(task)
    assert requests.stop_requested(home, "t") == "the pipeline was stopped before"
    lease.release(home.lease, held)
    with contextlib.suppress(UpgradeUnstableError):
        execute(task)
    stored = upgrade_plan.read(home)
    assert stored is not None
    assert (stored.id, stored.step) == (plan.id, end)


def fires_within(clock: StandingClock, home: Home, seconds: float, **arguments: Any) -> bool:
    given: dict[str, Any] = {"token": "t", "request": None, "commits": None, **arguments}
    trigger = UpgradeTrigger(home=str(home.path), poll_interval=0.05, deadline=clock.now + seconds, **given)
    began = clock.now

    async def fire() -> None:
        async for _ in trigger.run():
            return

    asyncio.run(fire())
    return clock.now - began < seconds


def test_the_trigger_fires_when_the_driver_has_made_its_commits_or_is_gone_and_at_its_deadline(
    home: Home, clock: StandingClock
) -> None:
    with lease.holding(home.lease, "p", "t"):
        assert not fires_within(clock, home, 0.5, commits=2)
        running = Status(pipeline="p", token="t", state=DriverState.RUNNING, commits_of_run=2)
        status.write(home.status, replace(running, commits_of_run=1))
        assert not fires_within(clock, home, 0.5, commits=2)
        status.write(home.status, running)
        assert fires_within(clock, home, HANG_SECONDS, commits=2)
        status.write(home.status, replace(running, replay=ReplayReport(first=1, last=9, done=3)))
        assert not fires_within(clock, home, 0.5, commits=0), "it replays"
    assert fires_within(clock, home, HANG_SECONDS), "it is gone"


def test_a_task_whose_plan_somebody_has_replaced_says_so(home: Home, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local"}))
    begun(home, job, UpgradeStep.WATCH, token="t")
    releases.keep(home, "v1", Path(job), Path(job).read_bytes())
    rollback = RollbackPipelineOperator(task_id="back", checkpoint=str(home.path), version="v1", savepoint="3-ab")
    ti = TaskInstance("upgrade")
    ti.task_id = "back"
    with pytest.raises(ExactlyOnceError, match="is asked"):
        execute(rollback, ti)
    stored = upgrade_plan.read(home)
    assert stored is not None
    assert stored.step is UpgradeStep.WATCH, "a rollback looks at the way back before it replaces anything"
    begin_rollback(home, "p", Options(), request="b2", check=lambda _: None, version="v1", savepoint="3-ab")
    with pytest.raises(AlreadyRunningError, match="a rollback to version v1 of pipeline p is under way, at step"):
        execute(upgrade(home, job))


def test_a_stream_runs_the_version_in_use_whatever_its_own_file_is(
    home: Home, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_provider_exactlyonce.hooks import launch

    started: list[str] = []
    monkeypatch.setattr(launch, "launch_of", lambda settings, *_: started.append(settings.application))
    old = tmp_path / "old.py"
    old.write_text("old")
    stream = StreamingPipelineOperator(task_id="stream", application=str(old), checkpoint=str(home.path))
    stream.launch(home, "forever", None)
    releases.keep(home, "v2", Path(job), Path(job).read_bytes())
    releases.write(home, Release(version="v2", since=1, previous="v1", savepoint="3-ab"), releases.stored(home))
    stream.launch(home, "forever", None)
    assert started == [str(old), job]


@pytest.mark.parametrize("name", ["shadow_commits", "stable_after"])
def test_a_number_that_is_none_is_refused(home: Home, job: str, name: str) -> None:
    task = upgrade(home, job, **{name: "{{ params.number }}"})
    setattr(task, name, "a few")  # what it renders to
    with pytest.raises(RefusedError, match=rf"{name}='a few'"):
        execute(task)


def test_a_dag_with_a_deadline_is_stored_with_its_upgrade(job: str) -> None:
    with DAG(
        "shop_upgrade",
        schedule="0 3 * * *",
        deadline=DeadlineAlert(
            reference=DeadlineReference.DAGRUN_QUEUED_AT,
            interval=timedelta(minutes=15),
            callback=AsyncCallback("asyncio.sleep", kwargs={"delay": 0}),
        ),
    ) as dag:
        UpgradePipelineOperator(task_id="upgrade", pipeline="shop-totals", application=job)
    stored = DagSerialization.from_dict(json.loads(json.dumps(DagSerialization.to_dict(dag))))
    assert stored.deadline
    assert stored.task_ids == ["upgrade"]


def test_a_rollback_by_a_connection_to_a_cluster_is_refused_before_anything_is_stopped(
    home: Home, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088"}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    releases.keep(home, "v1", Path(job), Path(job).read_bytes())
    task = RollbackPipelineOperator(
        task_id="back", checkpoint=str(home.path), version="v1", savepoint="3-ab", conn_id="yarn"
    )
    with pytest.raises(RefusedError, match=r"connection yarn has deploy-mode cluster, .* give it a connection"):
        execute(task)
    assert upgrade_plan.read(home) is None


def test_an_upgrade_starts_nothing_by_a_connection_to_a_cluster(
    home: Home, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "rm:8088"}
    monkeypatch.setenv("AIRFLOW_CONN_YARN", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    monkeypatch.setattr("airflow_provider_exactlyonce.hooks.kafka.driver_config", lambda conn_id: "{}")
    tools = upgrade(home, job, conn_id="yarn")._tools(home)
    with pytest.raises(RefusedError, match=r"connection yarn has deploy-mode cluster, .* give it a connection"):
        tools.launch(job, [])

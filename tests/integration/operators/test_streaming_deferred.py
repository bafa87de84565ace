"""The operator that defers, to its trigger and back; drivers are real processes that speak the control contract."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferred
from airflow.triggers.base import BaseTrigger

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import intent as intents
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import processes, requests, restarts
from airflow_provider_exactlyonce.control import status as statuses
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.control.stopping import StopRequest
from airflow_provider_exactlyonce.exceptions import (
    DriverFailedError,
    RefusedError,
    StopRequestedError,
    UnhealthyError,
)
from airflow_provider_exactlyonce.operators import streaming as operators
from airflow_provider_exactlyonce.operators.streaming import (
    HealthRules,
    RestartStrategy,
    StreamingPipelineOperator,
)
from airflow_provider_exactlyonce.triggers import pipeline as triggers
from tests.clocks import AheadClock
from tests.integration.control.contract_driver import let_go
from tests.integration.operators.test_streaming import AFTER_A_RESTART, DRIVER, calls, execute, operator  # noqa: F401
from tests.task_state import TaskInstance
from tests.waiting import HANG_SECONDS

pytestmark = pytest.mark.usefixtures("calls")
ONCE_MORE = RestartStrategy.fixed_delay(1, timedelta(0))


def deferred(tmp_path: Path, *plans: str, **options: Any) -> StreamingPipelineOperator:
    return operator(tmp_path, *plans, deferrable=True, **options)


def trigger_of(deferral: TaskDeferred) -> BaseTrigger:
    """Return the trigger as the triggerer makes it: of what was serialized, as JSON."""
    path, arguments = deferral.trigger.serialize()
    made = resolve_name(path)(**json.loads(json.dumps(arguments)))
    assert isinstance(made, BaseTrigger)
    return made


async def first_event(trigger: BaseTrigger) -> dict[str, Any]:
    async for event in trigger.run():
        payload: dict[str, Any] = event.payload
        return payload
    raise AssertionError("no event")


def leave(task: StreamingPipelineOperator, ti: TaskInstance | None = None, **more: Any) -> TaskDeferred:
    with pytest.raises(TaskDeferred) as caught:
        execute(task, ti, **more)
    return caught.value


def play(make: Callable[[], StreamingPipelineOperator], ti: TaskInstance | None = None) -> tuple[dict[str, Any], int]:
    """Let the task go to the triggerer and back until it is done; returns its result, and how often it deferred."""
    ti = ti or TaskInstance()
    step: Callable[[], dict[str, Any]] = lambda: execute(make(), ti)  # noqa: E731
    for number in range(20):
        try:
            return step(), number
        except TaskDeferred as deferral:
            home = Home(str(make().checkpoint))
            status = statuses.read(home.status)
            if status is not None:
                let_go(home, status.run)
            event = asyncio.run(first_event(trigger_of(deferral)))

            def step(event: dict[str, Any] = event) -> dict[str, Any]:
                return make().resume_from_trigger({"ti": ti}, event)  # type: ignore[typeddict-item]

    raise AssertionError("it never ends")


def test_the_result_and_the_links_are_the_same_as_without_deferral(tmp_path: Path) -> None:
    plans = ("take-lease commit commit go die", "take-lease commit go end=finished")
    ti = TaskInstance()
    result, times = play(lambda: deferred(tmp_path, *plans), ti)
    assert result == AFTER_A_RESTART
    assert times == 2, "once for each driver"
    links = {"_link_PipelineStatusLink", "_link_SparkUILink", "_link_SparkApplicationLink"}
    assert set(ti.pushed) == {*links, "pipeline_status"}


def test_it_defers_as_soon_as_the_driver_runs_and_leaves_it_alone(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished"))
    let_go(Home(tmp_path / "home"))
    assert (deferral.timeout, deferral.method_name) == (None, "resume_from_trigger")
    event = asyncio.run(first_event(trigger_of(deferral)))
    task = deferred(tmp_path, "exit=1")
    assert task.resume_from_trigger({"ti": TaskInstance()}, event)["commit"] == 1  # type: ignore[typeddict-item]


def test_a_task_whose_home_renders_to_another_one_stops_the_driver_that_it_has_left(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit until-stop"))
    event = {**trigger_of(deferral).serialize()[1], "deadline": None}
    other = tmp_path / "other"
    task = deferred(tmp_path, "take-lease end=finished", checkpoint=str(other))
    with pytest.raises(RefusedError, match=f"is now {other}, .* runs in {tmp_path / 'home'}, and was asked to stop"):
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]
    home = Home(tmp_path / "home")
    token = str(event["intent"]["token"])
    assert requests.stop_requested(home, token) is not None
    assert intents.read(Home(other).intent) is None


def test_the_event_names_the_home_of_the_driver(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished"))
    let_go(Home(tmp_path / "home"))
    assert asyncio.run(first_event(trigger_of(deferral)))["home"] == str(tmp_path / "home")


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Be a task that Airflow's KubernetesExecutor has started."""
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")


@pytest.mark.usefixtures("pod")
def test_a_task_whose_pod_would_end_with_its_driver_waits_in_its_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plans = ("take-lease commit sleep=0.2 die", "take-lease commit sleep=0.2 end=finished")
    result = execute(deferred(tmp_path, *plans))
    assert (result["commit"], result["restarts"]) == (2, 1)
    assert capsys.readouterr().out.count("deferrable=True, and this task waits in its worker") == 1


def test_a_task_in_a_pod_defers_while_its_driver_runs_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(deferred(tmp_path, "take-lease commit go end=finished"))
    monkeypatch.setattr(process_identity, "this_machine", lambda: "another boot of another host")
    monkeypatch.setenv("AIRFLOW_IS_K8S_EXECUTOR_POD", "True")
    leave(deferred(tmp_path, "exit=1"))
    let_go(Home(tmp_path / "home"))


@pytest.mark.usefixtures("pod")
def test_a_driver_that_would_end_with_its_task_is_not_left_running(tmp_path: Path) -> None:
    with pytest.raises(
        RefusedError, match=r"needs a driver that outlives the task.* spark_default deploy-mode cluster"
    ):
        execute(operator(tmp_path, "exit=1", until="running"))
    assert intents.read(Home(tmp_path / "home").intent) is None


def test_the_delay_before_a_restart_is_spent_in_the_triggerer(tmp_path: Path) -> None:
    strategy = RestartStrategy.fixed_delay(1, timedelta(seconds=4))
    plans = ("take-lease commit go die", "take-lease commit go end=finished")
    result, times = play(lambda: deferred(tmp_path, *plans, restart_strategy=strategy))
    assert (result["restarts"], times) == (1, 3)
    [restart] = restarts.read(Home(tmp_path / "home").restarts)
    assert restart.relaunched is not None
    assert restart.relaunched - restart.died >= 4
    assert restart.due == pytest.approx(restart.died + 4)


def test_a_stop_during_the_delay_ends_the_task(tmp_path: Path) -> None:
    strategy = RestartStrategy.fixed_delay(1, timedelta(seconds=60))
    task = deferred(tmp_path, "take-lease commit go die", restart_strategy=strategy)
    deferral = leave(task)
    let_go(Home(tmp_path / "home"))
    event = asyncio.run(first_event(trigger_of(deferral)))
    with pytest.raises(TaskDeferred) as caught:
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]
    home = Home(tmp_path / "home")
    requests.request_stop(home, event["intent"]["token"], reason="maintenance")
    event = asyncio.run(first_event(trigger_of(caught.value)))
    with pytest.raises(StopRequestedError, match="before restart 1: maintenance"):
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]


def test_restarts_are_counted_over_all_stays(tmp_path: Path) -> None:
    strategy = RestartStrategy.fixed_delay(2, timedelta(0))
    with pytest.raises(DriverFailedError):
        play(lambda: deferred(tmp_path, "take-lease commit go die", restart_strategy=strategy))
    assert [restart.number for restart in restarts.read(Home(tmp_path / "home").restarts)] == [1, 2]


def test_another_task_that_takes_over_the_pipeline_does_not_lose_the_result(tmp_path: Path) -> None:
    """The other task's driver overwrites status and intent before the deferred one comes back."""
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished", "take-lease commit end=finished"))
    let_go(Home(tmp_path / "home"))
    event = asyncio.run(first_event(trigger_of(deferral)))
    other = operator(tmp_path, "exit=1", "take-lease commit end=finished")
    assert execute(other, TaskInstance(run_id="run2"))["commit"] == 2
    task = deferred(tmp_path, "exit=1")
    result = task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]
    assert (result["run"], result["commit"], result["restarts"]) == (1, 1, 0)


def test_an_event_that_comes_while_the_driver_lives_changes_nothing(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished"))
    task = deferred(tmp_path, "exit=1")
    event = {"intent": deferral.trigger.serialize()[1]["intent"], "deadline": None}
    with pytest.raises(TaskDeferred) as caught:
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]
    let_go(Home(tmp_path / "home"))
    asyncio.run(first_event(trigger_of(caught.value)))
    assert restarts.read(Home(tmp_path / "home").restarts) == ()


def test_the_trigger_is_made_again_and_goes_on_where_a_lost_triggerer_was(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit until-stop"))

    async def interrupted() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(first_event(trigger_of(deferral)), timeout=0.5)

    asyncio.run(interrupted())
    home = Home(tmp_path / "home")
    held = leases.read(home.lease)
    assert held is not None
    assert processes.leader(held.token) is not None, "the driver has not noticed"
    requests.request_stop(home, held.token, reason="test")
    asyncio.run(first_event(trigger_of(deferral)))


@pytest.mark.parametrize("stops", [True, False])
def test_a_user_who_marks_or_clears_a_deferred_task_stops_the_driver_if_that_is_wanted(
    tmp_path: Path, stops: bool
) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit until-stop", stop_on_kill=stops))
    asyncio.run(trigger_of(deferral).on_kill())
    home = Home(tmp_path / "home")
    held = leases.read(home.lease)
    if not stops:
        assert held is not None
        assert requests.stop_requested(home, held.token) is None
        requests.request_stop(home, held.token, reason="test")
    asyncio.run(first_event(trigger_of(deferral)))
    status = statuses.read(home.status)
    assert status is not None
    assert status.state is DriverState.STOPPED


@pytest.mark.parametrize("until", ["available", "forever"])
def test_a_deferred_task_that_is_cleared_starts_anew_after_the_driver_that_is_being_stopped(
    tmp_path: Path,
    until: str,
    calls: Callable[[], list[dict[str, Any]]],  # noqa: F811
) -> None:
    plans = ("take-lease commit sleep=0.8 until-stop", "take-lease commit end=finished")
    deferral = leave(deferred(tmp_path, *plans, until=until))
    asyncio.run(trigger_of(deferral).on_kill())
    result = execute(operator(tmp_path, *plans, until=until), clears=1)
    assert (result["commit"], result["restarts"], len(calls())) == (2, 0, 2)


def test_a_task_that_is_cleared_before_its_driver_was_asked_to_stop_starts_anew_all_the_same(tmp_path: Path) -> None:
    plans = ("take-lease commit until-stop", "take-lease commit sleep=0.3 end=finished")
    old = leave(deferred(tmp_path, *plans))
    new = leave(deferred(tmp_path, *plans), clears=1)
    asyncio.run(trigger_of(old).on_kill())
    event = asyncio.run(first_event(trigger_of(new)))
    result = operator(tmp_path, *plans).resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]
    assert (result["run"], result["commit"], result["restarts"]) == (2, 2, 0)


def test_a_driver_that_is_stuck_brings_the_task_back_to_fail_as_unhealthy(tmp_path: Path) -> None:
    rules = HealthRules(no_commit_within=timedelta(seconds=1))
    with pytest.raises(
        UnhealthyError, match=r"no commit for \d+ s after commit 1, lag unknown; no_commit_within is 1 s"
    ):
        play(lambda: deferred(tmp_path, "take-lease commit until-stop", health=rules))
    status = statuses.read(Home(tmp_path / "home").status)
    assert status is not None
    assert status.state is DriverState.STOPPED


def test_a_frozen_driver_brings_the_task_back_and_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "STALE_SECONDS", 1.0)
    plans = ("take-lease commit freeze", "take-lease commit end=finished")
    result, times = play(lambda: deferred(tmp_path, *plans, restart_strategy=ONCE_MORE))
    assert (result["run"], result["restarts"]) == (2, 1)
    assert times in (1, 2)


def test_an_execution_time_out_holds_while_the_task_is_deferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(operators, "time", clock)
    monkeypatch.setattr(triggers, "time", clock)
    task = deferred(tmp_path, "take-lease commit until-stop", execution_timeout=timedelta(hours=1))
    deferral = leave(task)
    clock.ahead += 3600
    event = asyncio.run(first_event(trigger_of(deferral)))
    with pytest.raises(AirflowTaskTimeout, match="stopped at commit 1"):
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]


def test_a_home_that_can_not_be_read_for_a_while_says_nothing(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished"))
    trigger = trigger_of(deferral)
    control = tmp_path / "home" / "control"

    async def watch() -> None:
        (control / "status.json").rename(control / "away")
        (control / "status.json").mkdir()  # as unreadable for everybody, root too
        watching = asyncio.create_task(first_event(trigger))
        await asyncio.sleep(0.5)
        assert not watching.done()
        (control / "status.json").rmdir()
        (control / "away").rename(control / "status.json")
        let_go(Home(tmp_path / "home"))
        await asyncio.wait_for(watching, HANG_SECONDS)

    asyncio.run(watch())


def test_a_lost_worker_before_the_deferral_leaves_a_driver_that_the_next_try_takes_over(tmp_path: Path) -> None:
    deferral = leave(deferred(tmp_path, "take-lease commit go end=finished"))
    token = deferral.trigger.serialize()[1]["intent"]["token"]
    again = leave(deferred(tmp_path, "exit=1"))
    assert again.trigger.serialize()[1]["intent"]["token"] == token
    let_go(Home(tmp_path / "home"))
    asyncio.run(first_event(trigger_of(again)))
    assert execute(deferred(tmp_path, "exit=1"))["commit"] == 1, "it has finished unseen, and the third try knows"
    assert intents.read(Home(tmp_path / "home").intent) is None


def test_another_tasks_driver_is_waited_for_in_the_triggerer_and_left_alone(tmp_path: Path) -> None:
    rules = HealthRules(no_commit_within=timedelta(seconds=0.5))
    plans = ("take-lease commit go end=finished", "take-lease commit end=finished")
    leave(deferred(tmp_path, *plans))
    waiting = leave(deferred(tmp_path, *plans, health=rules), TaskInstance(run_id="run2"))
    asyncio.run(trigger_of(waiting).on_kill())
    threading.Timer(1, lambda: let_go(Home(tmp_path / "home"))).start()  # later than the rules allow
    event = asyncio.run(first_event(trigger_of(waiting)))
    first = statuses.read(Home(tmp_path / "home").status)
    assert first is not None
    assert first.state is DriverState.FINISHED, "it was neither stopped nor found unhealthy"
    task = operator(tmp_path, *plans)
    assert task.resume_from_trigger({"ti": TaskInstance(run_id="run2")}, event)["commit"] == 2  # type: ignore[typeddict-item]


def test_until_running_needs_no_triggerer(tmp_path: Path) -> None:
    task = deferred(tmp_path, "take-lease commit until-stop", until="running")
    assert execute(task)["run"] == 1
    home = Home(tmp_path / "home")
    held = leases.read(home.lease)
    assert held is not None
    requests.request_stop(home, held.token, reason="test")


def test_a_stop_before_the_task_is_back_from_the_triggerer_is_no_stop_that_is_lost(tmp_path: Path) -> None:
    task = deferred(tmp_path, "take-lease commit go die")
    deferral = leave(task)
    let_go(Home(tmp_path / "home"))
    event = asyncio.run(first_event(trigger_of(deferral)))
    request = StopRequest(Home(tmp_path / "home"), "abc", reason="maintenance")
    assert request.target() == event["intent"]["token"]
    assert request.advance(), "it has ended"
    with pytest.raises(StopRequestedError, match="before restart 1: maintenance"):
        task.resume_from_trigger({"ti": TaskInstance()}, event)  # type: ignore[typeddict-item]

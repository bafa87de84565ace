"""The sensor for a pipeline's state, with a real home, here and in the triggerer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, TaskDeferred

from airflow_provider_exactlyonce.control import lease, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of
from airflow_provider_exactlyonce.control.status import DriverError, DriverState, Status
from airflow_provider_exactlyonce.sensors.pipeline_state import PipelineStateSensor
from airflow_provider_exactlyonce.triggers.pipeline_state import PipelineStateTrigger
from tests.clocks import StandingClock
from tests.waiting import HANG_SECONDS


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def report(home: Home, state: DriverState, token: str = "t", error: DriverError | None = None) -> None:
    status.write(home.status, Status(pipeline="p", token=token, state=state, run=2, commit=7, error=error))


def sensor(home: Home, *states: str, **options: Any) -> PipelineStateSensor:
    defaults = {"task_id": "state", "checkpoint": str(home.path), "poke_interval": 0.05, "timeout": 0.3}
    return PipelineStateSensor(**{**defaults, "states": states, **options})


def test_the_state_is_the_drivers_own_as_far_as_it_is_still_there(home: Home) -> None:
    assert state_of(home) == (PipelineState.ABSENT, None)
    mine = lease.acquire(home.lease, "p", "t")
    assert state_of(home)[0] is PipelineState.STARTING
    for state in (DriverState.STARTING, DriverState.RUNNING):
        report(home, state)
        assert state_of(home)[0] == PipelineState(state)
    lease.release(home.lease, mine)
    assert state_of(home)[0] is PipelineState.LOST
    for state in (DriverState.FINISHED, DriverState.STOPPED, DriverState.FAILED):
        report(home, state)
        assert state_of(home)[0] == PipelineState(state)
    lease.acquire(home.lease, "p", "the next one")
    assert state_of(home)[0] is PipelineState.STARTING


def test_it_is_done_when_the_pipeline_is_in_one_of_the_states(home: Home) -> None:
    report(home, DriverState.STOPPED)
    expected = {"pipeline": "p", "state": "stopped", "run": 2, "commit": 7}
    assert sensor(home, "failed", "stopped").execute({}) == expected
    assert sensor(home, "failed", "stopped", deferrable=True).execute({}) == expected


def test_a_time_out_names_the_state_that_it_is_in_and_the_drivers_error(
    home: Home, clock: StandingClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow.sdk.bases.sensor.time", clock)
    error = DriverError(kind="DataError", decision="fix_data", exit_code=67, message="not JSON at shop-0@12")
    report(home, DriverState.FAILED, error=error)
    said = r"^after 0.3 s: pipeline p is failed \(DataError: not JSON at shop-0@12\), waiting for running$"
    with pytest.raises(AirflowSensorTimeout, match=said):
        sensor(home, "running").execute({})
    with pytest.raises(TaskDeferred) as deferred:
        sensor(home, "running", deferrable=True).execute({})
    [event] = events(deferred.value.trigger)
    with pytest.raises(AirflowSensorTimeout, match=said):
        sensor(home, "running").resume_from_trigger({}, event)


def test_the_trigger_survives_the_metadata_database_and_fires_when_the_state_is_there(home: Home) -> None:
    with pytest.raises(TaskDeferred) as deferred:
        sensor(home, "stopped", deferrable=True, timeout=20).execute({})
    path, arguments = deferred.value.trigger.serialize()
    assert path == "airflow_provider_exactlyonce.triggers.pipeline_state.PipelineStateTrigger"
    again = PipelineStateTrigger(**json.loads(json.dumps(arguments)))
    assert again.serialize() == (path, arguments)
    report(home, DriverState.STOPPED)
    [event] = events(again)
    assert sensor(home, "stopped").resume_from_trigger({}, event)["state"] == "stopped"


def events(of: Any) -> list[Any]:
    async def collect() -> list[Any]:
        return [event.payload async for event in of.run()]

    return asyncio.run(asyncio.wait_for(collect(), HANG_SECONDS))


def rendered(task: PipelineStateSensor, **values: object) -> PipelineStateSensor:
    """Give fields the values that their templates have rendered to."""
    vars(task).update(values)
    return task


def test_what_never_can_be_is_refused_at_once(home: Home, tmp_path: Path) -> None:
    for deferrable in (False, True):
        with pytest.raises(AirflowFailException, match=r"states=\('runing',\): one or more of absent, starting"):
            rendered(sensor(home, "{{ params.state }}", deferrable=deferrable), states=("runing",)).execute({})
        with pytest.raises(AirflowFailException, match="is the home of pipeline p, not of shop"):
            sensor(home, "running", pipeline="shop", deferrable=deferrable).execute({})
    with pytest.raises(AirflowFailException, match="no driver"):
        sensor(home, "running").resume_from_trigger({}, {"reason": "refused", "missing": "no driver"})
    with pytest.raises(AirflowException, match="unknown event"):
        sensor(home, "running").resume_from_trigger({}, {"reason": "success"})
    with pytest.raises(ValueError, match="give pipeline or checkpoint"):
        PipelineStateSensor(task_id="state")
    xcom = sensor(home, "absent", checkpoint=str(tmp_path / "nothing")).execute({})
    assert xcom["state"] == "absent"


def test_all_that_depends_on_the_run_can_be_templated(home: Home) -> None:
    expected = {"pipeline", "checkpoint", "states", "kafka_conn_id"}
    templated = sensor(home, "running")
    assert set(templated.template_fields) == expected
    assert all(hasattr(templated, name) for name in expected)

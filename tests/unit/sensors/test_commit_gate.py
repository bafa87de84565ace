"""The gate's sensor, as far as it goes without a cluster."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, Asset
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor
from airflow_provider_exactlyonce.triggers.commit_gate import CommitGateTrigger


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


def gate(**options: Any) -> CommitGateSensor:
    return CommitGateSensor(**{"task_id": "gate", "pipeline": "shop", "commit": 3, "timeout": 60, **options})


def resume(sensor: CommitGateSensor, event: dict[str, Any]) -> Any:
    return sensor.resume_execution("resume_from_trigger", {"event": event}, {})


@pytest.mark.parametrize("given", [{"commit": None}, {"watermark": "2026-01-01"}, {"up_to_now": True}])
def test_anything_but_one_target_is_an_error_when_the_dag_is_read(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gate: give exactly one of commit, watermark, offsets, timestamp, up_to_now"):
        gate(**given)


@pytest.mark.parametrize("idle_after", [-1, timedelta(seconds=-1), float("nan"), "600", True])
def test_a_time_without_anything_to_do_that_can_not_be_is_an_error_when_the_dag_is_read(idle_after: Any) -> None:
    with pytest.raises(ValueError, match=r"gate: idle_after=.*: a timedelta, or a number of seconds, not negative"):
        gate(idle_after=idle_after)
    assert gate(idle_after=0).idle_after == 0


def test_all_that_depends_on_the_run_can_be_templated() -> None:
    sensor = gate()
    expected = {"pipeline", "commit", "watermark", "offsets", "timestamp", "kafka_conn_id"}
    assert set(sensor.template_fields) == expected
    assert all(hasattr(sensor, name) for name in expected)


def test_an_open_gate_returns_the_commit() -> None:
    opened = {"pipeline": "shop", "commit": 4, "idle": False}
    assert resume(gate(), {"reason": "found", "found": opened}) == opened


@pytest.mark.parametrize("event", [{}, {"reason": "success"}, {"reason": None}, {"found": {"commit": 4}}])
def test_an_unknown_event_is_no_success(event: dict[str, Any]) -> None:
    with pytest.raises(AirflowException, match="unknown event"):
        resume(gate(), event)


def test_a_time_out_names_what_is_missing() -> None:
    event = {"reason": "timeout", "missing": "shop: commit 1 of 3: 2 missing"}
    with pytest.raises(AirflowSensorTimeout, match=r"^after 60 s: shop: commit 1 of 3: 2 missing$"):
        resume(gate(), event)
    with pytest.raises(AirflowSkipException):
        resume(gate(soft_fail=True), event)


def test_what_waiting_does_not_help_fails_without_retries() -> None:
    with pytest.raises(AirflowFailException, match="schema 2"):
        resume(gate(), {"reason": "refused", "missing": "ledger record with schema 2"})
    with pytest.raises(AirflowFailException, match="pipeline name 'shop/totals'"):
        gate(pipeline="shop/totals").execute({})


@pytest.mark.parametrize("value", ["", "None"])
def test_a_template_that_rendered_to_nothing_is_an_error(value: str) -> None:
    sensor = gate(commit="{{ ti.xcom_pull('stream') }}")
    sensor.commit = value
    with pytest.raises(AirflowFailException, match="commit="):
        sensor.execute({})


def test_a_gate_can_be_started_without_a_worker() -> None:
    for outlets in ([], [Asset("behind")]):
        sensor = gate(
            commit=None,
            watermark="{{ data_interval_end }}",
            idle_after=timedelta(minutes=5),
            start_from_trigger=True,
            outlets=outlets,
        )
        assert sensor.deferrable
        assert sensor.start_from_trigger
        assert sensor.start_trigger_args is not None
        assert sensor.start_trigger_args.timeout == timedelta(seconds=120), "the trigger says what is missing before it"
        path, arguments = sensor.start_trigger_args.trigger_cls, sensor.start_trigger_args.trigger_kwargs
        assert path == "airflow_provider_exactlyonce.triggers.commit_gate.CommitGateTrigger"
        assert arguments is not None
        trigger = CommitGateTrigger(**arguments)
        assert trigger.subject["watermark"] == "{{ data_interval_end }}"
        assert trigger.subject["idle_after"] == 300
        assert trigger.ends_task is not bool(outlets), "a worker reports the asset events"
        rendered = set(sensor.template_fields) & set(arguments)
        assert all(hasattr(trigger, name) for name in rendered)
    assert gate().start_trigger_args is None


@pytest.mark.parametrize(("execution_seconds", "before_the_end"), [(3600, 60), (60, 30), (10, 5)])
def test_an_execution_time_out_counts_for_a_gate_that_is_started_without_a_worker(
    execution_seconds: int, before_the_end: float
) -> None:
    """Airflow takes the shorter of both for such a task; many a DAG has one for all of its tasks."""
    sensor = gate(start_from_trigger=True, timeout=86_400, execution_timeout=timedelta(seconds=execution_seconds))
    assert sensor.start_trigger_args is not None
    assert sensor.start_trigger_args.timeout == timedelta(seconds=execution_seconds)
    trigger = CommitGateTrigger(**sensor.start_trigger_args.trigger_kwargs or {})
    trigger.timeout_after = datetime(2026, 1, 1, tzinfo=UTC)
    assert trigger._deadline() == trigger.timeout_after.timestamp() - before_the_end
    with pytest.raises(AirflowSensorTimeout, match=rf"^after {execution_seconds - before_the_end:g} s: nothing"):
        resume(sensor, {"reason": "timeout", "missing": "nothing"})
    longer = gate(start_from_trigger=True, timeout=60, execution_timeout=timedelta(hours=1))
    assert longer.timeout == 60


@pytest.mark.parametrize("target", [{"timestamp": "2026-01-01"}, {"up_to_now": True}])
def test_what_a_retry_has_to_keep_needs_a_worker(target: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gate: start_from_trigger=True does not go with timestamp and up_to_now"):
        gate(commit=None, start_from_trigger=True, **target)


def test_the_output_of_a_task_needs_a_worker() -> None:
    with DAG("d"):
        before = EmptyOperator(task_id="before")
        with pytest.raises(ValueError, match="gate: commit is the output of a task"):
            gate(commit=before.output, start_from_trigger=True)

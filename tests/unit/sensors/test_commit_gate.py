"""The gate's sensor, as far as it goes without a cluster."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_provider_exactlyonce.sensors.commit_gate import CommitGateSensor


@pytest.fixture(autouse=True)
def connection(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"bootstrap.servers": "127.0.0.1:1"}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


def gate(**options: Any) -> CommitGateSensor:
    return CommitGateSensor(**{"task_id": "gate", "pipeline": "shop", "commit": 3, "timeout": 60, **options})


def resume(sensor: CommitGateSensor, event: dict[str, Any]) -> Any:
    return sensor.resume_execution("resume_from_trigger", {"deadline": 0.0, "event": event}, {})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("given", [{"commit": None}, {"watermark": "2026-01-01"}])
def test_anything_but_one_target_is_an_error_when_the_dag_is_read(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="gate: give exactly one of commit, watermark, offsets, timestamp"):
        gate(**given)


def test_all_that_depends_on_the_run_can_be_templated() -> None:
    sensor = gate()
    expected = {"pipeline", "commit", "watermark", "offsets", "timestamp", "kafka_conn_id"}
    assert set(sensor.template_fields) == expected
    assert all(hasattr(sensor, name) for name in expected)


def test_an_open_gate_returns_the_commit() -> None:
    assert resume(gate(), {"reason": "open", "commit": 4}) == {"pipeline": "shop", "commit": 4}


@pytest.mark.parametrize("event", [{}, {"reason": "success"}, {"reason": None}, {"commit": 4}])
def test_an_unknown_event_is_no_success(event: dict[str, Any]) -> None:
    with pytest.raises(AirflowException, match="unknown event"):
        resume(gate(), event)


def test_a_time_out_names_what_is_missing() -> None:
    event = {"reason": "timeout", "missing": "commit 1 of 3: 2 missing"}
    with pytest.raises(AirflowSensorTimeout, match=r"^pipeline shop, after 60 s: commit 1 of 3: 2 missing$"):
        resume(gate(), event)
    with pytest.raises(AirflowSkipException):
        resume(gate(soft_fail=True), event)


def test_what_waiting_does_not_help_fails_without_retries() -> None:
    with pytest.raises(AirflowFailException, match="schema 2"):
        resume(gate(), {"reason": "refused", "missing": "ledger record with schema 2"})
    with pytest.raises(AirflowFailException, match="pipeline name 'shop/totals'"):
        gate(pipeline="shop/totals").execute({})  # type: ignore[typeddict-item]


@pytest.mark.parametrize("value", ["", "None"])
def test_a_template_that_rendered_to_nothing_is_an_error(value: str) -> None:
    with pytest.raises(ValueError, match="commit="):
        gate(commit=value).execute({})  # type: ignore[typeddict-item]

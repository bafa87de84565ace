"""What a sensor keeps over the tries of its task, and no longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_exactlyonce.sensors.kafka_transactions import KafkaTransactionsSensor
from tests.task_state import Store, context


def of_try(store: Store, *, clears: int = 0, max_tries: int = 1) -> Any:
    return {**context(store, clears), "ti": SimpleNamespace(max_tries=max_tries)}


def test_what_is_waited_for_is_kept_over_tries_and_fixed_anew_by_each_kind_of_clear() -> None:
    store, sensor = Store(), KafkaTransactionsSensor(task_id="wait", topics=["t"])
    sensor.keep(of_try(store), {"targets": {"t": {"0": 3}}})
    assert sensor.kept(of_try(store)) == {"targets": {"t": {"0": 3}}}
    assert sensor.kept(of_try(store, clears=1, max_tries=2)) is None
    assert sensor.kept(of_try(store, max_tries=2)) is None, "over REST, with reset_dag_runs=false"


def test_what_release_0_1_0_has_kept_is_gone_on_with() -> None:
    store, sensor = Store(), KafkaTransactionsSensor(task_id="wait", topics=["t"])
    store.set("exactlyonce_waits_for", {"for": {"topics": ["t"], "clear_number": 0}, "fixed": {"targets": {}}})
    assert sensor.kept(of_try(store)) == {"targets": {}}
    assert sensor.kept(of_try(store, clears=1)) is None

"""Savepoints as tasks, as far as it goes without a home."""

from __future__ import annotations

from typing import cast

from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

from airflow_provider_exactlyonce.operators.savepoint import SavepointOperator


def test_which_tasks_wait_by_themselves_for_the_one_that_says_the_label() -> None:
    """When the mapped one does, too, docs/airflow.md and the operator need not tell to name it."""
    with DAG("d", schedule=None):
        first = EmptyOperator(task_id="first")
        SavepointOperator(task_id="plain", pipeline="shop", label=cast(str, first.output))
        SavepointOperator.partial(task_id="expanded", pipeline="shop").expand(label=first.output)
        SavepointOperator.partial(task_id="partial", label=first.output).expand(pipeline=["a", "b"])
    assert first.downstream_task_ids == {"plain", "expanded"}

"""What operators and sensors use of Airflow's task instances, and of the state that is kept over their tries."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any


class Store:
    """A task's state store, as far as sensors use it; values go through JSON."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, key: str) -> Any:
        return json.loads(self.kept[key]) if key in self.kept else None

    def set(self, key: str, value: Any, **_: Any) -> None:
        self.kept[key] = json.dumps(value)


class TaskInstance:
    """One of a DAG ``shop``; what is pushed goes through JSON."""

    dag_id = "shop"

    def __init__(
        self,
        task_id: str = "stream",
        run_id: str = "run1",
        map_index: int = -1,
        *,
        state: str = "running",
        try_number: int = 1,
        max_tries: int = 1,
    ) -> None:
        self.task_id, self.run_id, self.map_index = task_id, run_id, map_index
        self.state, self.try_number, self.max_tries = state, try_number, max_tries
        self.pushed: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.pushed[key] = json.loads(json.dumps(value))

    def get_task_states(self, **wanted: Any) -> dict[str, dict[str, str]]:
        which = {"map_index": self.map_index, "task_ids": [self.task_id], "run_ids": [self.run_id]}
        assert wanted == {"dag_id": self.dag_id, **which}
        return {self.run_id: {self.task_id: self.state}}


def context(store: Store, clear_number: int = 0) -> Any:
    return {"task_state_store": store, "dag_run": SimpleNamespace(clear_number=clear_number)}

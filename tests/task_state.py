"""What a sensor keeps over the tries of its task."""

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


def context(store: Store, clear_number: int = 0) -> Any:
    return {"task_state_store": store, "dag_run": SimpleNamespace(clear_number=clear_number)}

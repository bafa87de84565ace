"""The name under which a task asks a pipeline for something: the same for all its tries, another once it is cleared.

Airflow counts the clears of a DAG run, of whichever of its tasks. So a higher count alone says nothing; it makes a new
request of one that was done, and never of one that is still waited for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

from airflow_provider_exactlyonce.control import commands, json_store
from airflow_provider_exactlyonce.control.home import Home

#: A task instance is hardly cleared after so long.
_FORGOTTEN_SECONDS: Final = 30 * 24 * 60 * 60.0


class TaskRequest:
    """What one task instance asks for.

    :param task_instance: what tells it from all others
    :param clears: how often its DAG run was cleared
    """

    def __init__(self, home: Home, task_instance: Sequence[str], *, clears: int) -> None:
        self._home: Final = home
        self._clears: Final = clears
        self._file: Final = home.commands / f"task-{_digits(*task_instance)}.json"
        body: dict[str, Any] | None = json_store.read(self._file)
        self._number: Final[int] = body["number"] + (clears > body["clears"]) if body else 0
        self.name: Final = _digits(*task_instance, str(self._number))

    def done(self) -> None:
        """Note that the task has what it asked for."""
        commands.forget_older(self._home, "task-*.json", _FORGOTTEN_SECONDS)
        json_store.write(self._file, {"number": self._number, "clears": self._clears})


def _digits(*names: str) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:16]

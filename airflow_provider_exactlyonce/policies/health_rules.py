"""When a pipeline that runs is not well. A pipeline that has finished, or was stopped, is never unhealthy."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from airflow_provider_exactlyonce.policies.restart_strategy import check_remembered


@dataclass(frozen=True, kw_only=True)
class HealthRules:
    """When a supervisor judges a driver unhealthy; each rule is off unless it is given.

    :param max_restarts: more restarts than this within ``restart_window`` are too many; they are counted since the
        first driver that the task try has started
    :param restart_window: see there
    :param no_commit_within: a driver that has something to commit and hasn't for so long is stuck; a quiet source is
        no reason, a driver that never comes up is
    """

    max_restarts: int | None = None
    restart_window: timedelta = timedelta(minutes=2)
    no_commit_within: timedelta | None = None

    def __post_init__(self) -> None:
        if self.max_restarts is not None and not isinstance(self.max_restarts, int):
            raise ValueError(f"max_restarts={self.max_restarts!r}: a whole number")
        if self.max_restarts is not None:
            if self.max_restarts < 0:
                raise ValueError(f"max_restarts={self.max_restarts}: not negative")
            check_remembered("max_restarts", self.max_restarts)
        for name in ("restart_window", "no_commit_within"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, timedelta):
                raise ValueError(f"{name}={value!r}: a timedelta, such as timedelta(minutes=10)")
            if value is not None and value <= timedelta(0):
                raise ValueError(f"{name}={value}: above 0")

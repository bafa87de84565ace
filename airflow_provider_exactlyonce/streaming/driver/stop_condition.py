"""When a run with a target (commits, watermark, duration) has reached it.

A target that counts from the first start is fixed then and kept in the home, under a name that all starts of the run
share: a driver that is started again after a crash, or by the task's next try, goes on to the same target.
"""

from __future__ import annotations

import time
from typing import Final

from airflow_provider_exactlyonce.control import json_store, requests
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.policies.termination import Bound, RunTarget


class StopCondition:
    """The target of one run.

    :param target: as it was asked for, None for a run without one
    :param name: what all starts of the run share, None when there will be no other
    """

    def __init__(self, home: Home, target: RunTarget | None, name: str | None) -> None:
        self._home: Final = home
        self._target: Final = target
        self._name: Final = name
        self._value: float | None = None

    def begin(self, commit: int) -> None:
        """Fix the target if no earlier start has.

        :param commit: number of the pipeline's last commit
        """
        if self._target is None:
            return
        stored = json_store.read(self._home.commands / f"goal-{self._name}.json") if self._name else None
        if stored is not None:
            self._value = float(stored["value"])
            return
        start = {Bound.COMMITS: float(commit), Bound.DURATION: time.time(), Bound.WATERMARK: 0.0}
        self._value = start[self._target.bound] + self._target.value
        if self._name:
            requests.forget_older(self._home.commands, "goal-*.json")
            json_store.write(self._home.commands / f"goal-{self._name}.json", {"value": self._value})

    def reached(self, commit: int, watermark: int) -> str | None:
        """Return a text when the target has been reached, None while it has not.

        :param commit: number of the pipeline's last commit
        :param watermark: its watermark, milliseconds since the epoch, 0 for none
        """
        if self._target is None or self._value is None:
            return None
        now = {Bound.COMMITS: commit, Bound.DURATION: time.time(), Bound.WATERMARK: watermark}[self._target.bound]
        if now < self._value:
            return None
        return {
            Bound.COMMITS: f"commit {self._value:.0f} is there",
            Bound.DURATION: f"it was to run for {self._target.value:g} s",
            Bound.WATERMARK: "the watermark that was waited for is there",
        }[self._target.bound]

"""Watching a driver: what is done when its work is over and its process is not, and what is unhealthy."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from airflow_provider_exactlyonce.control import driver_watch, status
from airflow_provider_exactlyonce.control.driver_locator import DriverAttachment
from airflow_provider_exactlyonce.control.driver_watch import DriverWatch
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.processes import DriverProcess, Ended
from airflow_provider_exactlyonce.control.status import DriverState, Status
from airflow_provider_exactlyonce.control.stopping import EXIT_GRACE_SECONDS
from airflow_provider_exactlyonce.control.supervision import StopSignal, Supervision
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy

#: How long a cluster's manager takes to end what it was told to kill.
ENDING_SECONDS = 5.0


class Clock:
    """Time that passes while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1000.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class HangingDriver(DriverProcess):
    """Ends some time after it was first killed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__("t")
        self.killed: list[float] = []
        self._clock = clock

    def ended(self) -> Ended | None:
        is_over = self.killed and self._clock.now - self.killed[0] >= ENDING_SECONDS
        return Ended(exit_code=None) if is_over else None

    def signal(self, number: signal.Signals) -> None:
        assert number is signal.SIGKILL
        self.killed.append(self._clock.now)


def test_a_driver_that_hangs_after_its_work_is_killed_once_and_has_time_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        driver_watch, "time", SimpleNamespace(monotonic=lambda: clock.now, time=lambda: clock.now, sleep=clock.sleep)
    )
    home, driver = Home(tmp_path), HangingDriver(clock)
    home.control.mkdir()
    status.write(home.status, Status(pipeline="p", token="t", state=DriverState.FINISHED))
    intent = Intent(token="t", owner="dag", until="forever", series="t", restarts=0, log="")
    attached = DriverAttachment(driver=driver, intent=intent, ours=True)
    supervision = Supervision(owner="dag", until="forever", strategy=RestartStrategy.none())
    watch = DriverWatch(home, supervision, attached, StopSignal(), lambda reason: None)
    assert [seen.state for seen in watch.until_its_end()] == [DriverState.FINISHED]
    assert len(driver.killed) == 1
    assert driver.killed[0] - 1000.0 >= EXIT_GRACE_SECONDS


def test_a_pipeline_without_new_records_or_that_has_finished_is_healthy() -> None:
    rules = HealthRules(no_commit_within=timedelta(seconds=60))
    intent = Intent(token="t", owner="o", until="available", series="t", restarts=0, log="", written=900.0)
    quiet = Status(pipeline="shop", token="t", state=DriverState.RUNNING, commit=1, lag=0, progressed=1000.0)
    assert driver_watch.stuck(intent, quiet, rules, 1060.0) is None
    assert driver_watch.stuck(intent, quiet, rules, 1061.0) is not None
    assert driver_watch.stuck(intent, replace(quiet, state=DriverState.FINISHED), rules, 1061.0) is None

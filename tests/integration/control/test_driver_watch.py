"""The health rules of a supervisor with real processes."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_provider_exactlyonce.control import driver_watch, processes, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.exceptions import UnhealthyError
from airflow_provider_exactlyonce.policies.health_rules import HealthRules
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.clocks import AheadClock
from tests.integration.control.alarms import alarm
from tests.integration.control.supervising import AT_ONCE, committed, launch, notes


def watched(home: Home, *plans: str, health: HealthRules, strategy: RestartStrategy = AT_ONCE) -> Supervisor:
    return Supervisor(
        home,
        launch(home, *plans),
        Supervision(
            owner="o", until="available", strategy=strategy, health=health, poll_seconds=0.05, stop_timeout_seconds=1
        ),
    )


def test_too_many_restarts_within_the_window_are_unhealthy(home: Home) -> None:
    rules = HealthRules(max_restarts=2, restart_window=timedelta(minutes=1))
    with pytest.raises(UnhealthyError, match=r"3 drivers died within 60 s; max_restarts is 2; .*signal 9"):
        list(watched(home, "take-lease die", health=rules, strategy=RestartStrategy.exponential(jitter=0)).run())
    assert len(notes(home, "started")) == 3


def test_restarts_outside_the_window_are_healthy(home: Home) -> None:
    rules = HealthRules(max_restarts=1, restart_window=timedelta(seconds=0.4))
    plans = ["take-lease sleep=0.6 die", "take-lease sleep=0.6 die", "take-lease end=finished"]
    list(watched(home, *plans, health=rules).run())
    assert len(notes(home, "started")) == 3


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("take-lease commit sleep=60", "after commit 1, lag unknown"),
        ("sleep=60", "since the driver was started"),
        ("take-lease commit freeze", "after commit 1"),
    ],
)
def test_a_driver_that_does_not_commit_is_stopped_and_unhealthy(
    home: Home, monkeypatch: pytest.MonkeyPatch, plan: str, message: str
) -> None:
    clock = AheadClock()
    monkeypatch.setattr(driver_watch, "time", clock)
    monkeypatch.setattr(stopping, "TERM_SECONDS", 0.3)
    up = committed(home) if "commit" in plan else lambda: bool(notes(home, "started"))

    def an_hour_goes_by() -> None:
        clock.ahead += 3600

    rules = HealthRules(no_commit_within=timedelta(hours=1))
    with alarm(up, an_hour_goes_by), pytest.raises(UnhealthyError, match=rf"no commit for 36\d\d s {message}"):
        list(watched(home, plan, health=rules).run())
    assert len(notes(home, "started")) == 1
    assert processes.members(str(notes(home)[0]["token"])) == []

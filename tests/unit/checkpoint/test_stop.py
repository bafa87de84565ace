"""How often somebody looks who waits for a driver at a command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.checkpoint import request, stop
from airflow_provider_exactlyonce.checkpoint.request import SavepointTaker
from airflow_provider_exactlyonce.checkpoint.stop import Stop
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.requests import WaitCondition
from airflow_provider_exactlyonce.exceptions import NotAnsweredError
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests.clocks import StandingClock


@pytest.mark.parametrize(("seconds_per_read", "looks"), [(0.0, 301), (5.0, 13)])
def test_a_home_where_a_read_costs_is_looked_at_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds_per_read: float, looks: int
) -> None:
    home, clock, looked = Home(tmp_path), StandingClock(), list[float]()

    def advance(_: object) -> WaitCondition:
        looked.append(clock.now)
        return WaitCondition(token="t")

    monkeypatch.setattr(LocalStore, "seconds_per_read", seconds_per_read)
    for module in (polling, request):
        monkeypatch.setattr(module, "time", clock)
    for kind in (Stop, SavepointTaker):
        monkeypatch.setattr(kind, "advance", advance)
    with pytest.raises(NotAnsweredError):
        stop.stop(home, "p", {}, savepoint=False, timeout_seconds=60)
    assert len(looked) == pytest.approx(looks, abs=1)
    looked.clear()
    with pytest.raises(NotAnsweredError):
        request.take(home, "p", {}, timeout_seconds=60)
    assert len(looked) == pytest.approx(looks, abs=1)

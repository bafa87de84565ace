"""Asking a driver to stop whose home does not always answer."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.control import processes, requests, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.processes import Ended, RemoteDriver
from airflow_provider_exactlyonce.storage.store import OutcomeUnknownError
from tests.clocks import StandingClock


@pytest.mark.parametrize("error", [OSError(errno.EIO, "no answer"), OutcomeUnknownError("no answer")])
def test_a_driver_on_another_host_is_asked_again_until_its_home_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    home, clock, request_stop, asked = Home(tmp_path), StandingClock(), requests.request_stop, list[float]()
    for module in (polling, stopping, processes):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(stopping, "detach", lambda *_: None)

    def ask(*args: Any, **kwargs: Any) -> None:
        asked.append(clock.now)
        if len(asked) < 3:
            raise error
        request_stop(*args, **kwargs)

    monkeypatch.setattr(requests, "request_stop", ask)
    driver = RemoteDriver("t", home.lease)
    has_stopped = lambda: Ended(exit_code=None) if requests.stop_requested(home, "t") else None  # noqa: E731
    monkeypatch.setattr(driver, "ended", has_stopped)
    began = clock.now
    stopping.stop_and_wait(home, driver, reason="the task was killed", timeout_seconds=60, owner="d/t/r/-1")
    assert [round(at - began) for at in asked] == [0, 5, 10]
    assert clock.now - began < 60, "nothing is forced"
    assert requests.killed_by(home, "t") == "d/t/r/-1"

"""The watch over a driver in the triggerer, as far as it goes without one."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import polling
from airflow_provider_exactlyonce.control import requests, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.triggers.pipeline import PipelineTrigger
from tests.clocks import StandingClock
from tests.waiting import HANG_SECONDS


def trigger(home: Path) -> PipelineTrigger:
    return PipelineTrigger(home=str(home), intent={"token": "t"}, owner="d/t/r/-1", poll_interval=1, stop_timeout=20)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    drivers: list[tuple[str, float]] = []

    monkeypatch.setattr(stopping, "detach", lambda *driver: drivers.append(driver))
    return drivers


def test_a_kill_does_not_wait_for_threads_that_wait_for_a_cluster(
    tmp_path: Path, stopped: list[tuple[str, float]]
) -> None:
    """Airflow gives up on it after half a minute, as long as one look at a cluster that does not answer may take."""
    answer = threading.Event()

    async def kill() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        waiting = loop.run_in_executor(None, answer.wait)
        try:
            await asyncio.wait_for(trigger(tmp_path).on_kill(), HANG_SECONDS)
        finally:
            answer.set()
            await waiting

    asyncio.run(kill())
    assert stopped == [("t", 20)]
    assert requests.killed_by(Home(tmp_path), "t") == "d/t/r/-1"


def test_a_kill_stops_the_driver_by_force_while_its_home_does_not_answer_and_asks_it_when_that_does(
    tmp_path: Path, stopped: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By force only on this host: a driver on another one is reached by the home alone."""
    request_stop, answers, asked = requests.request_stop, threading.Event(), threading.Event()

    def ask(*args: Any, **kwargs: Any) -> None:
        if not answers.is_set():
            raise OSError(errno.EIO, "no answer")
        request_stop(*args, **kwargs)
        asked.set()

    monkeypatch.setattr(requests, "request_stop", ask)
    clock = StandingClock(meanwhile=lambda: answers.wait(HANG_SECONDS))
    for module in (polling, stopping):
        monkeypatch.setattr(module, "time", clock)
    asyncio.run(trigger(tmp_path).on_kill())
    assert stopped == [("t", 20)]
    assert not asked.is_set()
    answers.set()
    assert asked.wait(HANG_SECONDS)
    assert requests.stop_requested(Home(tmp_path), "t") == "the task was killed"
    assert requests.killed_by(Home(tmp_path), "t") == "d/t/r/-1"

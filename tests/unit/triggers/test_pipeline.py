"""The watch over a driver in the triggerer, as far as it goes without one."""

from __future__ import annotations

import asyncio
import errno
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import pytest

from airflow_provider_exactlyonce.control import requests, stopping
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.triggers.pipeline import PipelineTrigger
from tests.waiting import HANG_SECONDS


def trigger(home: Path) -> PipelineTrigger:
    return PipelineTrigger(home=str(home), intent={"token": "t"}, owner="d/t/r/-1", poll_interval=1, stop_timeout=20)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float]]:
    drivers: list[tuple[str, float]] = []

    def detach(_: Any, token: str, *, reason: str, timeout_seconds: float) -> None:
        assert reason == "the task was killed"
        drivers.append((token, timeout_seconds))

    monkeypatch.setattr(stopping, "detach", detach)
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


def test_a_kill_stops_the_driver_by_force_while_its_home_does_not_answer(
    tmp_path: Path, stopped: list[tuple[str, float]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: Any) -> NoReturn:
        raise OSError(errno.EIO, "no answer")

    monkeypatch.setattr(requests, "note_killed", no_answer)
    asyncio.run(trigger(tmp_path).on_kill())
    assert stopped == [("t", 20)]

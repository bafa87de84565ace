"""What holds for every unit test: it starts no process and never sleeps, so that no machine is too slow for it."""

from __future__ import annotations

import multiprocessing.process
import os
import subprocess
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest
from hypothesis import HealthCheck, settings

# How long an example takes says something of the machine only.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")

RULE = (
    "a unit test starts no process and never sleeps: give it a clock (tests/clocks.py), or move it to tests/integration"
)


@contextmanager
def no_processes_and_no_sleep() -> Iterator[None]:
    sleep = time.sleep

    def refuse(*_: object, **__: object) -> NoReturn:
        pytest.fail(RULE)

    def refuse_in_main_thread(seconds: float) -> None:
        if seconds > 0 and threading.current_thread() is threading.main_thread():
            refuse()
        sleep(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess.Popen, "__init__", refuse)
        patch.setattr(multiprocessing.process.BaseProcess, "start", refuse)
        patch.setattr(os, "fork", refuse)
        patch.setattr(time, "sleep", refuse_in_main_thread)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, None, None]:
    """Judge fixtures, too, whatever their scope."""
    with no_processes_and_no_sleep():
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, None, None]:
    with no_processes_and_no_sleep():
        yield

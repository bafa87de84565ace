"""What holds for every unit test: it starts no process and never sleeps, so that no machine is too slow for it."""

from __future__ import annotations

import importlib
import multiprocessing.process
import os
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, NoReturn

import pytest
from hypothesis import HealthCheck, settings

from tests.clocks import StandingClock
from tests.virtual_time import loops_that_sleep_by, standing_time

# How long an example takes says something of the machine only.
settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
# When it is first imported, as the first DAG does, it starts a process that looks at Python's file.
importlib.import_module("croniter")

#: What starts a process, and what sleeps.
REFUSED: Final[tuple[tuple[Any, str], ...]] = (
    (subprocess.Popen, "__init__"),
    (multiprocessing.process.BaseProcess, "start"),
    *((os, name) for name in ("fork", "posix_spawn", "posix_spawnp", "system", "popen")),
    (time, "sleep"),
)
RULE = (
    "a unit test starts no process and never sleeps: give it a clock (tests/clocks.py), or move it to tests/integration"
)


@contextmanager
def no_processes_and_no_sleep(item: pytest.Item) -> Iterator[None]:
    wait, start = threading.Event.wait, threading.Thread.start
    ours = {threading.main_thread()}  # the process may have others, of integration tests
    refused_in_threads: list[str] = []

    def refuse(*_: object, **__: object) -> NoReturn:
        if threading.current_thread() is not threading.main_thread():
            refused_in_threads.append(threading.current_thread().name)
        pytest.fail(RULE)

    def refused(call: Callable[..., object]) -> Callable[..., object]:
        def guarded(*arguments: object, **named: object) -> object:
            if threading.current_thread() in ours and arguments != (0,):  # sleep(0) only yields
                refuse()
            return call(*arguments, **named)

        return guarded

    def start_ours(thread: threading.Thread) -> None:
        if threading.current_thread() in ours:
            ours.add(thread)
        start(thread)

    def wait_for_it(event: threading.Event, timeout: float | None = None) -> bool:
        is_set = wait(event, timeout)
        if not is_set and timeout and threading.current_thread() is threading.main_thread():
            refuse()
        return is_set

    has_clock = "clock" in getattr(item, "fixturenames", ())
    with pytest.MonkeyPatch.context() as patch, nullcontext() if has_clock else loops_that_sleep_by(refuse):
        for owner, name in REFUSED:
            patch.setattr(owner, name, refused(getattr(owner, name)))
        patch.setattr(threading.Event, "wait", wait_for_it)
        patch.setattr(threading.Thread, "start", start_ours)
        yield
    ours.clear()  # a test that has replaced one of these calls itself puts the guard back, once all is over
    if refused_in_threads:
        pytest.fail(f"{RULE} (threads {', '.join(refused_in_threads)})")


@pytest.fixture
def clock() -> Iterator[StandingClock]:
    """Give the time that a test's event loops go by: it advances where they would wait."""
    clock = StandingClock(time.time())
    with standing_time(clock):
        yield clock


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Judge fixtures, too, whatever their scope."""
    with no_processes_and_no_sleep(item):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    with no_processes_and_no_sleep(item):
        yield

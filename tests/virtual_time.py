"""Event loops in which nobody waits for a time: it is over at once, and threads have all the time that they need."""

from __future__ import annotations

import asyncio
import selectors
from asyncio import events
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from tests.clocks import StandingClock


class _Selector(selectors.DefaultSelector):
    """Waits for threads and for sockets, not for a time.

    :param sleep: called instead
    """

    def __init__(self, sleep: Callable[[float], object]) -> None:
        super().__init__()
        self._sleep = sleep
        self.at_work: set[asyncio.Future[Any]] = set()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0 or self.at_work:
            return super().select(None if self.at_work and timeout != 0 else timeout)
        ready = super().select(0)
        if not ready:
            self._sleep(timeout)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, sleep: Callable[[float], object]) -> None:
        self._threads = _Selector(sleep)
        super().__init__(self._threads)
        self._clock_resolution = 1e-6  # what a float of seconds since the epoch tells apart

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self._threads.at_work.add(future)
        future.add_done_callback(self._threads.at_work.discard)
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()


@contextmanager
def loops_that_sleep_by(sleep: Callable[[float], object]) -> Iterator[None]:
    """Let the loops of ``asyncio.run`` call this where they would wait for a time."""
    with patch.object(events, "new_event_loop", lambda: _Loop(sleep)):
        yield


@contextmanager
def standing_time(clock: StandingClock) -> Iterator[None]:
    """Let ``time`` tell a clock's time, and loops put it forward."""
    with (
        patch("time.time", clock.time),
        patch("time.monotonic", clock.monotonic),
        loops_that_sleep_by(clock.sleep),
    ):
        yield

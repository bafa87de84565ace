"""Signals to the test's own process, as a task gets them from Airflow."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def alarm(when: Callable[[], object], action: Callable[[], object]) -> Iterator[None]:
    """Run an action in a signal handler of the main thread, as Airflow runs ``on_kill``, once a condition is true."""
    over, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def wait() -> None:
        while not over.wait(0.02):
            if when():
                signal.pthread_kill(main, signal.SIGALRM)
                return

    previous = signal.signal(signal.SIGALRM, lambda *_: action())
    waiting = threading.Thread(target=wait)
    waiting.start()
    try:
        yield
    finally:
        over.set()
        waiting.join()
        signal.signal(signal.SIGALRM, previous)


def after(seconds: float) -> Callable[[], bool]:
    """Return a condition that comes true then."""
    then = time.monotonic() + seconds
    return lambda: time.monotonic() >= then

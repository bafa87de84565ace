"""Processes that go through the life of a sink and are killed or frozen in it, for the conformance tests."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError, ExactlyOnceError, FencedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_CHILD_SECONDS: Final = 60.0
_HELD_SECONDS: Final = 0.3  # how long a claim may wait for a frozen commit before that goes on
_REFUSED: Final = 3  # exit codes of a child, besides 0
_FAILED: Final = 4
#: What a commit raises that has not taken place, or does not know: a claim follows, and tells.
NOT_COMMITTED: Final = (FencedError, BatchFailedError, CommitUnknownError)
#: Goes through run 1 and its commit 1; yields each step when it is done.
Life = Callable[[], Iterator[str]]
#: The steps of a life, in order.
STEPS: Final = ("open", "claim", "begin", "write", "finish", "pre_commit", "commit", "settled")
#: Those in which something is decided.
DECIDING: Final = ("claim", "commit", "settled")


def _live(life: Life, step: str, on_step: Callable[[], Any]) -> None:
    """Live up to a step, with the profiler on within it."""
    steps = life()
    for expected in STEPS[: STEPS.index(step)]:
        if (reached := next(steps)) != expected:
            raise AssertionError(f"the step is {reached!r}, not {expected!r}")
    on_step()
    try:
        next(steps)
    finally:
        sys.setprofile(None)


def die(life: Life, folder: Path, step: str, call: int | None) -> None:
    """Be killed at a call within a step, or after it."""

    def live() -> None:
        _live(life, step, lambda: _at_call(call, signal.SIGKILL) if call else None)
        os.kill(os.getpid(), signal.SIGKILL)

    status = _wait(forked(live, folder))
    if not os.WIFSIGNALED(status):
        raise AssertionError(f"the process failed before {step}: {_child_output(folder)}")


def calls_of(life: Life, folder: Path, step: str, most: int) -> list[int]:
    """Return some of the calls that a step makes, spread over it: the first, the last, and between."""
    count_file = folder / "calls"
    call_count = [0]

    def live() -> None:
        def count(*_: object) -> None:
            call_count[0] += 1

        _live(life, step, lambda: sys.setprofile(count))
        count_file.write_text(str(call_count[0]))

    status = _wait(forked(live, folder))
    if status != 0:
        raise AssertionError(f"{step} failed without a crash: {_child_output(folder)}")
    calls = int(count_file.read_text())
    sample_size = min(most, calls)
    return sorted({1 + round(number * (calls - 1) / max(1, sample_size - 1)) for number in range(sample_size)})


def frozen(
    life: Life, folder: Path, call: int, claim: Callable[[], SinkEntry | ExactlyOnceError | None]
) -> tuple[SinkEntry | None, int]:
    """Freeze a commit at a call, claim, let it go on; returns the claim's result and how the commit ended.

    A claim may wait for a commit under way, so the process is thawed when the claim does not come back soon.
    """
    child = forked(lambda: _live(life, "commit", lambda: _at_call(call, signal.SIGSTOP)), folder)
    status = _wait(child, os.WUNTRACED)
    claimed: list[SinkEntry | ExactlyOnceError | None] = []
    thread = threading.Thread(target=lambda: claimed.append(claim()))
    thread.start()
    thread.join(_HELD_SECONDS)
    if os.WIFSTOPPED(status):  # now and then a commit makes fewer calls, and has ended
        os.kill(child, signal.SIGCONT)
        status = _wait(child)
    thread.join(_CHILD_SECONDS)
    if not claimed or isinstance(claimed[0], ExactlyOnceError):
        raise AssertionError(f"the claim beside a commit that is frozen at call {call} gave {claimed}")
    ended = os.waitstatus_to_exitcode(status)
    if ended not in (0, _REFUSED):
        raise AssertionError(f"the commit that was frozen at call {call} failed: {_child_output(folder)}")
    return claimed[0], ended


def _at_call(call: int, number: signal.Signals) -> None:
    """Send this process a signal at a call from now on: of a function in Python or C, or its return."""
    calls = 0

    def profile(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), number)

    sys.setprofile(profile)


def forked(work: Callable[[], object], folder: Path) -> int:
    """Do the work in a forked process; returns its id."""
    child = os.fork()
    if child:
        return child
    code = _FAILED
    try:
        work()
        code = 0
    except BaseException as error:
        (folder / "child.txt").write_text(traceback.format_exc())
        code = _REFUSED if isinstance(error, NOT_COMMITTED) else _FAILED
    finally:
        os._exit(code)


def _wait(child: int, options: int = 0) -> int:
    """Wait for a child's end, or stop; kills it when it takes too long."""
    deadline = time.monotonic() + _CHILD_SECONDS
    while True:
        ended, status = os.waitpid(child, options | os.WNOHANG)
        if ended:
            return status
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            raise AssertionError(f"the process did not end within {_CHILD_SECONDS:g} s")
        time.sleep(0.002)


def _child_output(folder: Path) -> str:
    file = folder / "child.txt"
    return file.read_text() if file.exists() else "it said nothing"

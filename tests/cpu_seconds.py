"""Notes in a report how much CPU each test has used, with all that it started: ``pytest -p tests.cpu_seconds``.

What a fixture of a file or a session costs counts for the first test that wants it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import psutil
import pytest

PROPERTY: Final = "cpu_seconds"
_BEFORE: Final = pytest.StashKey[float]()


def used() -> float:
    """Return what this process, those that it has started and those that have ended have used up to now."""
    seconds = 0.0
    here = psutil.Process()
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            seconds += times.user + times.system + times.children_user + times.children_system
    return seconds


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Note where a test begins."""
    item.stash[_BEFORE] = used()
    yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Note what it has used, once its clean-up is done."""
    try:
        yield
    finally:
        item.user_properties.append((PROPERTY, round(used() - item.stash[_BEFORE], 2)))

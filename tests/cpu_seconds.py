"""Notes in a report how much CPU each test has used, with all that it started: ``pytest -p tests.cpu_seconds``.

What a fixture of a file or a session costs counts for the first test that wants it. What the fixtures of integration
tests cost until they are there is noted, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from typing import Final

import psutil
import pytest

PROPERTY: Final = "cpu_seconds"
#: Before a fixture's name.
FIXTURE: Final = f"{PROPERTY} of "
_BEFORE: Final = pytest.StashKey[float]()
#: The tests of this process, the running one last.
_begun: Final[list[pytest.Item]] = []


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
    _begun.append(item)
    yield


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[object]) -> Generator[None, object, object]:
    """Note what a fixture of the tests has used until it is there; without those that it asks for in its arguments."""
    if not (fixturedef.baseid.startswith("tests") and _begun[-1].nodeid.startswith("tests/integration")):
        return (yield)
    before = used()
    try:
        return (yield)
    finally:
        name = f"{FIXTURE}{fixturedef.baseid.removeprefix('tests/')}: {fixturedef.argname}"
        _begun[-1].user_properties.append((name, round(used() - before, 2)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Note what it has used, once its clean-up is done."""
    try:
        yield
    finally:
        item.user_properties.append((PROPERTY, round(used() - item.stash[_BEFORE], 2)))

"""Which of pytest-xdist's processes runs a test, and when: a plugin of pytest."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler.loadscope import LoadScopeScheduling

from tests import durations

SLOW_SECONDS = 60.0

#: Files whose slow tests share nothing and take so long that one process would still run them when the others are done.
SPLIT = {"test_remote_home.py", "test_rescale.py", "test_home_copy.py"}


class GroupScheduling(LoadScopeScheduling):  # type: ignore[misc]  # xdist says no types
    """Runs the tests of a group in one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> GroupScheduling:
    """Let a file's tests run in one of the processes, and Airflow's all in the same: they share one Airflow."""
    return GroupScheduling(config, log)


@pytest.hookimpl(trylast=True)  # what is deselected is gone by then
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, so that the processes end at about the same time; folders stay together.

    A folder's files may share what one process makes once, such as a JVM.
    """
    recorded = durations.read()  # not of the slow ones
    seconds: dict[str, float] = defaultdict(float)
    for item in items:
        unknown = SLOW_SECONDS if item.get_closest_marker("slow") else 0.0
        seconds[group_of(item.nodeid)] += recorded.get(item.nodeid, unknown)
    longest: dict[Path, float] = defaultdict(float)
    for item in items:
        folder = item.path.parent
        longest[folder] = max(longest[folder], seconds[group_of(item.nodeid)])

    def place(item: pytest.Item) -> tuple[float, Path, float]:
        folder = item.path.parent
        return -longest[folder], folder, -seconds[group_of(item.nodeid)]

    items.sort(key=place)


def group_of(nodeid: str) -> str:
    """Return what a test belongs to, by its id: its file, or its class; of some files each test is by itself."""
    test = nodeid.partition("[")[0]
    group = test.rpartition("::")[0]
    if Path(group).name in SPLIT:
        return test
    return "airflow" if Path(group).parent.name == "airflow" else group

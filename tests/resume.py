"""Lets a run of the tests go on where an earlier one was cut: ``pytest -p tests.resume``.

Each test that passes is noted at once, under git's hash of all files. It is skipped as long as they are the same.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

NOTES: Final = Path(".exactlyonce/passed")


def tree() -> str:
    """Return the hash of all files of this folder that git does not ignore, changed and new ones too."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GIT_INDEX_FILE": f"{folder}/index"}
        subprocess.run(["git", "add", "--all"], env=environment, check=True)
        return subprocess.check_output(["git", "write-tree"], env=environment, text=True).strip()


class Resume:
    """Skips what is noted, and notes what passes."""

    def __init__(self, notes: Path, *, writes: bool) -> None:
        self._notes, self._writes, self._called = notes, writes, set[str]()

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what has passed; all processes have the same tests still, as pytest-xdist wants it."""
        passed = set(self._notes.read_text().splitlines()) if self._notes.exists() else set()
        for item in items:
            if item.nodeid in passed:
                item.add_marker(pytest.mark.skip(reason="passed in an earlier run on the same files"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test when its clean-up has passed too."""
        if report.passed and report.when == "call":
            self._called.add(report.nodeid)
        elif self._writes and report.passed and report.when == "teardown" and report.nodeid in self._called:
            with self._notes.open("a") as file:
                file.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    """Take up the notes on these files; those on others are of no use any more."""
    is_worker = hasattr(config, "workerinput")
    notes = NOTES / tree()
    if not is_worker:
        NOTES.mkdir(parents=True, exist_ok=True)
        for old in set(NOTES.iterdir()) - {notes}:
            old.unlink()
    config.pluginmanager.register(Resume(notes, writes=not is_worker))

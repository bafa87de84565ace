"""Lets a run of the tests go on where an earlier one was cut: ``pytest -p tests.resume``.

Each test that passes is noted at once, and each failure is shown at once: a run that is cut has no summary. What is
noted is skipped as long as all files are the same, but for other modules of tests of which none takes anything; a unit
test as long as all are.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

NOTES: Final = Path(".exactlyonce/passed")
TEST_MODULE: Final = re.compile(r"(^|/)test_\w+\.py$")
UNIT_TESTS: Final = "tests/unit/"


def files() -> dict[str, str]:
    """Return git's hash of each file of this folder that git does not ignore, changed and new ones too."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GIT_INDEX_FILE": f"{folder}/index"}
        subprocess.run(["git", "add", "--all"], env=environment, check=True)
        staged = subprocess.check_output(["git", "ls-files", "--stage", "-z"], env=environment, text=True)
    described = (line.split("\t", 1) for line in staged.split("\0") if line)
    return {path: description for description, path in described}


def hash_of(hashes: dict[str, str]) -> str:
    """Return one hash of these files."""
    parts = [f"{path} {description}" for path, description in hashes.items()]
    return hashlib.sha1("\0".join(parts).encode(), usedforsecurity=False).hexdigest()


def of_all_tests(hashes: dict[str, str]) -> dict[str, str]:
    """Return all files but the modules of tests that no Python file names: of those no other module takes anything."""
    sources = [Path(path).read_text() for path in hashes if path.endswith(".py")]
    named = {name for source in sources for name in re.findall(r"\btest_\w+", source)}
    return {
        path: description
        for path, description in hashes.items()
        if not TEST_MODULE.search(path) or Path(path).stem in named
    }


def is_worker(config: pytest.Config) -> bool:
    """Return whether this is a process of pytest-xdist that runs tests for another one."""
    return hasattr(config, "workerinput")


class Resume:
    """Skips what is noted, and notes what passes."""

    def __init__(self, notes: Path, hashes: dict[str, str], config: pytest.Config) -> None:
        self._notes, self._hashes, self._config, self._called = notes, hashes, config, set[str]()
        self._all = hash_of(hashes)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Skip what has passed; all processes have the same tests still, as pytest-xdist wants it."""
        passed = set(self._notes.read_text().splitlines()) if self._notes.exists() else set()
        for item in items:
            if self._note(item.nodeid) in passed:
                item.add_marker(pytest.mark.skip(reason="passed in an earlier run on the same files"))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test when its clean-up has passed too; show why it failed."""
        if is_worker(self._config):
            return
        if report.failed:
            terminal = self._config.get_terminal_writer()
            terminal.line()
            terminal.sep("_", f"{report.when} of {report.nodeid}")
            terminal.line(report.longreprtext)
            terminal.flush()
        elif report.passed and report.when == "call":
            self._called.add(report.nodeid)
        elif report.passed and report.when == "teardown" and report.nodeid in self._called:
            with self._notes.open("a") as file:
                file.write(f"{self._note(report.nodeid)}\n")

    def _note(self, test: str) -> str:
        # Some unit tests judge the text of all modules. They are quick.
        module = test.partition("::")[0]
        return f"{self._all if module.startswith(UNIT_TESTS) else self._hashes[module]} {test}"


def pytest_configure(config: pytest.Config) -> None:
    """Take up the notes on these files; those on others are of no use any more."""
    hashes = files()
    notes = NOTES / hash_of(of_all_tests(hashes))
    if not is_worker(config):
        NOTES.mkdir(parents=True, exist_ok=True)
        for old in set(NOTES.iterdir()) - {notes}:
            old.unlink()
    config.pluginmanager.register(Resume(notes, hashes, config))

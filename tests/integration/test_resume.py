"""What has passed is not run again on the same files, also after a run that was cut."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = """
import os, signal
import pytest

@pytest.mark.parametrize("address", ["a@b", "c"])
def test_good(address):
    pass

def test_bad():
    assert not os.environ.get("CUT"), "why it failed"

def test_cut():
    if os.environ.get("CUT"):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_run_that_was_cut_goes_on(tmp_path: Path) -> None:
    def run(**more: str) -> str:
        command = [sys.executable, "-m", "pytest", "-p", "tests.resume", "-p", "no:cacheprovider"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **more,
        }
        return subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        ).stdout

    (tmp_path / ".gitignore").write_text(".exactlyonce/\n")
    (tmp_path / "test_one.py").write_text(TESTS)
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    assert "why it failed" in run(CUT="1"), "a run that is cut shows its failures"
    assert "2 passed, 2 skipped" in run()
    assert "4 skipped" in run()
    for taken in ("from test_one import test_good\n", "import os, test_one\ntest_good = test_one.test_good\n"):
        (tmp_path / "test_two.py").write_text(taken)
        run()
        (tmp_path / "test_one.py").write_text(f"{TESTS}\n# changed, {taken!r}")
        assert "6 passed" in run()
        (tmp_path / "test_two.py").write_text(f"{taken}\n# changed")
        assert "2 passed, 4 skipped" in run(), "of a module of which no other takes anything"
    unit = tmp_path / "tests/unit/test_three.py"
    unit.parent.mkdir(parents=True)
    unit.write_text("def test_all_modules():\n    pass\n")
    assert "1 passed, 6 skipped" in run()
    (tmp_path / "test_two.py").write_text(f"{taken}\n# changed again")
    assert "3 passed, 4 skipped" in run(), "some unit tests judge the text of all modules"
    unit.unlink()
    (tmp_path / "test_one.py").write_text(f"{TESTS}\n# changed")
    assert "6 passed" in run()
    (tmp_path / "helper.py").write_text("")
    assert "6 passed" in run()

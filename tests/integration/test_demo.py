from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import command_line, started_with
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
#: Every process that the demo starts inherits it.
MARKER = "EXACTLYONCE_DEMO_OF"


@contextmanager
def demo(temporary: Path, module: str = "demo") -> Iterator[subprocess.Popen[str]]:
    """Run a demo as a user does, in a session of its own as a terminal would give it."""
    with subprocess.Popen(
        [sys.executable, "-m", module],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(temporary), MARKER: str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def started_by(temporary: Path) -> dict[int, str]:
    """Return the command lines of the demo's processes."""
    return {pid: command_line(pid) for pid in started_with(MARKER, temporary)}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_ends_everything_it_started_and_leaves_no_files(
    tmp_path: Path, number: signal.Signals
) -> None:
    with demo(tmp_path) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "DAG shop_totals starts" in line:
                break
        eventually(
            lambda: any("org.apache.spark" in command for command in started_by(tmp_path).values()), "a driver starts"
        )
        process.send_signal(number)
        rest, _ = process.communicate()

    assert process.returncode == 130
    assert f"{number.name}: everything that the demo started has ended." in rest
    assert started_by(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_demo_is_right_and_its_page_has_the_reports_figures(tmp_path: Path) -> None:
    with demo(tmp_path) as process:
        text, _ = process.communicate()

    assert process.returncode == 0, text
    assert re.search(r"^records in +69,659 +69,659$", text, re.MULTILINE)
    assert re.search(r"^kills, restarts +2, 2 +2, 2$", text, re.MULTILINE)
    assert re.search(r"^records lost +0 +", text, re.MULTILINE)
    assert re.search(r"^rows doubled +0 +", text, re.MULTILINE)
    assert re.search(r"^money out, \$ +2,500,315\.63 +", text, re.MULTILINE)
    assert int(re.search(r"^batches +(\d+)", text, re.MULTILINE)[1]) >= 8  # type: ignore[index]
    page = (ROOT / "demo-report" / "index.html").read_text()
    assert "Two kills, nothing lost, nothing doubled" in page
    assert started_by(tmp_path) == {}
    assert list(tmp_path.iterdir()) == []

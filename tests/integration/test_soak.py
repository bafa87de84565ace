"""A soak of some minutes: everything is killed once or so, it is right, has a report, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.soak.names import PIPELINES
from tests.soak.plan import KILLS, Kind
from tests.soak.report import Story

ROOT = Path(__file__).parents[2]
#: Three minutes, without the start and the drain.
HOURS = "0.05"
SEED = "5"


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_a_short_soak_is_right_and_ends_by_itself(tmp_path: Path) -> None:
    before = set(psutil.pids())
    command = [sys.executable, "-m", "tests.soak", "--hours", HOURS, "--seed", SEED, "--folder", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    left = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
    assert left == []
    story = Story(tmp_path)
    assert story.findings == []
    end = story.one("end")
    assert end["sent"] > 0
    assert set(end["judged"].values()) == {end["sent"]}
    assert {commit["pipeline"] for commit in story.of("commit")} == set(PIPELINES)
    assert len(story.of("gate")) >= 5
    killed = {event["what"].partition(", ")[2] for event in story.of("done")} & {kind.value for kind in KILLS}
    assert len(killed) >= 2
    assert {Kind.SAVEPOINT.value, Kind.UPGRADE.value, Kind.ROLLBACK.value} <= set(story.recoveries())
    assert "RIGHT" in (tmp_path / "index.html").read_text()

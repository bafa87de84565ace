"""The turn of a backfill whose process is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.control.home import Home
from tests.unit.backfill.test_workspace import made, never

HOLD = """
import sys, time
from airflow_provider_exactlyonce.backfill import workspace
from airflow_provider_exactlyonce.control.home import Home
with workspace.turn(Home(sys.argv[1]), lambda: None):
    print("has it", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def test_the_turn_of_a_process_that_is_killed_is_over(home: Home) -> None:
    first, second = made(home, "1..2"), made(home, "1..3")
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(first.path)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"has it\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        with workspace.turn(second, never):
            assert str(second.path) in (second.path.parent / "turn.lock").read_text()
    finally:
        process.kill()
        process.communicate()

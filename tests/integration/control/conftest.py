"""A home whose drivers end with the test."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from tests.integration.control.supervising import notes
from tests.processes import command_line


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home(tmp_path / "home")
    yield home
    for pid in (int(str(note["pid"])) for note in notes(home)):  # a failed test leaves nothing running
        if str(home.path) in command_line(pid):
            os.kill(pid, signal.SIGKILL)

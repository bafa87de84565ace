"""The state of a pipeline whose driver is a real process."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import intent, lease
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of
from airflow_provider_exactlyonce.control.status import DriverState
from tests.unit.sensors.test_pipeline_state import report
from tests.waiting import eventually


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def test_a_driver_that_is_silent_or_only_just_started_is_told_from_others(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = secrets.token_hex(8)
    process = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={**os.environ, "EXACTLYONCE_TOKEN": token},
        start_new_session=True,
    )
    intent.write(
        home.intent,
        intent.Intent(token=token, owner="o", until="forever", series=token, restarts=0, log="driver-1.log"),
    )
    eventually(lambda: state_of(home)[0] is PipelineState.STARTING, "its process is known")
    process.kill()
    process.wait()
    assert state_of(home)[0] is PipelineState.ABSENT
    lease.acquire(home.lease, "p", token)
    report(home, DriverState.RUNNING)
    monkeypatch.setattr(lease, "STALE_SECONDS", -1.0)
    assert state_of(home)[0] is PipelineState.SILENT

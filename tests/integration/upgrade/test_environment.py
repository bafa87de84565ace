"""What an upgrade starts in processes of their own, and how their failures come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment, check_version, run_to_end


def launch(*command: str) -> Launch:
    return Launch(command=command, printable=" ".join(command), environment={"SAID": "hello"})


def test_a_program_is_run_to_its_end_and_its_output_is_its_owners(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "shadow.log"
    assert run_to_end(launch("sh", "-c", "echo $SAID; exit 3"), log) == 3
    assert log.read_text() == "hello\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_job_that_cant_be_checked_is_refused_in_the_commands_words(tmp_path: Path) -> None:
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text("import nothing_like_this\n")
    with pytest.raises(RefusedError) as raised:
        check_version(tools, str(job), "p", tmp_path / "1-ab")
    said = str(raised.value)
    assert said.startswith(f"{job}:1: importing it fails: ModuleNotFoundError")
    assert "exactlyonce help" not in said

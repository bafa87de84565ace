"""What an upgrade starts in processes of their own, and how their failures come back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.processes import TOKEN_VARIABLE
from airflow_provider_exactlyonce.control.upgrade_plan import Options, Plan, UpgradeStep
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.upgrade import environment, shadow_run
from airflow_provider_exactlyonce.upgrade.environment import UpgradeEnvironment, check_version, run_to_end
from tests.waiting import HANG_SECONDS


def launch(*command: str) -> Launch:
    return Launch(command=command, printable=" ".join(command), environment={"SAID": "hello"})


def test_a_program_is_run_to_its_end_and_its_output_is_its_owners(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "shadow.log"
    assert run_to_end(launch("sh", "-c", "echo $SAID; exit 3"), log, "shadow-1") == 3
    assert log.read_text() == "hello\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_what_a_killed_try_has_left_is_killed_before_the_next(tmp_path: Path) -> None:
    left, another = (
        subprocess.Popen(["sleep", "600"], env={**os.environ, TOKEN_VARIABLE: token}) for token in ("shadow-1", "other")
    )
    try:
        assert run_to_end(launch("true"), tmp_path / "shadow.log", "shadow-1") == 0
        assert left.wait(HANG_SECONDS) == -signal.SIGKILL
        assert another.poll() is None
    finally:
        another.kill()
        another.wait()


REPORTS = """
import sys
from pathlib import Path
from airflow_provider_exactlyonce.control import json_store
for folder in map(Path, sys.argv[1:]):
    json_store.write(folder / "report.json", {"intended": True})
"""


def test_a_shadow_run_takes_no_report_of_one_that_its_killed_starter_has_left(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create("p")
    plan = Plan(id="a1", pipeline="p", step=UpgradeStep.COMPARE, options=Options(shadow_commits=3))
    asked: list[Path] = []

    def reports_to(*which: int) -> UpgradeEnvironment:
        def submitted(_: str, arguments: Sequence[str]) -> Launch:
            asked.append(Path(arguments[-1]).parent)
            return launch(sys.executable, "-c", REPORTS, *(str(asked[number]) for number in which))

        return UpgradeEnvironment(config=dict, launch=submitted)

    with pytest.raises(ExactlyOnceError, match="ended with exit code 0"):
        shadow_run.run(home, plan, "job.py", reports_to(), dry_run=False)
    with pytest.raises(ExactlyOnceError, match="ended with exit code 0"):
        shadow_run.run(home, plan, "job.py", reports_to(0), dry_run=False)
    assert shadow_run.run(home, plan, "job.py", reports_to(-1), dry_run=False) == {"intended": True}
    assert not (home.control / "shadow").exists()


def test_a_job_that_cant_be_checked_is_refused_in_the_commands_words(tmp_path: Path) -> None:
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text("import nothing_like_this\n")
    with pytest.raises(RefusedError) as raised:
        check_version(tools, str(job), "p", tmp_path / "1-ab")
    said = str(raised.value)
    assert said.startswith(f"{job}:1: importing it fails: ModuleNotFoundError")
    assert "exactlyonce help" not in said


def test_a_job_of_another_name_is_compared_and_not_refused_before(tmp_path: Path) -> None:
    """The comparison says what differs, and what is to be done."""
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text(
        "from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline\n"
        "@pipeline(name='other', source=KafkaSource('in'), sink=KafkaSink('out', key='k'))\n"
        "def other(events):\n    return events\n"
    )
    with pytest.raises(RefusedError, match=f"^there is no savepoint .*{tmp_path}"):
        check_version(tools, str(job), "p", tmp_path / "1-ab")


def test_what_a_job_prints_is_no_part_of_the_answer(tmp_path: Path) -> None:
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text("print('hello')\nimport nothing_like_this\n")
    with pytest.raises(RefusedError, match=f"^{job}:2: importing it fails"):
        check_version(tools, str(job), "p", tmp_path / "1-ab")
    job.write_text("import os\nos.write(1, b'hello')\nimport nothing_like_this\n")
    with pytest.raises(RefusedError, match=f"^{job}:3: importing it fails"):
        check_version(tools, str(job), "p", tmp_path / "1-ab")


def test_a_check_that_takes_too_long_is_ended_and_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "_CHECK_SECONDS", 0.5)
    tools = UpgradeEnvironment(config=dict, launch=lambda file, _: launch(file))
    job = tmp_path / "job.py"
    job.write_text("import time\ntime.sleep(600)\n")
    with pytest.raises(
        ExactlyOnceError, match=f"the check of {job} was ended after 0.5 s: .*--against {tmp_path}/1-ab"
    ):
        check_version(tools, str(job), "p", tmp_path / "1-ab")

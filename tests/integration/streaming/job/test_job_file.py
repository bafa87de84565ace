"""Which bytes of a job's file a process executes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.unit.streaming.job.test_job_file import REPLACE, job, sha

LAUNCHER = "airflow_provider_exactlyonce.streaming.driver.job_main"


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False, timeout=120)


def test_a_drivers_process_executes_the_bytes_that_it_has_hashed(tmp_path: Path) -> None:
    file = job(tmp_path, before=REPLACE)
    content = file.read_bytes()
    done = run("-m", LAUNCHER, str(file))
    assert done.stdout.split()[1:] == [sha(content), str(file)], done.stderr


def test_a_file_that_python_itself_executes_and_that_was_replaced_before_its_declaration_is_refused(
    tmp_path: Path,
) -> None:
    file = job(tmp_path)
    done = run(str(file))
    assert done.stdout.split()[1:] == [sha(file.read_bytes()), str(file)], done.stderr
    done = run(str(job(tmp_path, before=REPLACE)))
    assert "was changed while it was being started; start it again" in done.stderr

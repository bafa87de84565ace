"""The lease of a process that has ended."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import lease


def test_a_process_that_ended_is_gone_at_once_and_a_zombie_too(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    held = lease.acquire(tmp_path / "l", "p", "t")
    theirs = replace(held, pid=child.pid, process_started=process_identity.process_start(child.pid) or 0)
    assert not lease.is_dead(theirs)
    child.kill()
    while process_identity.process_start(child.pid) is not None:
        time.sleep(0.01)
    assert lease.is_dead(theirs), "killed and not yet reaped"
    child.wait()
    assert lease.is_dead(theirs)

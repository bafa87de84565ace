"""A driver's processes, as the one that starts them sees them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from airflow_provider_exactlyonce import process_identity
from airflow_provider_exactlyonce.control import processes, stopping
from tests.waiting import eventually

STARTER = """
import sys
from pathlib import Path
from airflow_provider_exactlyonce.control import processes
folder = Path(sys.argv[1])
processes.start(["sleep", "60"], token="left", environment={}, directory=folder, log=folder / "driver.log")
"""


def test_who_stops_a_driver_in_the_triggerer_leaves_no_zombie_there() -> None:
    before = set(psutil.Process().children())
    stopping.detach("nobody", 0)
    [enforcer] = set(psutil.Process().children()) - before
    eventually(lambda: not psutil.pid_exists(enforcer.pid), "it is reaped")


def test_a_driver_that_is_left_behind_is_nothing_that_python_warns_of(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", STARTER, str(tmp_path)], capture_output=True, text=True, timeout=60
    )
    [left] = processes.members("left")
    processes.FoundDriver("left", left, 0).signal(signal.SIGKILL)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_that_changes_its_program_is_found_all_the_time(tmp_path: Path) -> None:
    chain = tmp_path / "chain.sh"
    chain.write_text('[ $1 -eq 0 ] && exec sleep 60; exec /bin/sh "$0" $(($1 - 1))')
    driver = processes.start(
        ["/bin/sh", str(chain), "2000"], token="changing", environment={}, directory=tmp_path, log=tmp_path / "log"
    )
    looks = [processes.members("changing")]
    while psutil.Process(driver.process.pid).name() != "sleep":
        looks.append(processes.members("changing"))
    driver.signal(signal.SIGKILL)
    assert [look for look in looks if look != [driver.process.pid]] == []


def test_a_process_that_never_tells_its_environment_is_not_asked_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_identity, "may_have_environment", lambda _: True)
    monkeypatch.setattr(processes, "_EXEC_LOOKS", 3)
    with subprocess.Popen(["sleep", "60"], env={}) as silent:
        assert processes.members("silent") == []
        silent.kill()

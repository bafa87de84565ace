"""An upgrade on which another process works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def test_nobody_else_works_on_a_plan_until_its_process_has_ended(home: Home) -> None:
    hold = (
        "import sys, time\n"
        "from airflow_provider_exactlyonce.control import upgrade_plan\n"
        "from airflow_provider_exactlyonce.control.home import Home\n"
        "with upgrade_plan.working_on(Home(sys.argv[1]), 'p'):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", hold, str(home.path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    with pytest.raises(AlreadyRunningError, match="another process works on"), upgrade_plan.working_on(home, "p"):
        pass
    with upgrade_plan.working_on(home, "p", dry_run=True):
        pass
    process.kill()
    process.wait()
    process.stdout.close()
    with upgrade_plan.working_on(home, "p"):
        pass

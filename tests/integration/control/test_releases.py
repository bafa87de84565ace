"""What supervisors start while a version is changed, with real processes."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import launching, requests, upgrade_plan
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.intent import Intent
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.control.supervision import Supervision
from airflow_provider_exactlyonce.control.supervisor import Supervisor
from airflow_provider_exactlyonce.control.upgrade_plan import UpgradeStep
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.unit.control.test_releases import plan_at

DRIVER = Path(__file__).with_name("contract_driver.py")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.create("p")
    return home


def test_a_supervisor_starts_nothing_while_an_upgrade_is_under_way_and_goes_on_after_it(home: Home) -> None:
    upgrade_plan.write(home, plan_at(UpgradeStep.START), before=upgrade_plan.read(home))
    launch = Launch(command=["true"], printable="true", environment={})
    supervisor = Supervisor(
        home, launch, Supervision(owner="o", until="forever", strategy=RestartStrategy.none(), poll_seconds=0.05)
    )
    errors: list[BaseException] = []

    def work() -> None:
        try:
            list(supervisor.run())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    time.sleep(0.5)
    assert not home.intent.exists()
    assert list(home.logs.glob("*")) == []
    upgrade_plan.write(home, plan_at(UpgradeStep.DONE), before=upgrade_plan.read(home))
    thread.join()
    assert not thread.is_alive()
    [error] = errors
    assert "without an account" in str(error) or "never reported" in str(error), "it has started what it was given"


def test_a_supervisor_takes_over_the_driver_that_an_upgrade_has_started(home: Home) -> None:
    upgrade_plan.write(home, plan_at(UpgradeStep.WATCH), before=upgrade_plan.read(home))
    command = [
        sys.executable,
        str(DRIVER),
        "--home",
        str(home.path),
        "--until",
        "forever",
        "take-lease commit until-stop",
    ]
    intent = Intent(
        token="mine", owner="upgrade a1", until="forever", series="mine", restarts=0, log=str(launching.next_log(home))
    )
    driver = launching.start(home, Launch(command=command, printable="driver", environment={}), intent, judged=None)
    supervisor = Supervisor(
        home,
        Launch(command=["false"], printable="false", environment={}),
        Supervision(owner="o", until="forever", strategy=RestartStrategy.none(), poll_seconds=0.05),
    )
    seen = set()
    for status in supervisor.run():
        seen.add(status.token)
        requests.request_stop(home, "mine", reason="test")
    assert seen == {"mine"}
    assert driver.process.wait() == 0
    assert (home.control / "notes.jsonl").read_text().count('"started"') == 1

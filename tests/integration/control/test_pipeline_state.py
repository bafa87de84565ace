"""What is said of a driver between its real death and its restart."""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import restarts
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.policies.restart_strategy import RestartStrategy
from tests.integration.control.supervising import supervisor
from tests.unit.control.test_pipeline_state import said
from tests.waiting import eventually


def test_between_a_real_death_and_the_restart_the_supervisors_next_start_is_told(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    delayed = RestartStrategy.fixed_delay(3, timedelta(minutes=10))
    supervised = supervisor(home, "take-lease commit die", strategy=delayed)

    def run() -> None:
        with pytest.raises(StopRequestedError):
            list(supervised.run())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        eventually(lambda: restarts.read(home.restarts), "the supervisor notes the death")
        assert said(home).startswith("its supervisor starts the next one at ")
    finally:
        supervised.stop("the test is over")
        thread.join()

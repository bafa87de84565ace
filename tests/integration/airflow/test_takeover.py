"""A worker that is lost, and a task that is killed: what happens to the driver, with real Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control import processes, status
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.operators.streaming import StreamingPipelineOperator
from tests.integration.airflow.conftest import names_of
from tests.integration.airflow.job import CONF, JOB
from tests.integration.streaming.harness import World, check_counts, open_transactions
from tests.task_state import TaskInstance
from tests.waiting import eventually

#: A worker's process as far as the driver is concerned: it runs ``execute`` and holds the driver as its child.
WORKER = """
import sys
from tests.integration.airflow.test_takeover import execute
execute(sys.argv[1])
"""


def operator(home: str) -> StreamingPipelineOperator:
    return StreamingPipelineOperator(
        task_id="stream", application=str(JOB), checkpoint=home, until="forever", conf=CONF, stop_timeout=30
    )


def execute(home: str) -> None:
    operator(home).execute({"ti": TaskInstance(state="failed")})  # type: ignore[typeddict-item]


@pytest.mark.slow
def test_a_lost_worker_leaves_a_driver_that_the_next_try_takes_over_and_stops_cleanly_when_it_is_killed(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections = {
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(world.config)}),
        "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }
    for name, value in {**connections, **names_of(world, tmp_path / "result")}.items():
        monkeypatch.setenv(name, value)
    home = Home(world.home)
    world.send(400)

    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(world.home)],
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    eventually(lambda: committed(home) >= 1, "the first commit")
    worker.kill()
    worker.wait()
    before = status.read(home.status)
    assert before is not None
    assert len(processes.members(before.token)) >= 2, "spark-submit's JVM and the Python driver carry the start token"

    task = operator(str(world.home))

    def work_then_kill() -> None:
        seen = committed(home)
        world.send(400)
        eventually(lambda: committed(home) > seen, "a commit under the second try")
        os.kill(os.getpid(), signal.SIGUSR1)

    previous = signal.signal(signal.SIGUSR1, lambda *_: task.on_kill())
    meanwhile = threading.Thread(target=work_then_kill)
    meanwhile.start()
    try:
        with pytest.raises(StopRequestedError, match=r"stopped at commit \d+: the task was killed"):
            task.execute({"ti": TaskInstance(state="failed")})  # type: ignore[typeddict-item]
    finally:
        meanwhile.join()
        signal.signal(signal.SIGUSR1, previous)

    after = status.read(home.status)
    assert after is not None
    assert (after.token, after.state) == (before.token, DriverState.STOPPED), "it was the same driver to its end"
    assert processes.members(before.token) == []
    check_counts(world, complete=False)
    assert [run.run for run in world.ledger()[1]] == [1]
    for topic in (world.sink, ledger_topic(world.pipeline)):
        assert open_transactions(world.config, topic) == {}


def committed(home: Home) -> int:
    driver_status = status.read(home.status)
    return driver_status.commit if driver_status else 0

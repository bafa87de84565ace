"""The main examples in a real Airflow, as somebody who tries them has it: scheduler, triggerer, executor, pages."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.pipeline_state import PipelineState, state_of
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from demo import purchases, topics
from tests import commands
from tests.integration.airflow.conftest import ROOT, Airflow
from tests.integration.airflow.standalone import eventually, standalone

TOTALS, MAINTENANCE = "shop_totals", "shop_maintenance"


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """Give a cluster on which the examples' topics have their own names, with the purchases in it."""
    with EmbeddedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        topics.create(config, ["shop.events", "shop.totals"], 4)
        topics.feed(config, "shop.events", purchases.read())
        yield config


@contextmanager
def stream_for_ever(home: Path, kafka: Mapping[str, str], log: Path) -> Iterator[None]:
    """Run the driver of the examples' pipeline, as the task of another DAG would."""
    command = [*commands.PROGRAM, "run", "--master", "local[2]"]
    job = [str(ROOT / "dags/jobs/shop_totals.py"), "--home", str(home), "--until", "forever"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, "--conf", "spark.sql.shuffle.partitions=4", *job],
            env={**os.environ, "PYTHONPATH": str(ROOT), "EXACTLYONCE_KAFKA": json.dumps(dict(kafka))},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        eventually(lambda: state_of(Home(home))[0] is PipelineState.RUNNING, "the driver runs", log)
        yield
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def result(airflow: Airflow, dag: str, task: str) -> Any:
    [(value,)] = airflow.query(
        "SELECT value FROM xcom WHERE dag_id = ? AND task_id = ? AND key = 'return_value'", dag, task
    )
    return json.loads(value)


def extra_links(airflow: Airflow, address: str, dag: str, run: str, task: str) -> dict[str, str | None]:
    """Ask Airflow's API for what its page of a task shows."""
    with urllib.request.urlopen(f"{address}/auth/token", timeout=30) as answer:
        token = json.load(answer)["access_token"]
    place = f"{address}/api/v2/dags/{dag}/dagRuns/{quote(run)}/taskInstances/{task}/links"
    request = urllib.request.Request(place, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        links = json.load(answer)["extra_links"]
    assert isinstance(links, dict)
    return links


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_stream_and_its_maintenance_window_go_through_a_real_airflow(
    airflow: Airflow, kafka: Mapping[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "home"
    environment = {
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "True",
        "AIRFLOW_CONN_KAFKA_DEFAULT": json.dumps({"conn_type": "kafka", "extra": dict(kafka)}),
    }
    with standalone(airflow, environment) as output:

        def run(dag: str) -> None:
            eventually(
                lambda: airflow.query("SELECT 1 FROM serialized_dag WHERE dag_id = ?", dag),
                "the DAG is known",
                output,
            )
            airflow.run(airflow.command("dags", "unpause", dag), environment)

        def ended(dag: str, what: str) -> str:
            """Wait until a run has succeeded; return which: near its time, the schedule makes one beside ours."""
            over = "SELECT run_id, state FROM dag_run WHERE dag_id = ? AND state IN ('success', 'failed')"
            eventually(lambda: airflow.query(over, dag), what, output)
            [(run, state)] = airflow.query(over, dag)
            assert state == "success", airflow.task_logs()
            return str(run)

        run(TOTALS)
        airflow.run(airflow.command("dags", "trigger", TOTALS, "--conf", json.dumps({"home": str(home)})), environment)
        first = ended(TOTALS, "the stream, its gate and the comparison end")
        streamed = result(airflow, TOTALS, "stream")
        assert (streamed["pipeline"], streamed["restarts"]) == ("shop-totals", 0)
        pushed = "SELECT value FROM xcom WHERE dag_id = ? AND key LIKE '_link_%' ORDER BY key"
        eventually(lambda: len(airflow.query(pushed, TOTALS)) == 3, "Airflow pushes links after the state", output)
        (page,), *_ = airflow.query(pushed, TOTALS)
        address = json.loads(page).partition("/dags/")[0]
        links = extra_links(airflow, address, TOTALS, first, "stream")
        assert set(links) == {"Pipeline status", "Spark UI", "Spark application"}
        assert all(links.values())
        with urllib.request.urlopen(str(links["Pipeline status"]), timeout=30) as answer:
            assert answer.status == 200

        with stream_for_ever(home, kafka, tmp_path / "driver.log"):
            run(MAINTENANCE)
            airflow.run(airflow.command("dags", "trigger", MAINTENANCE), environment)
            window = ended(MAINTENANCE, "the window is over")
        stopped = result(airflow, MAINTENANCE, "stop")
        assert stopped["state"] == "stopped"
        assert extra_links(airflow, address, MAINTENANCE, window, "stop")["Savepoint"]
    assert airflow.processes() == []

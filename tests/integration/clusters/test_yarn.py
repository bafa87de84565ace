"""The operator with drivers on a real YARN, whose containers have nothing but Java, Spark's jars and Python."""

from __future__ import annotations

import contextlib
import json
import threading
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyspark
import pytest

from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from tests.conftest import MakeTopic
from tests.hadoop_cluster import HadoopCluster
from tests.integration.operators.test_streaming import TaskInstance
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CLUSTER_CONF = {
    **CONF,
    "spark.driver.memory": "512m",
    "spark.driver.memoryOverhead": "256m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.memoryOverhead": "256m",
    "spark.executor.instances": "1",
    "spark.executor.extraJavaOptions": CONF["spark.driver.extraJavaOptions"],
    # Every host of a cluster has Spark, or else each application brings 400 MB.
    "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent / 'jars'}/*",
}


@pytest.fixture
def world(kafka_config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> World:
    source, sink = make_topic(2), make_topic(2)
    return World(config=kafka_config, pipeline=f"on-yarn-{source}", source=source, sink=sink, home=tmp_path / "home")


@pytest.fixture(params=["cluster", "client"])
def deploy_mode(
    request: pytest.FixtureRequest, hadoop: HadoopCluster, world: World, monkeypatch: pytest.MonkeyPatch
) -> str:
    """Make the connections of one deploy mode."""
    extra = {"deploy-mode": request.param, "yarn_resourcemanager_webapp_address": hadoop.resource_manager}
    spark = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    kafka = {"conn_type": "kafka", "extra": dict(world.config)}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.configuration))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    return str(request.param)


def stream(world: World, **options: Any) -> StreamingPipelineOperator:
    defaults: dict[str, Any] = {
        "application": str(JOBS / world.job),
        "checkpoint": str(world.home),
        "conf": CLUSTER_CONF,
        "env_vars": {"TEST_PIPELINE": world.pipeline, "TEST_SOURCE": world.source, "TEST_SINK": world.sink},
        "restart_strategy": RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
    }
    return StreamingPipelineOperator(task_id="stream", **{**defaults, **options})


def execute(task: StreamingPipelineOperator, ti: TaskInstance) -> dict[str, Any]:
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(clear_number=0)}
    return task.execute(context)


def test_a_pipeline_runs_through_the_operator(
    deploy_mode: str, hadoop: HadoopCluster, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(1000)
    before = len(hadoop.applications())
    with caplog.at_level("INFO"):
        result = execute(stream(world), TaskInstance())
    assert (result["commit"], result["restarts"]) == (3, 0)
    check_counts(world)
    [application] = hadoop.applications()[before:]
    assert application["finalStatus"] == "SUCCEEDED", hadoop.output(application["id"])
    page = f"{hadoop.resource_manager}/cluster/app/{application['id']}"
    assert (page in caplog.text) == (deploy_mode == "cluster")


class Killing:
    """Kills the first container of the first application in the middle of its work, with all that it has started."""

    def __init__(self, hadoop: HadoopCluster, world: World) -> None:
        self._hadoop, self._world = hadoop, world
        self._before = len(hadoop.applications())
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.killed: list[str] = []

    def _run(self) -> None:
        eventually(lambda: self._world.commits() >= 1, "its first commit", poll_seconds=0.2)
        self._world.send(1000)
        application = str(self._hadoop.applications()[self._before]["id"])
        for process in self._hadoop.containers(application):
            with contextlib.suppress(psutil.Error):
                if Path(process.cwd()).name.endswith("_000001"):  # the master's
                    process.kill()
        self.killed.append(application)


@pytest.mark.parametrize("deploy_mode", ["cluster"], indirect=True)
@pytest.mark.usefixtures("deploy_mode")
def test_a_master_that_is_killed_is_replaced_by_the_next_application_which_goes_on_exactly(
    hadoop: HadoopCluster, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(2000)
    before = len(hadoop.applications())
    killing = Killing(hadoop, world)
    killing.thread.start()
    with caplog.at_level("INFO"):
        result = execute(stream(world), TaskInstance())
    killing.thread.join()
    assert result["restarts"] == 1
    check_counts(world)
    first, second = hadoop.applications()[before:]
    assert killing.killed == [first["id"]]
    assert (first["finalStatus"], second["finalStatus"]) == ("FAILED", "SUCCEEDED")
    assert f"{first['id']} is FAILED" in caplog.text, "what YARN says of it reaches the task"
    assert f"{hadoop.resource_manager}/cluster/app/{first['id']}" in caplog.text

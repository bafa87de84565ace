"""The operator against a standalone cluster whose hosts have nothing but Spark and Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.hooks.packages import python_name
from tests.integration.airflow.conftest import Airflow, names_of
from tests.integration.airflow.test_dag import RUN
from tests.integration.streaming.cluster import Cluster, spark_cluster
from tests.integration.streaming.harness import World, check_counts

CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster whose only Python is one without any package, whatever this test runs with."""
    folder = tmp_path_factory.mktemp("bare")
    venv.create(folder / "python", with_pip=False)
    python = folder / "python" / "bin" / python_name()
    packages = subprocess.check_output([python, "-c", "import importlib.metadata as m; print(*m.distributions())"])
    assert packages.split() == []
    system = {name: os.environ[name] for name in ("HOME", "JAVA_HOME", "LANG") if name in os.environ}
    path = os.pathsep.join([str(python.parent), *os.defpath.split(os.pathsep)])
    with spark_cluster(folder, {**system, "PATH": path}) as cluster:
        yield cluster


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_executors_get_the_package_and_its_wheels_from_the_operator(
    airflow: Airflow, world: World, bare_cluster: Cluster, tmp_path: Path
) -> None:
    world.send(1000)
    names = names_of(
        world,
        tmp_path / "result.json",
        AIRFLOW_CONN_SPARK_DEFAULT=json.dumps({"conn_type": "spark", "host": bare_cluster.url}),
        TEST_CONF=json.dumps(CONF),
    )
    airflow.run(
        [sys.executable, "-c", RUN, airflow.environment["AIRFLOW__CORE__DAGS_FOLDER"], "stream_then_gate", "success"],
        names,
    )
    check_counts(world)
    commits, runs = world.ledger()
    assert len(commits) == 3
    assert len(runs) == 1, "no driver failed"

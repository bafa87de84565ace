"""Second invocations on a real Spark standalone cluster with two workers: each ends an attempt, never the query."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.jars.cache import cache_directory
from tests import object_stores
from tests.integration.streaming.cluster import CANNOT_BE_APART, Cluster, spark_cluster
from tests.integration.streaming.harness import JOBS, Driver, World, check_counts, open_transactions
from tests.ports import free_port
from tests.waiting import HANG_SECONDS, eventually

#: An executor is one core; four write tasks on two of them leave some that have not begun when the first has written.
CONF = {
    "spark.executor.cores": "1",
    "spark.executor.memory": "512m",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.task.reaper.enabled": "true",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster"), os.environ) as cluster:
        yield cluster


def kill_an_executor(cluster: Cluster) -> None:
    victim = cluster.executors()[0]
    os.kill(victim, signal.SIGKILL)
    eventually(lambda: victim not in cluster.executors(), "the worker has noticed")


def run_with_an_accident(
    world: World,
    cluster: Cluster,
    folder: Path,
    accident: Callable[[], None],
    conf: dict[str, str] | None = None,
    **how: Any,
) -> Driver:
    """Let an accident happen when the second batch has written its first body; the query must survive it.

    :param how: the driver is started besides
    """
    world.send(700)
    hold = folder / "hold"
    driver = world.start(
        master=cluster.url, conf={**CONF, **(conf or {})}, failpoints=f"during-send:run=1:batch=1:hold={hold}", **how
    )
    eventually(lambda: hold.exists() or driver.process.poll() is not None, "the second batch writes")
    assert driver.process.poll() is None, driver.output()[-3000:]
    accident()
    hold.unlink()
    assert driver.wait() == 0, driver.output()[-3000:]
    assert "batch 1, attempt 1 of 3 failed: " in driver.output()
    check_counts(world)
    commits, runs = world.ledger()
    assert [commit.batch for commit in commits] == list(range(len(commits)))
    assert len(runs) == 1, "the driver was started again"
    assert commits[1].epoch > commits[0].epoch + 1, "the failed attempt had an epoch of its own"
    assert open_transactions(world.config, world.sink) == {}
    return driver


def check_reason(driver: Driver, of_spark: str) -> None:
    """Check that the lost task was told of by the sequencer or, in these words, by Spark: whoever saw it first."""
    assert re.search(f"ended before the task was done|{of_spark}", driver.output())


@pytest.mark.slow
def test_an_executor_that_is_killed_in_mid_batch_costs_one_attempt_of_the_batch(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    port = free_port()
    endpoint = {
        "spark.exactlyonce.sequencer.host": "localhost",
        "spark.exactlyonce.sequencer.bindAddress": "127.0.0.1",
        "spark.exactlyonce.sequencer.port": str(port),
    }

    def accident() -> None:
        with socket.create_connection(("127.0.0.1", port), HANG_SECONDS):
            """The sequencer listens where the settings say."""
        kill_an_executor(cluster)

    driver = run_with_an_accident(world, cluster, tmp_path, accident, endpoint)
    check_reason(driver, "ExecutorLostFailure")


@pytest.mark.slow
def test_a_python_worker_that_is_killed_costs_one_attempt_of_the_batch(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    def accident() -> None:
        victims = cluster.python_workers()
        assert victims
        for victim in victims:
            os.kill(victim, signal.SIGKILL)

    driver = run_with_an_accident(world, cluster, tmp_path, accident)
    check_reason(driver, "Python worker exited unexpectedly")


@pytest.fixture
def cluster_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Give a cluster whose workers share no folder with each other, nor with the driver."""
    if CANNOT_BE_APART:
        pytest.skip(f"no mounts of its own can be given to a worker: {CANNOT_BE_APART}")
    not_shared = [tmp_path_factory.getbasetemp(), cache_directory()]
    with spark_cluster(tmp_path_factory.mktemp("cluster"), os.environ, not_shared) as cluster:
        yield cluster


@pytest.mark.slow
def test_executors_that_share_no_folder_and_have_no_key_to_the_drivers_bucket_keep_its_state_there(
    world: World, cluster_apart: Cluster, tmp_path: Path
) -> None:
    """An executor is killed, and a second driver has executors that know nothing: state can be read from S3 only."""
    (tmp_path / "events").mkdir()
    logged = {"enabled": "true", "compress": "false", "dir": (tmp_path / "events").as_uri()}
    conf = {**CONF, **{f"spark.eventLog.{name}": value for name, value in logged.items()}}

    def accident() -> None:
        assert not cluster_apart.shuffle_files(), "what a worker writes can be seen here"
        kill_an_executor(cluster_apart)

    with object_stores.moto() as address:
        how: dict[str, Any] = {
            "home": f"s3://bucket/{world.pipeline}",
            "environment": object_stores.environment(address),
        }
        first = run_with_an_accident(world, cluster_apart, tmp_path, accident, conf, **how)
        world.send(300)
        second = world.start(master=cluster_apart.url, conf=conf, **how)
        assert second.wait() == 0, second.output()[-3000:]
        check_counts(world)
    assert object_stores.SECRET not in first.output() + second.output()
    events = [file.read_text() for file in (tmp_path / "events").rglob("events*")]
    assert events
    assert not [text for text in events if object_stores.SECRET in text]


@pytest.mark.slow
def test_a_fetch_failure_between_map_and_write_stage_costs_one_attempt_of_the_batch(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    """The map output is lost when the first write tasks have begun, and the next ones have not fetched it yet."""

    def accident() -> None:
        lost = cluster.shuffle_files()
        assert lost
        for file in lost:
            file.unlink()

    driver = run_with_an_accident(world, cluster, tmp_path, accident)
    # The task's Python process may see its input end before Spark has told the driver why.
    assert re.search("FetchFailed|ArrowInvalid: Tried reading schema message", driver.output())


@pytest.mark.slow
def test_both_executors_lost_at_once_cost_one_attempt_of_the_batch(
    world: World, cluster: Cluster, tmp_path: Path
) -> None:
    def accident() -> None:
        victims = cluster.executors()
        assert len(victims) == 2
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        eventually(lambda: not set(victims) & set(cluster.executors()), "the workers have noticed")

    run_with_an_accident(world, cluster, tmp_path, accident)


@pytest.mark.slow
def test_a_sequencer_that_executors_can_not_reach_fails_the_driver_soon_and_by_name(
    world: World, cluster: Cluster
) -> None:
    world.send(100)
    conf = {
        **CONF,
        "spark.exactlyonce.sequencer.host": "127.0.0.2",
        "spark.exactlyonce.sequencer.bindAddress": "127.0.0.1",
    }
    driver = world.start(master=cluster.url, conf=conf)
    assert driver.wait() == 1
    for part in ("the sequencer on the driver at 127.0.0.2:", "can't be reached", "spark.exactlyonce.sequencer.host"):
        assert part in driver.output()
    assert world.commits() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("spark.task.maxFailures", "4"),
        ("spark.stage.maxConsecutiveAttempts", "4"),
        ("spark.speculation", "true"),
    ],
)
def test_a_cluster_that_would_run_a_task_twice_is_refused(
    world: World, cluster: Cluster, setting: str, value: str
) -> None:
    done = subprocess.run(
        [
            Path(sys.executable).with_name("spark-submit"),
            *("--master", cluster.url, "--conf", f"{setting}={value}", JOBS / world.job, "--home", world.home),
        ],
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "EXACTLYONCE_KAFKA": json.dumps(dict(world.config)),
            **world.names,
        },
        capture_output=True,
        text=True,
    )
    assert done.returncode == RefusedError.exit_code
    assert f"SettingRefusedError: {setting} is '{value}'" in done.stdout
    assert world.ledger() == ([], [])

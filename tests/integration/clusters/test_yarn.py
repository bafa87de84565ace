"""The operator with drivers on a real YARN, whose containers have nothing but Java, Spark's jars and Python."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pyspark
import pytest
from airflow.sdk.exceptions import TaskDeferred

from airflow_provider_exactlyonce.control.clusters import ClusterState
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import FencedError, MissingRequirementError, WorkerShutdownError
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from airflow_provider_exactlyonce.hooks import spark_submit
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from airflow_provider_exactlyonce.storage.opening import store_of
from tests import object_stores
from tests.conftest import MakeTopic
from tests.hadoop_cluster import HadoopCluster, ResourceManagers, resource_managers
from tests.integration.control.alarms import alarm
from tests.integration.operators.test_streaming_deferred import first_event, trigger_of
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts
from tests.task_state import TaskInstance
from tests.waiting import HANG_SECONDS, eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

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
def managers(tmp_path: Path) -> Iterator[ResourceManagers]:
    try:
        with resource_managers(tmp_path) as running:
            yield running
    except MissingRequirementError as error:
        pytest.skip(f"there is no YARN: {error}")


@pytest.fixture
def world(kafka_config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> Iterator[World]:
    source, sink = make_topic(2), make_topic(2)
    world = World(config=kafka_config, pipeline=f"on-yarn-{source}", source=source, sink=sink, home=tmp_path / "home")
    yield world
    world.end()


@pytest.fixture
def deploy_mode(
    request: pytest.FixtureRequest,
    hadoop: HadoopCluster,
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> str:
    """Make the connections of one deploy mode."""
    mode = str(getattr(request, "param", "cluster"))
    extra = {"deploy-mode": mode, "yarn_resourcemanager_webapp_address": hadoop.resource_manager}
    spark = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    kafka = {"conn_type": "kafka", "extra": dict(world.config)}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(kafka))
    monkeypatch.setenv("HADOOP_CONF_DIR", str(hadoop.configuration))
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return mode


def stream(world: World, **options: Any) -> StreamingPipelineOperator:
    defaults: dict[str, Any] = {
        "application": str(JOBS / world.job),
        "checkpoint": str(world.home),
        "conf": CLUSTER_CONF,
        "env_vars": world.names,
        "restart_strategy": RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
    }
    return StreamingPipelineOperator(task_id="stream", **{**defaults, **options})


def execute(task: StreamingPipelineOperator, ti: TaskInstance) -> dict[str, Any]:
    context: Any = {"ti": ti, "dag_run": SimpleNamespace(clear_number=0)}
    return task.execute(context)


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"], indirect=True)
def test_a_pipeline_runs_through_the_operator(
    deploy_mode: str, hadoop: HadoopCluster, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.send(1000)
    before = len(hadoop.applications())
    with caplog.at_level("INFO"):
        result = execute(stream(world), ti := TaskInstance())
    assert (result["commit"], result["restarts"]) == (3, 0)
    check_counts(world)
    [application] = hadoop.applications()[before:]
    assert application["finalStatus"] == "SUCCEEDED", hadoop.output(application["id"])
    page = f"{hadoop.resource_manager}/cluster/app/{application['id']}"
    assert (page in caplog.text) == (deploy_mode == "cluster")
    assert (ti.pushed.get("_link_SparkApplicationLink") == page) == (deploy_mode == "cluster")


def is_of_master(process: psutil.Process) -> bool:
    return Path(process.cwd()).name.endswith("_000001")


def kill(processes: list[psutil.Process]) -> None:
    """Kill processes of which some may end by themselves when others are gone."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    eventually(lambda: not any(map(is_running, processes)), "they are gone")


def is_running(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    return False


def freeze(accident: Accident, processes: list[psutil.Process]) -> list[psutil.Process]:
    """Stop a driver and its executors, but not while they hold the lock of the lease: a successor here wants it."""
    assert processes
    lease = Home(accident.world.home).lease
    with store_of(lease).holding(lease, seconds=HANG_SECONDS):
        for process in processes:
            process.suspend()
    return processes


class Accident:
    """A run of the pipeline through the operator to which something happens in its second batch.

    :ivar hold: keeps the first driver in the middle of that batch
    :ivar checkpoint: the home
    """

    def __init__(self, hadoop: HadoopCluster, world: World, hold: Path) -> None:
        self.world, self.hold, self.checkpoint = world, hold, str(world.home)
        self._hadoop = hadoop
        self._before = {app["id"] for app in hadoop.applications()}

    def happen(self, accident: Callable[[str], None], **options: Any) -> int:
        """Return how often the driver was restarted, once the output is known to be exact.

        :param accident: is given the first application, when some of a batch's records are sent
        :param options: of the operator
        """
        self.world.send(2000)

        def in_the_second_batch() -> None:
            eventually(self.hold.exists, "the second batch writes", poll_seconds=0.2)
            try:
                [application] = self._applications()
                accident(str(application["id"]))
            finally:
                self.hold.unlink(missing_ok=True)

        with ThreadPoolExecutor(1) as pool:
            happening = pool.submit(in_the_second_batch)
            result = execute(self.task(**options), TaskInstance())
            happening.result()
        return self.judge(result)

    def task(self, **options: Any) -> StreamingPipelineOperator:
        step = f"during-send:run=1:batch=1:hold={self.hold}"
        return stream(
            self.world, checkpoint=self.checkpoint, env_vars={**self.world.names, FAILPOINTS: step}, **options
        )

    def judge(self, result: dict[str, Any]) -> int:
        """Return how often the driver was restarted, once the output is known to be exact."""
        check_counts(self.world)
        for ended, begun in pairwise(self._applications()):
            assert ended["finishedTime"] <= begun["startedTime"], "none was started while YARN called another running"
        home = self.checkpoint.replace("store@", "")  # the ledger has no connection's name
        assert [run.home_path for run in self.world.ledger()[1]] == [home] * (result["restarts"] + 1)
        return int(result["restarts"])

    def containers(self, application: str) -> int:
        """Return how many containers run for an application."""
        [count] = [app["runningContainers"] for app in self._applications() if app["id"] == application]
        return int(count)

    def outcomes(self) -> list[str]:
        """Return how YARN says that the applications have ended, or how they stand."""
        return [str(app["finalStatus"]) for app in self._applications()]

    def _applications(self) -> list[dict[str, Any]]:
        return [app for app in self._hadoop.applications(applicationTypes="SPARK") if app["id"] not in self._before]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Give a bucket by its connection; nothing but that has the key to it."""
    with object_stores.moto() as address:
        monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(object_stores.connection(address)))
        yield "s3://store@bucket"


@pytest.fixture
def accident(deploy_mode: str, hadoop: HadoopCluster, world: World, tmp_path: Path) -> Accident:
    return Accident(hadoop, world, tmp_path / "hold")


def test_a_try_leaves_its_driver_to_the_next_one_which_waits_in_the_triggerer(accident: Accident) -> None:
    accident.world.send(2000)
    first, second = accident.task(retries=1), accident.task(deferrable=True)
    with alarm(accident.hold.exists, first.on_kill), pytest.raises(WorkerShutdownError, match="next try takes it over"):
        execute(first, TaskInstance())
    with pytest.raises(TaskDeferred) as deferral:
        execute(second, TaskInstance())
    accident.hold.unlink()
    event = asyncio.run(first_event(trigger_of(deferral.value)))
    context: Any = {"ti": TaskInstance()}
    assert accident.judge(second.resume_from_trigger(context, event)) == 0
    assert accident.outcomes() == ["SUCCEEDED"]


@pytest.mark.parametrize("deploy_mode", ["cluster", "client"], indirect=True)
def test_an_executor_that_is_killed_in_mid_batch_costs_one_attempt_of_the_batch(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    def kill_executor(application: str) -> None:
        executor = [process for process in hadoop.containers(application) if not is_of_master(process)]
        assert executor
        kill(executor)

    assert accident.happen(kill_executor) == 0
    assert accident.outcomes() == ["SUCCEEDED"]
    commits, _ = accident.world.ledger()
    assert commits[1].epoch > commits[0].epoch + 1, "the failed attempt had an epoch of its own"


def test_executors_that_are_preempted_in_mid_batch_cost_no_more(accident: Accident, hadoop: HadoopCluster) -> None:
    conf = {
        **CLUSTER_CONF,
        "spark.executor.instances": "4",
    }  # with the driver 3.8 GB of 4, to half of which it has a right

    def preempt(application: str) -> None:
        eventually(lambda: accident.containers(application) == 5, "all executors are there", poll_seconds=0.2)
        with hadoop.occupying("urgent", 2048):
            assert 0 < accident.containers(application) < 5
            accident.hold.unlink()
            eventually(lambda: accident.world.commits() >= 2, "the batch commits", poll_seconds=0.2)

    assert accident.happen(preempt, conf=conf) == 0
    assert accident.outcomes() == ["SUCCEEDED"]


def test_a_driver_that_is_preempted_is_replaced_once_there_is_room_again(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    def preempt(application: str) -> None:
        with hadoop.occupying("urgent", 2048), hadoop.occupying("default", 2048):
            eventually(lambda: not hadoop.containers(application), "its driver is gone, too", poll_seconds=0.2)

    # It runs in a queue without a right to anything.
    assert accident.happen(preempt, conf={**CLUSTER_CONF, "spark.yarn.queue": "spare"}) == 1
    assert accident.outcomes() == ["FAILED", "SUCCEEDED"]


@pytest.mark.parametrize("place", ["mounted", "hdfs", "s3"])
def test_a_master_that_is_killed_is_replaced_by_the_next_application_which_goes_on_exactly(
    accident: Accident, hadoop: HadoopCluster, bucket: str, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    killed: list[str] = []
    homes = {"mounted": str(accident.world.home), "hdfs": f"{hadoop.hdfs}/homes/{accident.world.pipeline}"}
    accident.checkpoint = homes.get(place, f"{bucket}/homes/{accident.world.pipeline}")

    def kill_master(application: str) -> None:
        killed.append(application)
        kill(list(filter(is_of_master, hadoop.containers(application))))

    with caplog.at_level("INFO"):
        assert accident.happen(kill_master) == 1
    assert accident.outcomes() == ["FAILED", "SUCCEEDED"]
    assert accident.world.home.exists() == (place == "mounted")
    assert f"{killed[0]} is FAILED" in caplog.text, "what YARN says of it reaches the task"
    assert f"{hadoop.resource_manager}/cluster/app/{killed[0]}" in caplog.text


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give the node manager a host name of its own")
def test_a_driver_whose_host_is_gone_is_replaced_when_yarn_has_noticed(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    def lose_host(application: str) -> None:
        hadoop.node.kill()
        kill(hadoop.containers(application))
        hadoop.await_lost_node()
        hadoop.node.start()

    assert accident.happen(lose_host) == 1
    assert accident.outcomes() == ["FAILED", "SUCCEEDED"]


def test_a_driver_that_was_frozen_while_its_node_was_given_up_wakes_up_and_changes_nothing(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    frozen: list[psutil.Process] = []

    def lose_node(application: str) -> None:
        frozen.extend(freeze(accident, hadoop.containers(application)))
        hadoop.node.kill()
        hadoop.await_lost_node()
        hadoop.node.start()

    assert accident.happen(lose_node) == 1
    assert all(map(is_running, frozen))
    for process in frozen:
        process.resume()
    eventually(lambda: not any(map(is_running, frozen)), "the first driver has ended", poll_seconds=0.2)
    check_counts(accident.world)
    assert accident.outcomes() == ["FAILED", "SUCCEEDED"]


def test_a_driver_that_yarn_calls_running_while_another_one_has_its_place_wakes_up_fenced(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    def take_its_place(application: str) -> None:
        frozen = freeze(accident, hadoop.containers(application))
        second = accident.world.start()
        assert second.wait() == 0, second.output()
        assert all(map(is_running, frozen))
        assert accident.outcomes() == ["UNDEFINED"], "YARN has noticed nothing"
        for process in frozen:
            process.resume()

    with pytest.raises(FencedError):
        accident.happen(take_its_place)
    check_counts(accident.world)
    assert [run.home_path for run in accident.world.ledger()[1]] == [accident.checkpoint] * 2
    eventually(lambda: accident.outcomes() == ["FAILED"], "YARN knows of its end", poll_seconds=0.2)


def test_a_driver_that_outlives_its_node_manager_is_ended_and_replaced_once(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    first: list[psutil.Process] = []

    def lose_node_manager(application: str) -> None:
        first.extend(hadoop.containers(application))
        hadoop.node.kill()
        assert all(map(is_running, first))
        hadoop.await_lost_node()
        hadoop.node.start()

    assert accident.happen(lose_node_manager) == 1
    assert accident.outcomes() == ["FAILED", "SUCCEEDED"]
    eventually(lambda: not any(map(is_running, first)), "nothing is left of the first driver", poll_seconds=0.2)


def test_a_driver_goes_on_while_the_resource_manager_is_away(accident: Accident, hadoop: HadoopCluster) -> None:
    def restart_manager(_: str) -> None:
        hadoop.manager.kill()
        accident.hold.unlink()
        eventually(lambda: accident.world.commits() >= 3, "it commits", poll_seconds=0.2)
        hadoop.manager.start()

    assert accident.happen(restart_manager) == 0
    assert accident.outcomes() == ["SUCCEEDED"]


def test_a_resource_manager_that_has_forgotten_its_applications_costs_one_restart(
    accident: Accident, hadoop: HadoopCluster
) -> None:
    def forget(application: str) -> None:
        hadoop.manager.kill()
        shutil.rmtree(hadoop.memory)
        hadoop.manager.start()
        eventually(lambda: not hadoop.containers(application), "it has its containers killed", poll_seconds=0.2)

    assert accident.happen(forget) == 1
    assert accident.outcomes() == ["SUCCEEDED"], "the second's; the first is forgotten"


def test_a_standby_is_asked_and_an_application_that_yarn_hides_is_not_taken_for_gone(
    managers: ResourceManagers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    managers.activate(1)
    managers.submit(1, "hidden", user="somebody")
    extra = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": managers.urls[0]}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    through_the_first = spark_submit.cluster_of("spark_default", {})
    extra["yarn_resourcemanager_webapp_address"] = managers.urls[1]
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "yarn", "extra": extra}))
    through_the_second = spark_submit.cluster_of("spark_default", {})
    assert through_the_first is not None
    assert through_the_second is not None
    assert managers.state(0) == "STANDBY"
    for through in (through_the_first, through_the_second):
        caplog.clear()
        assert through.state("hidden") is ClusterState.UNKNOWN
        assert f"{managers.urls[1]} lists none, and leaves out what the caller may not see" in caplog.text
        assert through.state("never submitted") is ClusterState.UNKNOWN
    managers.activate(0)  # which leaves out nothing
    for through in (through_the_first, through_the_second):
        assert through.state("hidden") is ClusterState.ACTIVE
        assert through.state("never submitted") is ClusterState.GONE

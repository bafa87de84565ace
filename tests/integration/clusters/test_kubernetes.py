"""The operator with drivers in pods: a real API server with the documented rights, and a node without containers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_module

from airflow_provider_exactlyonce.control.clusters import Cluster, ClusterState
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from airflow_provider_exactlyonce.hooks import spark_submit
from airflow_provider_exactlyonce.hooks.clusters import LABEL
from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR, s3a_jars, spark_connector_jars
from airflow_provider_exactlyonce.operators.streaming import RestartStrategy, StreamingPipelineOperator
from tests import object_stores
from tests.conftest import MakeTopic
from tests.integration.clusters.test_yarn import execute
from tests.integration.streaming.harness import CONF, JOBS, World, check_counts
from tests.kubernetes_cluster import (
    DRIVER,
    EXECUTOR,
    IMAGE,
    NAMESPACE,
    WORKER,
    ApiServer,
    Node,
    documented_conf,
    manifests,
)
from tests.task_state import TaskInstance
from tests.waiting import eventually

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]

#: What the documented image has among Spark's own.
JARS = ",".join(f"local://{jar}" for jar in [*spark_connector_jars(), EXCLUSIVE_FILES_JAR, *s3a_jars()])


@pytest.fixture
def world(kafka_config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> World:
    source, sink = make_topic(2), make_topic(2)
    return World(config=kafka_config, pipeline=f"in-pods-{source}", source=source, sink=sink, home=tmp_path / "home")


@pytest.fixture
def worker(kubernetes: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Give a function that makes this process's Kubernetes clients a service account's, in Python and in Spark.

    Of Airflow's Kubernetes provider only the few lines that make a client are replaced.
    """

    def become(account: str, namespace: str) -> None:
        from kubernetes import client, config

        file = str(kubernetes.kubeconfig_of(account, namespace))
        module = ModuleType("airflow.providers.cncf.kubernetes.kube_client")
        module.__dict__["get_kube_client"] = lambda: client.CoreV1Api(config.new_client_from_config(file))
        monkeypatch.setattr(spark_submit_module, "kube_client", module, raising=False)
        monkeypatch.setenv("KUBECONFIG", file)

    become(*WORKER)
    return become


@pytest.fixture
def node(kubernetes: ApiServer, tmp_path: Path) -> Iterator[Node]:
    with Node(kubernetes, tmp_path / "node") as node:
        yield node
    assert node.failure is None
    for pod in pods(kubernetes):
        delete(kubernetes, f"{pod['metadata']['name']}?gracePeriodSeconds=0")


@pytest.fixture
def connections(kubernetes: ApiServer, worker: object, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that makes connections; that of Spark is there."""

    def make(**given: dict[str, Any]) -> None:
        for name, connection in given.items():
            monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", json.dumps(connection))

    extra = {"deploy-mode": "cluster", "namespace": NAMESPACE}
    make(spark_default={"conn_type": "spark", "host": f"k8s://{kubernetes.address}", "extra": extra})
    return make


@pytest.fixture
def cluster(connections: object) -> Cluster:
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    return cluster


@pytest.fixture
def checkpoint(
    kubernetes: ApiServer,
    connections: Callable[..., None],
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[str]:
    """Give a home on S3; its key and Kafka's configuration are in a Secret, and in Airflow's connections."""
    with object_stores.moto() as address:
        connections(
            kafka_default={"conn_type": "kafka", "extra": dict(world.config)},
            store=object_stores.connection(address),
        )
        monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        store = {**object_stores.environment(address), "AWS_DEFAULT_REGION": "us-east-1"}
        [secret] = manifests("secret.yaml")
        secret["metadata"]["name"] = world.pipeline
        assert secret["stringData"].keys() == {"kafka", "s3"}
        secret["stringData"] = {"kafka": json.dumps(dict(world.config)), "s3": json.dumps(store)}
        kubernetes.apply(secret)
        yield f"s3://store@bucket/homes/{world.pipeline}"


def stream(kubernetes: ApiServer, world: World, checkpoint: str, **options: Any) -> StreamingPipelineOperator:
    conf = {
        **CONF,
        **{name: value.replace("shop-totals:", f"{world.pipeline}:") for name, value in documented_conf().items()},
        "spark.kubernetes.driver.master": kubernetes.address,  # there is no DNS server of the cluster's
        "spark.local.dir": "/opt/work",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.instances": "1",
        "spark.executor.extraJavaOptions": CONF["spark.driver.extraJavaOptions"],
        **options.pop("conf", {}),
    }
    defaults: dict[str, Any] = {
        "application": f"local://{JOBS / world.job}",
        "checkpoint": checkpoint,
        "conf": conf,
        "jars": JARS,
        "env_vars": {**world.names, **options.pop("env_vars", {})},
        "restart_strategy": RestartStrategy.fixed_delay(attempts=2, delay=timedelta(0)),
    }
    return StreamingPipelineOperator(task_id="stream", **{**defaults, **options})


def rights(role: str) -> set[tuple[str, str, str]]:
    """Return what a documented Role allows: (group, resource, verb)."""
    [found] = [each for each in manifests("rights.yaml") if each["kind"] == "Role" and each["metadata"]["name"] == role]
    return {
        (group, resource, verb)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def pods(kubernetes: ApiServer) -> list[dict[str, Any]]:
    answer = kubernetes.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")
    answer.raise_for_status()
    return list(answer.json()["items"])


def test_a_pipeline_runs_in_pods_with_its_home_on_s3_and_with_exactly_the_documented_rights(
    kubernetes: ApiServer,
    node: Node,
    world: World,
    checkpoint: str,
    cluster: Cluster,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world.send(1000)
    ti = TaskInstance()
    with caplog.at_level("INFO"):
        result = execute(stream(kubernetes, world, checkpoint), ti)
    assert (result["commit"], result["restarts"]) == (3, 0)
    check_counts(world)
    assert not world.home.exists()
    assert [run.home_path for run in world.ledger()[1]] == [checkpoint.replace("store@", "")]
    [driver] = [pod for pod in pods(kubernetes) if pod["metadata"]["name"].endswith("-driver")]
    name, token = driver["metadata"]["name"], driver["metadata"]["labels"]["exactlyonce-token"]
    assert f"kubectl -n {NAMESPACE} logs {name}" in caplog.text
    outputs = [pod.output for pod in node.pods.values()]
    assert len(outputs) == 2, "a driver and an executor"
    assert "secretKeyRef" in str(driver)
    for text in (json.dumps(driver), caplog.text, json.dumps(ti.pushed, default=str), *outputs):
        assert object_stores.SECRET not in text
    eventually(lambda: cluster.state(token) is ClusterState.GONE, "its pod has ended", poll_seconds=0.2)
    cluster.kill(token)
    eventually(lambda: not pods(kubernetes), "nothing of it is left", poll_seconds=0.2)
    everybody = {("authorization.k8s.io", "selfsubjectaccessreviews", "create")}
    assert kubernetes.asked(*WORKER) - everybody == rights("spark-submitter")
    # It deletes by name an executor that has ended before the driver, which none has.
    assert kubernetes.asked(*DRIVER) | {("", "pods", "delete")} == rights("spark-driver")
    assert not kubernetes.asked(*EXECUTOR)


@pytest.mark.parametrize("is_evicted", [True, False], ids=["evicted", "deleted"])
def test_a_driver_whose_pod_is_lost_in_mid_batch_is_replaced_once_and_the_next_one_goes_on_exactly(
    kubernetes: ApiServer,
    node: Node,
    world: World,
    checkpoint: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    is_evicted: bool,
) -> None:
    hold = tmp_path / "hold"
    world.send(2000)

    def lose_driver() -> None:
        eventually(hold.exists, "the second batch writes", poll_seconds=0.2)
        try:
            [driver] = [name for name in node.pods if name.endswith("-driver")]
            if is_evicted:
                node.evict(driver)
            else:
                delete(kubernetes, driver)
        finally:
            hold.unlink()

    held = {FAILPOINTS: f"during-send:run=1:batch=1:hold={hold}"}
    with caplog.at_level("INFO"), ThreadPoolExecutor(1) as pool:
        losing = pool.submit(lose_driver)
        result = execute(stream(kubernetes, world, checkpoint, env_vars=held), TaskInstance())
        losing.result()
    assert result["restarts"] == 1
    check_counts(world)
    assert [run.home_path for run in world.ledger()[1]] == [checkpoint.replace("store@", "")] * 2
    assert len([name for name in node.pods if name.endswith("-driver")]) == 2
    assert ("Evicted: The node was low on resource" in caplog.text) == is_evicted


def delete(kubernetes: ApiServer, name: str) -> None:
    answer = kubernetes.ask("DELETE", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}")
    answer.raise_for_status()


def test_a_task_without_rights_submits_nothing_and_the_missing_ones_are_named(
    kubernetes: ApiServer, worker: Callable[[str, str], None], cluster: Cluster
) -> None:
    cluster.check_access()
    metadata = {"name": "nobody", "namespace": NAMESPACE}
    kubernetes.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    worker("nobody", NAMESPACE)
    with pytest.raises(RefusedError, match=f"not list and delete pods in the namespace {NAMESPACE}"):
        cluster.check_access()
    assert cluster.state("a token") is ClusterState.UNKNOWN


def test_the_documented_objects_are_taken_by_a_strict_server(kubernetes: ApiServer) -> None:
    kubernetes.apply(*manifests("home.yaml"), *manifests("secret.yaml"))


def pod(name: str, folder: Path, image: str = IMAGE) -> dict[str, Any]:
    """Return a pod with a driver's label, in which an executor of Spark would run if its Java were one."""
    names = ["DRIVER_URL", "EXECUTOR_CORES", "EXECUTOR_ID", "APPLICATION_ID", "EXECUTOR_POD_NAME"]
    names += ["RESOURCE_PROFILE_ID", "EXECUTOR_MEMORY", "CONF_DIR", "JAVA_OPT_0", "JAVA_OPT_1"]
    values = {"JAVA_HOME": str(folder), **{f"SPARK_{each}": f"the {each}" for each in names}}
    address = {"fieldRef": {"fieldPath": "status.podIP"}}
    variables: list[dict[str, Any]] = [{"name": each, "value": value} for each, value in values.items()]
    variables.append({"name": "SPARK_EXECUTOR_POD_IP", "valueFrom": address})
    container = {"name": "driver", "image": image, "args": ["executor"], "env": variables}
    spec = {"restartPolicy": "Never", "serviceAccountName": EXECUTOR[0], "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "labels": {LABEL: name}}, "spec": spec}


def test_what_becomes_of_a_pod_is_told(kubernetes: ApiServer, node: Node, cluster: Cluster, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nprintf '<%s>\\n' \"$@\"\nexec sleep 600\n")
    java.chmod(0o755)

    def create(name: str, image: str = IMAGE) -> None:
        answer = kubernetes.ask("POST", f"/api/v1/namespaces/{NAMESPACE}/pods", pod(name, tmp_path, image))
        assert answer.status_code == 201, answer.text

    def tells(name: str, said: str) -> None:
        whole = f"pod {name} is {said}, kubectl -n {NAMESPACE} logs {name}"
        eventually(lambda: cluster.account(name) == whole, lambda: cluster.account(name), poll_seconds=0.1)

    missing = "registry.example.com/shop:missing"
    create("waits", missing)
    tells("waits", f'Pending (ImagePullBackOff: Back-off pulling image "{missing}")')
    assert cluster.state("waits") is ClusterState.ACTIVE

    create("runs")
    tells("runs", "Running")
    assert cluster.state("runs") is ClusterState.ACTIVE
    eventually(lambda: "the EXECUTOR_POD_NAME" in node.pods["runs"].output, "it prints", poll_seconds=0.1)
    printed = re.findall("<(.*)>", node.pods["runs"].output)
    assert printed[:4] == ["the JAVA_OPT_0", "the JAVA_OPT_1", "-Xmsthe EXECUTOR_MEMORY", "-Xmxthe EXECUTOR_MEMORY"]
    assert printed[printed.index("--hostname") + 1] == node.pods["runs"].address
    node.evict("runs")
    tells("runs", "Failed (Evicted: The node was low on resource: memory.)")
    assert cluster.state("runs") is ClusterState.GONE

    create("dies")
    tells("dies", "Running")
    node.kill("dies")
    tells("dies", "Failed (Error: exit code 137)")
    assert cluster.state("dies") is ClusterState.GONE

    create("is-killed")
    tells("is-killed", "Running")
    cluster.kill("is-killed")
    eventually(lambda: cluster.state("is-killed") is ClusterState.GONE, "it is deleted", poll_seconds=0.1)
    assert cluster.account("is-killed") == ""
    assert cluster.state("never-submitted") is ClusterState.GONE

"""Cluster mode at the command line and at the status call: servers that answer as YARN's and Kubernetes' do."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_module
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER, Cluster, ClusterState
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks import spark_submit
from airflow_provider_exactlyonce.hooks.clusters import KubernetesCluster
from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.hooks.launch import build_launch
from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.storage import s3_environment

TOKEN, PASSWORD = "6f1d1e0e-7a57-4d29-9a0c-2f4c6a3c1b11", "kafka-password-4711"


class Server:
    """Answers GET by a function of path and query, and notes everything else."""

    def __init__(self) -> None:
        self.answer: Callable[[str, dict[str, list[str]]], tuple[int, object]] = lambda path, query: (404, {})
        self.changed: Callable[[str, Any], tuple[int, object]] = lambda path, body: (200, {})
        self.sent: list[tuple[str, str, object]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                place = urlsplit(self.path)
                code, body = outer.answer(place.path, parse_qs(place.query))
                self.reply(code, body)

            def change(self) -> None:
                text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(text) if text else None
                outer.sent.append((self.command, self.path, body))
                self.reply(*outer.changed(self.path, body))

            def do_PUT(self) -> None:
                self.change()

            def do_POST(self) -> None:
                self.change()

            def do_DELETE(self) -> None:
                self.change()

            def reply(self, code: int, body: object) -> None:
                text = (body if isinstance(body, str) else json.dumps(body)).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.http.server_port}"


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield server
    server.http.shutdown()
    server.http.server_close()
    thread.join()


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that sets the connection of type spark."""
    kafka = {"bootstrap.servers": "broker:9092", "sasl.password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka}))

    def set_to(host: str, **extra: str) -> None:
        connection = {"conn_type": "spark", "host": host, "extra": {"deploy-mode": "cluster", **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    return set_to


def launch(home: Path | str, **settings: Any) -> Launch:
    given = {"application": "hdfs:///jobs/shop.py", "name": "shop.stream", "jars": "hdfs:///a.jar", **settings}
    return build_launch(home_at(str(home)), DriverSettings(**given), until="forever", goal=None)


def settings_of(launched: Launch) -> dict[str, str]:
    arguments = list(launched.command)
    pairs = [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand in for Airflow's Kubernetes provider, which costs each import of the Spark provider's hook seconds.

    Only its few lines that make a client of the official package are replaced; a test says what they return.
    """
    client = ModuleType("airflow.providers.cncf.kubernetes.kube_client")

    monkeypatch.setattr(spark_submit_module, "kube_client", client, raising=False)
    return client


# -- the command line -----------------------------------------------------------------------------------------------


def test_yarn_gets_the_identity_the_environment_and_the_packages(connect: Callable[..., None], tmp_path: Path) -> None:
    connect("yarn", queue="streams", yarn_resourcemanager_webapp_address="rm:8088")
    launched = launch(tmp_path, env_vars={"REGION": "eu"}, conf={"spark.yarn.tags": "team-a"})
    arguments, conf = list(launched.command), settings_of(launched)
    assert arguments[1:3] == ["--master", "yarn"]
    assert arguments[arguments.index("--deploy-mode") + 1] == "cluster"
    assert arguments[arguments.index("--queue") + 1] == "streams"
    assert conf["spark.yarn.tags"] == f"team-a,{TOKEN_PLACEHOLDER}"
    assert conf["spark.yarn.submit.waitAppCompletion"] == "false"
    assert conf["spark.yarn.maxAppAttempts"] == "1"
    assert conf["spark.yarn.appMasterEnv.EXACTLYONCE_TOKEN"] == TOKEN_PLACEHOLDER
    assert conf["spark.yarn.appMasterEnv.REGION"] == "eu"
    assert conf["spark.yarn.appMasterEnv.PYTHONPATH"] == conf["spark.executorEnv.PYTHONPATH"]
    assert len(conf["spark.archives"].split(",")) == 2
    assert "spark.pyspark.driver.python" not in conf, "it would be a path of this host"
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    assert cluster.name == "yarn"


def test_a_driver_on_yarn_whose_home_is_on_hdfs_gets_its_passwords_as_files(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launched = launch("hdfs://namenode:8020/homes/shop", conf={"spark.files": "mine.csv"})
    conf = settings_of(launched)
    mine, kafka = conf["spark.files"].split(",")
    file = Path(urlsplit(kafka).path)
    assert mine == "mine.csv"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert PASSWORD in file.read_text()
    assert conf["spark.yarn.appMasterEnv.EXACTLYONCE_KAFKA"] == f"@{file.name}"
    assert PASSWORD not in " ".join(launched.command)


def test_a_driver_on_yarn_whose_home_is_on_s3_gets_the_key_to_it_as_a_file(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    extra = {"endpoint_url": "http://store:9000", "region_name": "eu-west-1"}
    store = {"conn_type": "aws", "login": "the key", "password": PASSWORD, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    launched = launch("s3://store@bucket/homes/shop")
    conf = settings_of(launched)
    file = next(Path(urlsplit(url).path) for url in conf["spark.files"].split(",") if url.endswith("/s3.json"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert conf["spark.yarn.appMasterEnv.EXACTLYONCE_S3"] == "@s3.json"
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.setenv(name, "another's")  # which the driver's process has, and is taken back after the test
    monkeypatch.setenv("AWS_DEFAULT_REGION", "another's")
    monkeypatch.setenv(s3_environment.VARIABLE, f"@{file}")
    s3_environment.take_up()
    assert s3_environment.options_of_environment()["endpoint_url"] == "http://store:9000"
    assert s3_environment.hadoop_settings()["fs.s3a.endpoint.region"] == "eu-west-1"
    assert s3_environment.hadoop_keys() == {
        "fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
        "fs.s3a.access.key": "the key",
        "fs.s3a.secret.key": PASSWORD,
    }


def test_a_profile_of_the_workers_host_is_no_key_for_a_driver_in_a_cluster(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps({"conn_type": "aws", "extra": {"profile_name": "data"}}))
    location = "s3://store@bucket/homes/shop"
    home = Home(location, Home("s3://bucket/homes/shop").path)  # what opens it has no such profile here
    with pytest.raises(RefusedError, match="names the profile data, which is in a file of this host"):
        build_launch(home, DriverSettings(application="hdfs:///shop.py", name="shop"), until="forever", goal=None)


SECRETS = "spark.kubernetes.driver.secretKeyRef."


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> str:
    """Give a home in a bucket, by a connection that has the key to it."""
    store = {"conn_type": "aws", "login": "the key", "password": PASSWORD, "extra": {"region_name": "eu-west-1"}}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(store))
    return "s3://store@bucket/homes/shop"


@pytest.mark.usefixtures("provider")
def test_a_driver_in_a_pod_whose_home_is_not_mounted_takes_what_is_secret_from_a_secret(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, store: str
) -> None:
    connect("k8s://https://api:6443", namespace="streams")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    named = {f"{SECRETS}EXACTLYONCE_{name}": f"shop:{name.lower()}" for name in ("KAFKA", "S3")}
    launched = launch(store, conf=named)
    conf = settings_of(launched)
    assert conf.items() >= named.items()
    assert [name for name in conf if name.startswith("spark.kubernetes.driverEnv.")] == [
        "spark.kubernetes.driverEnv.EXACTLYONCE_TOKEN"
    ]
    assert "spark.files" not in conf
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()], "nothing secret is written"


@pytest.mark.parametrize("given", [[], ["KAFKA"], ["S3"]])
@pytest.mark.usefixtures("provider")
def test_a_secret_that_a_pod_would_lack_is_named(connect: Callable[..., None], store: str, given: list[str]) -> None:
    connect("k8s://https://api:6443")
    with pytest.raises(RefusedError, match="is not mounted, so a driver in a pod takes") as refused:
        launch(store, conf={f"{SECRETS}EXACTLYONCE_{name}": "shop:key" for name in given})
    for name in ("KAFKA", "S3"):
        assert (f"{SECRETS}EXACTLYONCE_{name}" in str(refused.value)) == (name not in given)
    assert PASSWORD not in str(refused.value)


@pytest.mark.usefixtures("provider")
def test_a_bucket_without_a_key_and_hdfs_need_no_key_in_a_pod(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("k8s://https://api:6443")
    monkeypatch.setenv("AIRFLOW_CONN_ROLE", json.dumps({"conn_type": "aws", "extra": {"region_name": "eu-west-1"}}))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # there is no address of a machine's role to ask
    kafka = {f"{SECRETS}EXACTLYONCE_KAFKA": "shop:kafka"}
    for home in ("s3://role@bucket/homes/shop", "hdfs://namenode:8020/homes/shop"):
        conf = settings_of(launch(home, conf=kafka))
        region = conf.get("spark.kubernetes.driverEnv.AWS_REGION")
        assert region == ("eu-west-1" if home.startswith("s3") else None), "the pod's own role has the key"


@pytest.mark.usefixtures("provider")
def test_a_secret_is_not_written_into_a_mounted_home_either(connect: Callable[..., None], tmp_path: Path) -> None:
    connect("k8s://https://api:6443")
    launched = launch(tmp_path, conf={f"{SECRETS}EXACTLYONCE_KAFKA": "shop:kafka"})
    assert "spark.kubernetes.driverEnv.EXACTLYONCE_KAFKA" not in settings_of(launched)
    assert not list(tmp_path.rglob("kafka.json"))


def test_the_kafka_configuration_goes_by_a_file_of_the_home_that_only_its_owner_can_read(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    launched = launch(tmp_path / "home")
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    named = settings_of(launched)["spark.yarn.appMasterEnv.EXACTLYONCE_KAFKA"]
    file = Path(named.removeprefix("@"))
    assert file.is_relative_to(tmp_path / "home")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    monkeypatch.setenv("EXACTLYONCE_KAFKA", named)
    assert kafka_config.from_environment(None) == {"bootstrap.servers": "broker:9092", "sasl.password": PASSWORD}
    file.unlink()
    with pytest.raises(RefusedError, match=r"names the file .*kafka\.json, which can't be read here"):
        kafka_config.from_environment(None)


def test_connections_to_postgresql_go_the_same_way_in_libpqs_words(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    given = {"conn_type": "postgres", "host": "db", "schema": "shop", "login": "me", "password": PASSWORD, "port": 5433}
    monkeypatch.setenv("AIRFLOW_CONN_SHOP_DB", json.dumps({**given, "extra": {"sslmode": "require"}}))
    launched = launch(tmp_path / "home", postgres_conn_ids=["shop_db"])
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    file = Path(settings_of(launched)["spark.yarn.appMasterEnv.EXACTLYONCE_POSTGRES"].removeprefix("@"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    parameters = {"host": "db", "dbname": "shop", "user": "me", "password": PASSWORD, "port": "5433"}
    assert json.loads(file.read_text()) == {"shop_db": {**parameters, "sslmode": "require"}}


def test_connections_to_the_clusters_of_sources_go_the_same_way(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    config = {"bootstrap.servers": "orders:9092", "sasl.password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_ORDERS", json.dumps({"conn_type": "kafka", "extra": config}))
    launched = launch(tmp_path / "home", source_conn_ids=["orders"])
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    file = Path(settings_of(launched)["spark.yarn.appMasterEnv.EXACTLYONCE_SOURCES"].removeprefix("@"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {"orders": config}


def test_connections_to_object_stores_go_the_same_way_in_delta_rs_words(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    extra = {"region_name": "eu-west-1", "endpoint_url": "http://minio:9000", "aws_session_token": None}
    aws = {"conn_type": "aws", "login": "key", "password": PASSWORD, "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(aws))
    azure = {"azure_storage_account_key": PASSWORD, "azure_storage_use_emulator": True}
    monkeypatch.setenv("AIRFLOW_CONN_AZURE", json.dumps({"conn_type": "generic", "extra": azure}))
    launched = launch(tmp_path / "home", store_conn_ids=["aws_lake", "azure"])
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    file = Path(settings_of(launched)["spark.yarn.appMasterEnv.EXACTLYONCE_STORES"].removeprefix("@"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    options = {"aws_access_key_id": "key", "aws_secret_access_key": PASSWORD, "aws_region": "eu-west-1"}
    assert json.loads(file.read_text()) == {
        "aws_lake": {**options, "aws_endpoint_url": "http://minio:9000", "aws_allow_http": "true"},
        "azure": {"azure_storage_account_key": PASSWORD, "azure_storage_use_emulator": "true"},
    }


def test_a_role_that_would_have_to_be_assumed_is_refused_by_name(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    aws = {"conn_type": "aws", "password": PASSWORD, "extra": {"role_arn": "arn:aws:iam::1:role/x"}}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_LAKE", json.dumps(aws))
    with pytest.raises(RefusedError, match="connection aws_lake has role_arn='arn:aws:iam::1:role/x'") as refused:
        launch(tmp_path / "home", store_conn_ids=["aws_lake"])
    assert PASSWORD not in str(refused.value)


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({"host": "registry", "port": 8081}, "http://registry:8081"),
        ({"host": "registry", "schema": "https"}, "https://registry"),
        ({"host": "https://registry/apis/ccompat/v7", "port": 8443}, "https://registry:8443/apis/ccompat/v7"),
    ],
)
def test_the_schema_registrys_connection_goes_the_same_way_in_its_clients_words(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], url: str
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    user = {"conn_type": "http", "login": "me", "password": PASSWORD, "extra": {"ssl.ca.location": "/ca.pem"}}
    monkeypatch.setenv("AIRFLOW_CONN_REGISTRY", json.dumps({**given, **user}))
    launched = launch(tmp_path / "home", schema_registry_conn_id="registry")
    assert PASSWORD not in " ".join(launched.command) + launched.printable + str(launched.environment)
    file = Path(settings_of(launched)["spark.yarn.appMasterEnv.EXACTLYONCE_SCHEMA_REGISTRY"].removeprefix("@"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert json.loads(file.read_text()) == {
        "url": url,
        "basic.auth.user.info": f"me:{PASSWORD}",
        "ssl.ca.location": "/ca.pem",
    }


@pytest.mark.usefixtures("provider")
def test_kubernetes_gets_a_label_and_the_drivers_environment(connect: Callable[..., None], tmp_path: Path) -> None:
    connect("k8s://https://cluster:6443", namespace="streams")
    launched = launch(tmp_path, jars=None)
    conf = settings_of(launched)
    assert conf["spark.kubernetes.namespace"] == "streams"
    assert conf["spark.kubernetes.driver.label.exactlyonce-token"] == TOKEN_PLACEHOLDER
    assert conf["spark.kubernetes.driverEnv.EXACTLYONCE_TOKEN"] == TOKEN_PLACEHOLDER
    assert conf["spark.kubernetes.driverEnv.EXACTLYONCE_KAFKA"].startswith("@")
    assert conf["spark.kubernetes.submission.waitAppCompletion"] == "false"
    assert "spark.archives" not in conf, "the image has them"
    assert "--jars" not in launched.command, "and these"
    conf = settings_of(launch(tmp_path, conf={"spark.kubernetes.file.upload.path": "s3a://bucket/uploads"}))
    assert len(conf["spark.archives"].split(",")) == 2


@pytest.mark.usefixtures("provider")
@pytest.mark.parametrize(
    ("connected", "conf", "namespace"),
    [
        ({"namespace": "streams"}, {}, "streams"),
        ({"namespace": "streams"}, {"spark.kubernetes.namespace": "shop"}, "shop"),
        ({}, {"spark.kubernetes.namespace": "shop"}, "shop"),
        ({}, {}, "default"),  # whatever spark-defaults.conf says
    ],
)
def test_a_driver_is_looked_up_in_the_namespace_to_which_it_is_submitted(
    connect: Callable[..., None], tmp_path: Path, connected: dict[str, str], conf: dict[str, str], namespace: str
) -> None:
    connect("k8s://https://cluster:6443", **connected)
    assert settings_of(launch(tmp_path, jars=None, conf=conf))["spark.kubernetes.namespace"] == namespace
    cluster = spark_submit.cluster_of("spark_default", conf)
    assert isinstance(cluster, KubernetesCluster)
    assert cluster.namespace == namespace


def test_what_could_not_be_supervised_is_refused_by_name(connect: Callable[..., None], tmp_path: Path) -> None:
    connect("yarn")
    with pytest.raises(RefusedError, match=r"spark_default .*set yarn_resourcemanager_webapp_address"):
        launch(tmp_path)
    connect("spark://master:7077")
    with pytest.raises(RefusedError, match=r"spark://master:7077, where Spark runs no Python .*deploy-mode to client"):
        launch(tmp_path)
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    with pytest.raises(SettingRefusedError, match=r"spark\.yarn\.maxAppAttempts is '4'; it must be '1'"):
        launch(tmp_path, conf={"spark.yarn.maxAppAttempts": 4})


def test_kubernetes_without_airflows_provider_for_it_is_refused_by_name(connect: Callable[..., None]) -> None:
    connect("k8s://https://cluster:6443")
    with pytest.raises(RefusedError, match="install apache-airflow-providers-cncf-kubernetes"):
        spark_submit.cluster_of("spark_default", {})


def test_the_hook_still_has_the_private_names_that_are_used() -> None:
    """When this fails, look at the Spark provider's release notes and change hooks/clusters.py, nothing else."""
    for name in ("_get_yarn_rm_base_url", "_resolved_yarn_rm_auth", "_kill_yarn_application"):
        assert hasattr(SparkSubmitHook, name)


# -- the status call ------------------------------------------------------------------------------------------------


def yarn(server: Server, connect: Callable[..., None]) -> Cluster:
    connect("yarn", yarn_resourcemanager_webapp_address=server.address)
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    return cluster


STATELESS = {"apps": {"app": [{"id": "application_1_0001"}]}}


def resource_manager(
    state: str, final: str = "UNDEFINED", diagnostics: str = "", *, manager: str = "ACTIVE"
) -> Callable[[str, dict[str, list[str]]], tuple[int, object]]:
    """Answer as YARN does, which has one application, with our tag."""
    app = {"id": "application_1_0001", "state": state, "finalStatus": final, "diagnostics": diagnostics}

    def answer(path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        if path == "/ws/v1/cluster/info":
            return 200, {"clusterInfo": {"haState": manager}}
        if path == "/ws/v1/cluster/apps":
            return 200, {"apps": {"app": [app]} if query.get("applicationTags") == [TOKEN] else None}
        return (200, {"app": app}) if path == "/ws/v1/cluster/apps/application_1_0001" else (404, {})

    return answer


@pytest.mark.parametrize(
    ("state", "final", "expected"),
    [
        ("ACCEPTED", "UNDEFINED", ClusterState.ACTIVE),
        ("RUNNING", "UNDEFINED", ClusterState.ACTIVE),
        ("FINISHED", "SUCCEEDED", ClusterState.GONE),
        ("FINISHED", "FAILED", ClusterState.GONE),
        ("KILLED", "KILLED", ClusterState.GONE),
        ("FAILED", "FAILED", ClusterState.GONE),
        ("HIBERNATED", "UNDEFINED", ClusterState.UNKNOWN),  # no state that is listed has ended
    ],
)
def test_yarn_is_asked_by_the_tag(
    server: Server, connect: Callable[..., None], state: str, final: str, expected: ClusterState
) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager(state, final)
    assert cluster.state(TOKEN) is expected
    assert cluster.state("another") is ClusterState.GONE, "never submitted"


@pytest.mark.parametrize("answer", [(500, {}), (200, "no JSON"), (200, {}), (401, {}), (200, STATELESS)])
@pytest.mark.parametrize("asked", ["info", "apps"])
def test_a_yarn_that_does_not_answer_as_expected_says_nothing(
    server: Server, connect: Callable[..., None], answer: tuple[int, object], asked: str
) -> None:
    cluster, otherwise = yarn(server, connect), resource_manager("FINISHED", "SUCCEEDED")
    server.answer = lambda path, query: answer if path.endswith(asked) else otherwise(path, query)
    assert cluster.state(TOKEN) is ClusterState.UNKNOWN


def test_a_yarn_that_is_started_again_does_not_know_yet_what_there_is(
    server: Server, connect: Callable[..., None]
) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager("FINISHED", "SUCCEEDED", manager="INITIALIZING")
    assert cluster.state("another") is ClusterState.UNKNOWN
    assert cluster.state(TOKEN) is ClusterState.GONE, "of this one it knows"


def test_a_yarn_that_can_not_be_reached_says_nothing(connect: Callable[..., None]) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="http://127.0.0.1:9")
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    assert cluster.state(TOKEN) is ClusterState.UNKNOWN
    cluster.kill(TOKEN)


def test_what_yarn_says_of_an_application_is_told_with_its_page(server: Server, connect: Callable[..., None]) -> None:
    cluster, page = yarn(server, connect), f"{server.address}/cluster/app/application_1_0001"
    server.answer = resource_manager("RUNNING")
    assert cluster.account(TOKEN) == f"application_1_0001 is RUNNING, {page}"
    server.answer = resource_manager("FINISHED", "FAILED", "User application exited\n with status 1")
    said = "User application exited with status 1"
    assert cluster.account(TOKEN) == f"application_1_0001 is FINISHED with FAILED ({said}), {page}"
    assert cluster.account("another") == ""
    server.answer = lambda path, query: (500, {})
    assert cluster.account(TOKEN) == ""


def test_yarn_is_told_to_kill_what_has_the_tag(server: Server, connect: Callable[..., None]) -> None:
    cluster = yarn(server, connect)
    server.answer = resource_manager("RUNNING")
    cluster.kill(TOKEN)
    assert server.sent == [("PUT", "/ws/v1/cluster/apps/application_1_0001/state", {"state": "KILLED"})]


@pytest.fixture
def kubernetes(server: Server, connect: Callable[..., None], provider: ModuleType) -> Cluster:
    from kubernetes import client

    configuration = client.Configuration(host=server.address)
    configuration.retries = 0
    provider.__dict__["get_kube_client"] = lambda: client.CoreV1Api(client.ApiClient(configuration))
    connect(f"k8s://{server.address}", namespace="streams")
    cluster = spark_submit.cluster_of("spark_default", {})
    assert cluster is not None
    return cluster


def api(*phases: str) -> Callable[[str, dict[str, list[str]]], tuple[int, object]]:
    """Answer as Kubernetes does, which has pods of these phases with our label."""
    pods = [{"metadata": {"name": f"driver-{n}"}, "status": {"phase": phase}} for n, phase in enumerate(phases)]

    def answer(path: str, query: dict[str, list[str]]) -> tuple[int, object]:
        assert path == "/api/v1/namespaces/streams/pods"
        ours = query["labelSelector"] == [f"exactlyonce-token={TOKEN}"]
        return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": pods if ours else []}

    return answer


def container(state: dict[str, object]) -> dict[str, object]:
    return {"name": "driver", "image": "etl:7", "imageID": "", "ready": False, "restartCount": 0, "state": state}


@pytest.mark.parametrize(
    ("phases", "expected"),
    [
        (["Pending"], ClusterState.ACTIVE),
        (["Running"], ClusterState.ACTIVE),
        (["Unknown"], ClusterState.UNKNOWN),
        (["Hibernated"], ClusterState.UNKNOWN),
        (["Failed", "Hibernated"], ClusterState.UNKNOWN),
        (["Failed"], ClusterState.GONE),
        (["Succeeded"], ClusterState.GONE),
        (["Failed", "Running"], ClusterState.ACTIVE),
        ([], ClusterState.GONE),
    ],
)
def test_kubernetes_is_asked_by_the_label(
    server: Server, kubernetes: Cluster, phases: list[str], expected: ClusterState
) -> None:
    server.answer = api(*phases)
    assert kubernetes.state(TOKEN) is expected


@pytest.mark.parametrize("answer", [(500, {}), (403, {}), (200, "no JSON")])
def test_a_kubernetes_that_does_not_answer_as_expected_says_nothing(
    server: Server, kubernetes: Cluster, answer: tuple[int, object]
) -> None:
    server.answer = lambda path, query: answer
    assert kubernetes.state(TOKEN) is ClusterState.UNKNOWN


def test_what_kubernetes_says_of_a_pod_is_told(server: Server, kubernetes: Cluster) -> None:
    server.answer = api("Failed", "Running")
    first, second = ("kubectl -n streams logs driver-0", "kubectl -n streams logs driver-1")
    assert kubernetes.account(TOKEN) == f"pod driver-0 is Failed, {first}; pod driver-1 is Running, {second}"
    server.answer = lambda path, query: (403, {})
    assert kubernetes.account(TOKEN) == ""


@pytest.mark.parametrize(
    ("metadata", "status", "said"),
    [
        (
            {},
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
            "Failed (Evicted: The node was low on resource: memory.)",
        ),
        (
            {},
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/3 nodes are available: 3 Insufficient cpu.",
                    }
                ],
            },
            "Pending (Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.)",
        ),
        (
            {},
            {
                "phase": "Pending",
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [
                    container({"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "etl:7"'}})
                ],
            },
            'Pending (ImagePullBackOff: Back-off pulling image "etl:7")',
        ),
        (
            {},
            {
                "phase": "Failed",
                "containerStatuses": [container({"terminated": {"reason": "OOMKilled", "exitCode": 137}})],
            },
            "Failed (OOMKilled: exit code 137)",
        ),
        ({"deletionTimestamp": "2026-11-25T10:00:00Z"}, {"phase": "Running"}, "Running, being deleted"),
    ],
)
def test_why_a_pod_does_not_run_is_told(
    server: Server, kubernetes: Cluster, metadata: dict[str, str], status: dict[str, object], said: str
) -> None:
    pod = {"metadata": {"name": "driver-0", **metadata}, "status": status}
    answer = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}
    server.answer = lambda path, query: (200, answer)
    assert kubernetes.account(TOKEN) == f"pod driver-0 is {said}, kubectl -n streams logs driver-0"


@pytest.mark.parametrize(
    ("allowed", "missing"),
    [
        ({"list", "delete"}, None),
        ({"list"}, "lets this task not delete pods in the namespace streams"),
        (set(), "lets this task not list and delete pods in the namespace streams"),
    ],
)
def test_a_task_that_could_not_look_its_driver_up_submits_none(
    server: Server, kubernetes: Cluster, allowed: set[str], missing: str | None
) -> None:
    def review(_: str, body: Any) -> tuple[int, object]:
        asked = body["spec"]["resourceAttributes"]
        assert (asked["resource"], asked["namespace"]) == ("pods", "streams")
        return 201, {**body, "status": {"allowed": asked["verb"] in allowed}}

    server.changed = review
    with pytest.raises(RefusedError, match=missing) if missing else nullcontext():
        kubernetes.check_access()
    assert {path for _, path, _ in server.sent} == {"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"}


@pytest.mark.parametrize("answer", [(500, {}), (403, {}), (200, "no JSON")])
def test_a_kubernetes_that_does_not_say_what_is_allowed_stops_nobody(
    server: Server, kubernetes: Cluster, answer: tuple[int, object]
) -> None:
    server.changed = lambda path, body: answer
    kubernetes.check_access()
    assert server.sent


def test_kubernetes_is_told_to_delete_the_drivers_pod(server: Server, kubernetes: Cluster) -> None:
    server.answer = api("Running")
    kubernetes.kill(TOKEN)
    assert [(method, path) for method, path, _ in server.sent] == [
        ("DELETE", "/api/v1/namespaces/streams/pods/driver-0")
    ]

"""What a task hands a driver that runs beside it, or in a cluster."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest

from airflow_provider_exactlyonce.checkpoint.home_copy import in_order
from airflow_provider_exactlyonce.control import processes
from airflow_provider_exactlyonce.control.clusters import TOKEN_PLACEHOLDER
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks import spark_submit
from airflow_provider_exactlyonce.hooks.clusters import KubernetesCluster
from airflow_provider_exactlyonce.hooks.home import home_at
from airflow_provider_exactlyonce.hooks.launch import build_launch
from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings
from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.kafka import config as kafka_config
from airflow_provider_exactlyonce.storage import s3_environment
from tests.unit.hooks.conftest import PASSWORD

WITH_OPTIONS: Final[dict[str, Any]] = {
    "conf": {"spark.exactlyonce.packages": "installed"},
    "env_vars": {"SPARK_SUBMIT_OPTS": "-Dmine=1"},
}


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the archive of Spark's classes, which is there."""
    file = tmp_path / "classes.jsa"
    file.touch()
    monkeypatch.setattr(class_archive, "find", lambda: file)
    return file


def launch(home: Path | str, **settings: Any) -> Launch:
    given = {"application": "hdfs:///jobs/shop.py", "name": "shop.stream", "jars": "hdfs:///a.jar", **settings}
    return build_launch(home_at(str(home)), DriverSettings(**given), until="forever", goal=None)


def settings_of(launched: Launch) -> dict[str, str]:
    arguments = list(launched.command)
    pairs = [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_a_driver_here_starts_from_the_archive_and_keeps_its_own_options(
    connect: Callable[..., None], archive: Path, tmp_path: Path
) -> None:
    connect("yarn", **{"deploy-mode": "client"})
    options = str(launch(tmp_path, **WITH_OPTIONS).environment["SPARK_SUBMIT_OPTS"]).split()
    assert f"-XX:SharedArchiveFile={archive}" in options
    assert options[-1] == "-Dmine=1"


def test_what_a_home_s_connection_lacks_is_taken_out_of_a_driver_s_environment(
    connect: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Libraries of tables would take an empty endpoint for a URL, and sign requests with an empty token."""
    connect("yarn", **{"deploy-mode": "client"})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "wasb", "login": "shop", "password": PASSWORD}))
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://elsewhere.blob.core.windows.net")
    launched = launch("abfss://lake@home/shop").environment
    environment = processes.environment_with(launched)
    assert environment["AZURE_STORAGE_ACCOUNT_KEY"] == PASSWORD
    assert "AZURE_STORAGE_ENDPOINT" not in environment


def test_a_driver_that_a_cluster_runs_is_not_told_of_an_archive_of_this_host(
    connect: Callable[..., None], archive: Path, tmp_path: Path
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    launched = launch(tmp_path, **WITH_OPTIONS)
    assert "SPARK_SUBMIT_OPTS" not in launched.environment
    assert str(archive) not in " ".join(launched.command)


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
    assert cluster.name == "yarn at http://rm:8088"
    assert cluster.has("yarn"), "of a driver that an earlier version has submitted"


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


def test_no_secret_moves_with_its_home(
    connect: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088")
    types = {"kafka": "source", "postgres": "postgres", "aws": "store", "http": "schema_registry"}
    for kind in types:
        extra = {"bootstrap.servers": "orders:9092"} if kind == "kafka" else {}
        given = {"conn_type": kind, "host": "host", "login": "me", "password": PASSWORD, "extra": extra}
        monkeypatch.setenv(f"AIRFLOW_CONN_{kind.upper()}", json.dumps(given))
    lists = {f"{name}_conn_ids": [kind] for kind, name in types.items() if kind != "http"}
    launch(tmp_path, schema_registry_conn_id="http", **lists)
    written = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*.json")}
    assert {f"control/{name}.json" for name in ("kafka", "sources", "postgres", "stores", "schema_registry")} <= written
    assert in_order(written) == ([], [])
    of_buckets = {
        f"control/{variable.removeprefix('EXACTLYONCE_').lower()}.json" for variable in (s3_environment.VARIABLE,)
    }
    assert in_order([*of_buckets, "control/gcs.json", "backfills/a/control/kafka.json"]) == ([], [])


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
    ("deploy_mode", "location", "files"),
    [
        ("cluster", "", {"kafka.json", "sources.json"}),
        ("cluster", "hdfs://namenode:8020/homes/shop", {"kafka.json", "sources.json"}),
        ("client", "gs://homes@bucket/shop", {"gcs.json"}),
    ],
)
def test_a_start_that_is_refused_leaves_no_secret_behind(
    connect: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    key: dict[str, str],
    deploy_mode: str,
    location: str,
    files: set[str],
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088", **{"deploy-mode": deploy_mode})
    homes = {"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": key}}
    monkeypatch.setenv("AIRFLOW_CONN_HOMES", json.dumps(homes))
    home, given = location or tmp_path, {"source_conn_ids": ["kafka_default"]}
    with pytest.raises(SettingRefusedError, match=r"spark\.task\.maxFailures"):
        launch(home, conf={"spark.task.maxFailures": "4"}, **given)
    assert not list(tmp_path.rglob("*.json"))
    launch(home, **given)
    written = list(tmp_path.rglob("*.json"))
    assert {file.name for file in written} == files
    assert {stat.S_IMODE(file.stat().st_mode) for file in written} == {0o600}


@pytest.mark.parametrize("deploy_mode", ["client", "cluster"])
@pytest.mark.parametrize(
    ("home", "lacking", "given"),
    [
        ({"endpoint_url": "https://minio:9000"}, "endpoint_url", "https://s3.eu-west-1.amazonaws.com"),
        ({"aws_session_token": "token"}, "aws_session_token", "its own"),
    ],
)
def test_a_table_s_key_is_not_used_with_a_part_of_the_home_s_connection(
    connect: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    home: dict[str, str],
    lacking: str,
    given: str,
    deploy_mode: str,
) -> None:
    """Delta-rs takes each option that it is not given from the environment, where those of the home are."""

    def connect_store(name: str, extra: dict[str, str], **key: str) -> None:
        connection = {"conn_type": "aws", **key, "extra": {"region_name": "eu-west-1", **extra}}
        monkeypatch.setenv(f"AIRFLOW_CONN_{name}", json.dumps(connection))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    connect("yarn", yarn_resourcemanager_webapp_address="rm:8088", **{"deploy-mode": deploy_mode})
    connect_store("HOMES", home, login="other", password="other")
    connect_store("LAKE", {}, login="key", password=PASSWORD)
    given_store = {"store_conn_ids": ["lake"], "conf": {"spark.exactlyonce.packages": "installed"}}
    with pytest.raises(RefusedError, match="connection lake has a key and no ") as refused:
        launch("s3://homes@bucket/shop", **given_store)
    assert PASSWORD not in str(refused.value)
    launch("s3://bucket/shop", **given_store)
    connect_store("LAKE", {lacking: given}, login="key", password=PASSWORD)
    launch("s3://homes@bucket/shop", **given_store)
    connect_store("LAKE", {})
    launch("s3://homes@bucket/shop", **given_store)


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

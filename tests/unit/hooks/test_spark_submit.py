"""The adapter over the Spark provider's hook: the contract with its private names, and the command that comes out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings, build_command
from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_LOCAL", json.dumps({"conn_type": "spark", "host": "local[2]"}))
    queue = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "client", "queue": "streams"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", json.dumps(queue))


def built(*arguments: str, conn_id: str = "spark_local", jars: str | None = "a.jar", **options: Any) -> list[str]:
    submitted = DriverSettings(application="/jobs/shop.py", name="shop", conn_id=conn_id, jars=jars, **options)
    return build_command(submitted, arguments, {})[0]


def settings_of(arguments: list[str]) -> dict[str, str]:
    pairs = [arguments[at + 1] for at, argument in enumerate(arguments) if argument == "--conf"]
    return dict(pair.split("=", 1) for pair in pairs)


def test_the_hook_still_has_the_private_names_that_the_adapter_uses() -> None:
    """When this fails, look at the Spark provider's release notes and change hooks/spark_submit.py, nothing else."""
    hook = SparkSubmitHook(
        conf={"a": "b"}, conn_id="spark_local", jars="x.jar", name="n", application_args=["--home", "h"]
    )
    assert hook._build_spark_submit_command("job.py") == (
        [
            "spark-submit",
            "--master",
            "local[2]",
            "--conf",
            "a=b",
            "--jars",
            "x.jar",
            "--name",
            "n",
            "job.py",
            "--home",
            "h",
        ]
    )
    assert hook._mask_cmd(["--conf", "spark.my.password=4711", "job.py"]) == "--conf spark.my.password=****** job.py"
    assert hook._connection["deploy_mode"] is None


def test_the_command_has_the_connections_master_and_the_arguments_in_order() -> None:
    command = built("--home", "/h", "--until", "available")
    assert command[1:3] == ["--master", "local[2]"]
    assert command[-5:] == ["/jobs/shop.py", "--home", "/h", "--until", "available"]
    assert command[command.index("--name") + 1] == "shop"


def test_what_the_protocol_needs_is_set_and_the_users_settings_stay() -> None:
    settings = settings_of(built(conf={"spark.sql.shuffle.partitions": 4, "spark.ui.enabled": True}))
    assert settings["spark.task.maxFailures"] == "1"
    assert settings["spark.sql.shuffle.partitions"] == "4"
    assert settings["spark.ui.enabled"] == "true", "Spark spells booleans in lower case"


def test_a_setting_that_contradicts_the_protocol_is_refused_by_name() -> None:
    with pytest.raises(SettingRefusedError, match=r"spark\.speculation is 'true'; it must be 'false'"):
        built(conf={"spark.speculation": True})


def test_client_mode_of_a_cluster_passes_what_the_connection_says() -> None:
    arguments = built(conn_id="spark_yarn")
    assert arguments[arguments.index("--queue") + 1] == "streams"


def test_a_driver_runs_where_its_connection_says_and_is_looked_for_there() -> None:
    for conn_id in ("spark_local", "spark_yarn"):
        arguments = built(conn_id=conn_id, conf={"spark.submit.deployMode": "client"})
        assert arguments[arguments.index("--deploy-mode") + 1] == "client", "whatever spark-defaults.conf says"
        with pytest.raises(SettingRefusedError, match=rf"must be 'client': deploy-mode .* of connection {conn_id}"):
            built(conn_id=conn_id, conf={"spark.submit.deployMode": "cluster"})


def test_a_connection_that_is_not_there_is_an_error_not_yarn() -> None:
    with pytest.raises(AirflowNotFoundException, match="spark_nowhere"):
        built(conn_id="spark_nowhere")


def test_secrets_are_masked_in_the_printable_form_only() -> None:
    conf = {"spark.store.password": "4711"}
    submitted = DriverSettings(application="a.py", name="a", conn_id="spark_local", jars="a.jar", conf=conf)
    command, printable = build_command(submitted, [], {})
    assert "spark.store.password=4711" in command
    assert "4711" not in printable


def test_packages_replace_the_connector_jars() -> None:
    arguments = built(jars=None, packages="org:spark-sql-kafka:1")
    assert "--jars" not in arguments
    assert arguments[arguments.index("--packages") + 1] == "org:spark-sql-kafka:1"


def test_a_home_on_s3_gets_the_class_that_writes_its_checkpoint_whatever_jars_the_user_brings() -> None:
    arguments = built("--home", "s3://bucket/home", jars="own.jar")
    assert arguments[arguments.index("--jars") + 1] == f"own.jar,{EXCLUSIVE_FILES_JAR}"


def test_spark_submit_beside_the_interpreter_is_found_when_the_path_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert built()[0] == str(Path(sys.executable).parent / "spark-submit")
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RefusedError, match=r"spark-submit is neither on the PATH nor beside .*exactlyonce\[spark\]"):
        built()

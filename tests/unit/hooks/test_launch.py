"""What a task hands a driver that runs beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.launching import Launch
from airflow_provider_exactlyonce.devkit import class_archive
from airflow_provider_exactlyonce.hooks.launch import build_launch
from airflow_provider_exactlyonce.hooks.spark_submit import DriverSettings


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Give the archive of Spark's classes, which is there."""
    file = tmp_path / "classes.jsa"
    file.touch()
    monkeypatch.setattr(class_archive, "find", lambda: file)
    monkeypatch.setenv(
        "AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": {"bootstrap.servers": "broker:9092"}})
    )
    return file


def launch(home: Path, monkeypatch: pytest.MonkeyPatch, deploy_mode: str) -> Launch:
    extra = {"deploy-mode": deploy_mode, "yarn_resourcemanager_webapp_address": "http://resourcemanager:8088"}
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    settings = DriverSettings(
        application="hdfs:///shop.py",
        name="shop",
        jars="hdfs:///a.jar",
        conf={"spark.exactlyonce.packages": "installed"},
        env_vars={"SPARK_SUBMIT_OPTS": "-Dmine=1"},
    )
    return build_launch(Home(home), settings, until="forever")


def test_a_driver_here_starts_from_the_archive_and_keeps_its_own_options(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = launch(tmp_path, monkeypatch, "client").environment["SPARK_SUBMIT_OPTS"].split()
    assert f"-XX:SharedArchiveFile={archive}" in options
    assert options[-1] == "-Dmine=1"


def test_a_driver_that_a_cluster_runs_is_not_told_of_an_archive_of_this_host(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = launch(tmp_path, monkeypatch, "cluster")
    assert "SPARK_SUBMIT_OPTS" not in launched.environment
    assert str(archive) not in " ".join(launched.command)

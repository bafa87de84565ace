"""Which jars a driver is given for its home."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.jars.cache import EXCLUSIVE_FILES_JAR
from airflow_provider_exactlyonce.storage import azure_environment, s3_environment
from airflow_provider_exactlyonce.streaming import file_systems

#: Of spark.redaction.regex.
SPARKS_DEFAULT = re.compile("(?i)secret|password|token|access[.]?key")


def test_a_home_on_this_machine_gets_the_class_of_this_package_with_the_other_jars() -> None:
    assert file_systems.driver_jars(["--until", "available", "--home", "/tmp/home"]) == [EXCLUSIVE_FILES_JAR]
    assert file_systems.driver_jars([]) == [EXCLUSIVE_FILES_JAR]
    assert file_systems.driver_jars([], complete=False) == [], "it goes without, too"


@pytest.mark.parametrize("scheme", ["s3", "gs"])
@pytest.mark.parametrize("arguments", [["--home", "{}://bucket/home"], ["--until", "available", "--home={}://c@b/h"]])
def test_a_home_in_a_bucket_needs_its_module_and_a_class_of_this_package(
    arguments: list[str], scheme: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Path("connector.jar")
    system = replace(file_systems.FILE_SYSTEMS[scheme], jars=lambda: [module])
    monkeypatch.setattr(file_systems, "FILE_SYSTEMS", {scheme: system})
    arguments = [argument.format(scheme) for argument in arguments]
    assert file_systems.driver_jars(arguments) == [EXCLUSIVE_FILES_JAR, module]
    assert file_systems.driver_jars(arguments, complete=False) == [EXCLUSIVE_FILES_JAR]


def test_a_home_in_azures_storage_needs_its_module_and_no_class_of_this_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = Path("connector.jar")
    system = replace(file_systems.FILE_SYSTEMS["abfss"], jars=lambda: [module])
    monkeypatch.setattr(file_systems, "FILE_SYSTEMS", {"abfss": system})
    assert file_systems.driver_jars(["--home", "abfss://lake@container/home"]) == [module]
    assert file_systems.driver_jars(["--home", "abfss://container/home"], complete=False) == []


@pytest.mark.parametrize("home", ["s3://key:hunter2@[b/x", "s3://key:hunter2@bucket/home", "webhdfs://a/b", "s3://b"])
def test_a_home_that_can_t_be_is_refused_before_a_command_line_has_it(home: str) -> None:
    with pytest.raises(RefusedError) as refused:
        file_systems.driver_jars(["--home", home])
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("scheme", file_systems.FILE_SYSTEMS)
def test_spark_shows_no_secret_that_hadoop_is_given(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*s3_environment.KEYS, azure_environment.KEY):
        monkeypatch.setenv(name, "hunter2")
    monkeypatch.setenv(azure_environment.ACCOUNT, "orders")
    system = file_systems.FILE_SYSTEMS[scheme]
    secret = [name for name, value in {**system.settings(), **system.keys()}.items() if "hunter2" in value]
    assert bool(secret) is (scheme in ("s3", "abfss"))
    assert [name for name in secret if not SPARKS_DEFAULT.search(name)] == []

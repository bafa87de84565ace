"""Which jars a driver is given for its home."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.jars import EXCLUSIVE_FILES_JAR
from airflow_provider_exactlyonce.streaming import file_systems


def test_a_home_on_this_machine_gets_the_class_of_this_package_with_the_other_jars() -> None:
    assert file_systems.driver_jars(["--until", "available", "--home", "/tmp/home"]) == [EXCLUSIVE_FILES_JAR]
    assert file_systems.driver_jars([]) == [EXCLUSIVE_FILES_JAR]
    assert file_systems.driver_jars([], complete=False) == [], "it goes without, too"


@pytest.mark.parametrize("arguments", [["--home", "s3://bucket/home"], ["--until", "available", "--home=s3://c@b/h"]])
def test_a_home_on_s3_needs_sparks_module_and_the_class_of_this_package(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Path("hadoop-aws.jar")
    s3 = replace(file_systems.FILE_SYSTEMS["s3"], jars=lambda: [module])
    monkeypatch.setattr(file_systems, "FILE_SYSTEMS", {"s3": s3})
    assert file_systems.driver_jars(arguments) == [EXCLUSIVE_FILES_JAR, module]
    assert file_systems.driver_jars(arguments, complete=False) == [EXCLUSIVE_FILES_JAR]

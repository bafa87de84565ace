"""What is shipped to executors, and when."""

from __future__ import annotations

import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks import packages
from airflow_provider_exactlyonce.jars.cache import cache_directory

CLUSTER = "spark://host:7077"


@pytest.fixture(scope="module")
def cache() -> Path:
    """Give the user's own cache: the archive of the wheels takes seconds to make."""
    return cache_directory()


def test_a_local_master_needs_nothing(tmp_path: Path) -> None:
    assert packages.settings_for({}, "local[4]", tmp_path) == {}
    assert list(tmp_path.iterdir()) == []


def test_hosts_that_have_everything_get_nothing(cache: Path) -> None:
    assert packages.settings_for({packages.PACKAGES: "installed"}, CLUSTER, cache) == {}


def test_another_choice_is_refused_by_name(cache: Path) -> None:
    with pytest.raises(
        SettingRefusedError, match=r"spark\.exactlyonce\.packages is 'no'; it must be 'ship or installed'"
    ):
        packages.settings_for({packages.PACKAGES: "no"}, CLUSTER, cache)


def test_executors_of_a_cluster_get_both_archives_and_know_where_they_are(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = packages.settings_for({}, CLUSTER, cache)
    wheels, package = (archive.split("#") for archive in conf["spark.archives"].split(","))
    assert conf["spark.executorEnv.PYTHONPATH"] == f"./{wheels[1]}:./{package[1]}"
    assert conf["spark.pyspark.python"] == f"python3.{sys.version_info.minor}"
    held = {name.partition("/")[0] for name in zipfile.ZipFile(wheels[0]).namelist()}
    assert {"numpy", "pandas", "pyarrow", "kafka", "xxhash", "confluent_kafka", "crc32c", "authlib", "httpx2"} <= held
    assert {"hdfs_native", "upath", "s3fs", "aiobotocore", "grpc_tools", "gcsfs", "grpc", "adlfs", "azure"} <= held
    assert held.isdisjoint({"pyspark", "airflow", "py4j", "pytest", "setuptools"})
    names = zipfile.ZipFile(package[0]).namelist()
    assert "airflow_provider_exactlyonce/streaming/commit/write_stage.py" in names
    assert not [name for name in names if name.endswith(".pyc")]
    with monkeypatch.context() as patched:
        patched.setattr(zipfile, "ZipFile", None)  # made once; another process of this user may make its own meanwhile
        assert packages.settings_for({}, CLUSTER, cache) == conf


def test_what_the_user_ships_goes_first(cache: Path) -> None:
    given = {
        "spark.archives": "models.zip",
        "spark.executorEnv.PYTHONPATH": "./mine",
        "spark.pyspark.python": "/opt/python/bin/python3.11",
    }
    conf = packages.settings_for(given, CLUSTER, cache)
    assert conf["spark.archives"].startswith("models.zip,")
    assert conf["spark.executorEnv.PYTHONPATH"].startswith("./mine:")
    assert conf["spark.pyspark.python"] == "/opt/python/bin/python3.11"


def test_a_package_that_is_not_installed_here_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.distribution

    def without_numpy(name: str) -> object:
        if name == "numpy":
            raise metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(metadata, "distribution", without_numpy)
    with pytest.raises(RefusedError, match=r"package numpy is not installed here.*exactlyonce\[spark\]"):
        packages.wheels(cache)

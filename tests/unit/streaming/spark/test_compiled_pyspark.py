"""Which archive of PySpark is left out of the module search path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.streaming.spark import compiled_pyspark


def installed(packages: Path) -> str:
    """Make what pip installs; returns the archive in it."""
    archive = packages / "pyspark" / "python" / "lib" / "pyspark.zip"
    archive.parent.mkdir(parents=True)
    archive.touch()
    (packages / "pyspark" / "__init__.py").touch()
    return str(archive)


def test_the_archive_is_left_out_where_its_files_are_found_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = installed(tmp_path)
    monkeypatch.setattr(sys, "path", ["here", archive, "there", str(tmp_path)])
    compiled_pyspark.prefer()
    assert sys.path == ["here", "there", str(tmp_path)]


def test_the_archive_of_another_installation_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's own version counts, not that of the PySpark which happens to be installed beside the job."""
    archive = installed(tmp_path / "spark")
    installed(tmp_path / "other")
    path = [archive, str(tmp_path / "other")]
    monkeypatch.setattr(sys, "path", list(path))
    compiled_pyspark.prefer()
    assert sys.path == path


def test_the_archive_of_a_spark_that_pip_has_not_installed_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = tmp_path / "spark" / "python" / "lib" / "pyspark.zip"
    path = [str(archive), str(tmp_path), "", "lib/pyspark.zip"]
    monkeypatch.setattr(sys, "path", list(path))
    compiled_pyspark.prefer()
    assert sys.path == path

"""A JVM of Spark starts from the archive of its classes, and as well without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.spark import spark_submit


@pytest.fixture(scope="module", autouse=True)
def archive() -> None:
    """Have the archive, also if another process makes it now."""
    class_archive.make(print)


def submitted(folder: Path, java_options: str = "") -> tuple[str, str]:
    """Let spark-submit tell its version; returns what it prints, and where the JVM has its classes from."""
    log = folder / "classes.log"
    options = class_archive.environment({"SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={log}"}, {})
    done = subprocess.run(
        [spark_submit(), "--conf", f"spark.driver.extraJavaOptions={java_options}", "--version"],
        env={**os.environ, "PYSPARK_DRIVER_PYTHON": sys.executable, **options},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout + done.stderr, log.read_text()


ARCHIVED = "org.apache.spark.deploy.SparkSubmit source: shared objects file (top)"


def test_the_jvm_has_sparks_classes_from_the_archive(tmp_path: Path) -> None:
    printed, classes = submitted(tmp_path)
    assert ARCHIVED in classes
    assert "archive" not in printed


@pytest.mark.slow
def test_an_archive_of_the_users_own_is_used_instead(tmp_path: Path) -> None:
    printed, classes = submitted(tmp_path, f"-XX:SharedArchiveFile={tmp_path / 'mine.jsa'}")
    assert ARCHIVED not in classes
    assert "version" in printed


@pytest.mark.slow
def test_an_archive_of_something_else_is_ignored_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.jsa"
    other.write_bytes(bytes(1 << 20))
    monkeypatch.setattr(class_archive, "find", lambda: other)
    printed, classes = submitted(tmp_path)
    assert ARCHIVED not in classes
    assert "archive" not in printed

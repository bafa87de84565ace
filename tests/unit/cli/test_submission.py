"""What a command hands the driver that it starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.cli.submission import environment
from airflow_provider_exactlyonce.jars import class_archive


def test_a_driver_starts_from_the_archive_and_keeps_its_own_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine=1")
    monkeypatch.setattr(class_archive, "find", lambda: None)
    assert "SPARK_SUBMIT_OPTS" not in environment({}, {})
    monkeypatch.setattr(class_archive, "find", lambda: tmp_path / "classes.jsa")
    options = environment({}, {})["SPARK_SUBMIT_OPTS"].split()
    assert f"-XX:SharedArchiveFile={tmp_path / 'classes.jsa'}" in options
    assert options[-1] == "-Dmine=1"

"""Which Java is taken, and what is said when none will do."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import MissingRequirementError
from airflow_provider_exactlyonce.jars.java import java_executable, java_version


def make_java(home: Path, answer: str) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(f"#!/bin/sh\necho '{answer}' >&2\n")
    executable.chmod(0o755)
    return executable


def test_the_installed_java_is_new_enough() -> None:
    assert java_version(str(java_executable())) >= 17


@pytest.mark.parametrize(
    ("answer", "version"),
    [('java version "1.8.0_402"', 8), ('openjdk version "17.0.15" 2025-04-15', 17), ('openjdk version "21" 2023', 21)],
)
def test_old_and_new_version_strings_are_understood(tmp_path: Path, answer: str, version: int) -> None:
    assert java_version(str(make_java(tmp_path, answer))) == version


def test_a_java_that_is_too_old_is_refused_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executable = make_java(tmp_path, 'openjdk version "11.0.2" 2019-01-15')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(
        MissingRequirementError, match=rf"{executable} is Java 11; 17 is needed: .*openjdk-17-jre-headless"
    ):
        java_executable()


def test_no_java_at_all_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingRequirementError, match=r"no `java` on the PATH: .*openjdk-17-jre-headless"):
        java_executable()


def test_a_java_home_without_java_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(MissingRequirementError, match=r"JAVA_HOME is .* which has no bin/java"):
        java_executable()


def test_a_java_that_does_not_run_is_named(tmp_path: Path) -> None:
    executable = make_java(tmp_path, "")
    with pytest.raises(MissingRequirementError, match="doesn't say its version"):
        java_version(str(executable))
    executable.write_text("#!/nowhere/sh\n")
    java_version.cache_clear()
    with pytest.raises(MissingRequirementError, match="doesn't run"):
        java_version(str(executable))

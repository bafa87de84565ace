"""The words that start a JVM."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.jars import java


def test_what_kafka_opts_says_comes_after_what_is_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "java_executable", lambda: Path("/jdk/bin/java"))
    monkeypatch.setenv("KAFKA_OPTS", "-Xmx1g '-Dname=two words'")
    command = java.java_command("a.jar:b.jar", 128, "-Dours=1")
    assert command[command.index("-Dours=1") :] == ["-Dours=1", "-Xmx1g", "-Dname=two words", "-cp", "a.jar:b.jar"]
    assert command.index("-Xmx128m") < command.index("-Xmx1g"), "the JVM takes the last"

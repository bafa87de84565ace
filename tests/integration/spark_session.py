"""Spark in the tests' own process: one JVM for all sessions, and for drivers that are run here."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_provider_exactlyonce.jars import class_archive
from airflow_provider_exactlyonce.jars.cache import spark_connector_jars
from airflow_provider_exactlyonce.streaming import file_systems
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from tests.integration.streaming.harness import CONF

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def one_jvm() -> Iterator[None]:
    """Make sessions and drivers in this process, one after the other, share a JVM, which ends with them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    of_files = file_systems.session_settings(Path())
    jars = ",".join([*map(str, spark_connector_jars()), of_files.pop("spark.jars")])
    arguments = ["--jars", jars]
    for name, value in {
        **CONF,
        **of_files,
        "spark.ui.showConsoleProgress": "false",
        "spark.master": "local[2]",
    }.items():
        arguments += ["--conf", f"{name}={value}"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_SUBMIT_ARGS", f"{shlex.join(arguments)} pyspark-shell")
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        for name, value in class_archive.environment(os.environ, CONF).items():
            patched.setenv(name, value)
        patched.setattr(SparkSession, "stop", lambda _: None)  # the next one takes the session over
        yield
    if (gateway := SparkContext._gateway) is not None:
        if (active := SparkSession.getActiveSession()) is not None:
            active.stop()
        gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
        gateway.proc.wait()
        gateway.shutdown()  # before that, py4j would wait for a thread that reads what the JVM may still send
        SparkContext._gateway = SparkContext._jvm = None


@contextmanager
def spark_session(settings: Mapping[str, str], *, log_level: str) -> Iterator[SparkSession]:
    """Give the session of the shared JVM.

    :param settings: of the session for as long as it is given
    """
    session = open_session("tests")
    before = {name: session.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        session.conf.set(name, value)
    session.sparkContext.setLogLevel(log_level)
    yield session
    for name, old in before.items():
        session.conf.unset(name) if old is None else session.conf.set(name, old)

"""A Spark session in the tests' own process, for what needs no driver of its own."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.streaming import settings
from tests.integration.streaming.harness import CONF


@contextmanager
def spark_session(conf: Mapping[str, str], *, log_level: str) -> Iterator[Any]:
    """Give a session with what the protocol needs; its JVM ends with it."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        **settings.submit_settings(conf),
        "spark.jars": ",".join(map(str, spark_connector_jars())),
        "spark.ui.showConsoleProgress": "false",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel(log_level)
    yield session
    session.stop()
    end_jvm()


@contextmanager
def one_jvm() -> Iterator[None]:
    """Make drivers that run in this process, one after the other, share a JVM, which ends with them."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    arguments = ["--jars", ",".join(map(str, spark_connector_jars()))]
    for name, value in {**CONF, "spark.ui.showConsoleProgress": "false", "spark.master": "local[2]"}.items():
        arguments += ["--conf", f"{name}={value}"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYSPARK_SUBMIT_ARGS", f"{shlex.join(arguments)} pyspark-shell")
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        patched.setattr(SparkSession, "stop", lambda _: None)  # the next driver takes the session over
        yield
    if SparkContext._gateway is not None:
        if (active := SparkSession.getActiveSession()) is not None:
            active.stop()
        end_jvm()


def end_jvm() -> None:
    """End the JVM of this process's sessions, if there is one; the next session starts its own."""
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None

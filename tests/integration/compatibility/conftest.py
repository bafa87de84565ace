from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.streaming import settings
from tests.integration.streaming.harness import CONF


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Give one session for all versions of all pipelines; its JVM ends with the package's tests."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        **settings.submit_settings(CONF),
        "spark.jars": ",".join(map(str, spark_connector_jars())),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.streaming.numRecentProgressUpdates": "1",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
    gateway.proc.wait(30)
    type(session.sparkContext)._gateway = type(session.sparkContext)._jvm = None

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from tests.integration.restore.harness import Bench
from tests.integration.spark_session import end_jvm
from tests.integration.streaming.harness import CONF


@pytest.fixture(scope="package")
def jvm() -> Iterator[None]:
    """Make the drivers of this package, which run in this process one after the other, share one JVM."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    arguments = ["--jars", ",".join(map(str, spark_connector_jars()))]
    for name, value in {**CONF, "spark.ui.showConsoleProgress": "false", "spark.master": "local[2]"}.items():
        arguments += ["--conf", f"{name}={value}"]
    with pytest.MonkeyPatch.context() as patched:  # it may be there twice, for this package and the one around it
        patched.setenv("PYSPARK_SUBMIT_ARGS", f"{shlex.join(arguments)} pyspark-shell")
        patched.setenv("PYSPARK_PYTHON", sys.executable)
        patched.setattr(SparkSession, "stop", lambda _: None)  # the next driver takes the session over
        yield
    if SparkContext._gateway is not None:
        if (active := SparkSession.getActiveSession()) is not None:
            active.stop()
        end_jvm()


@pytest.fixture
def bench(jvm: None, tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Bench:
    """Give what runs pipelines in this process."""
    return Bench(kafka_config, tmp_path, make_topic)

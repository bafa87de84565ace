from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.devkit.jars import spark_connector_jars
from airflow_provider_exactlyonce.streaming import settings
from tests.integration.streaming.harness import World


@pytest.fixture
def world(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], spark_classes: None
) -> Iterator[World]:
    """Give a pipeline that has never run, with topics of its own; end its drivers afterwards."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(config=kafka_config, pipeline=f"p-{source}", source=source, sink=sink, home=tmp_path / "home")
    yield world
    world.end()


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Give a session in this process, for what needs no driver of its own; its JVM ends with the package's tests."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]")
    for name, value in {
        **settings.submit_settings({}),
        "spark.jars": ",".join(map(str, spark_connector_jars())),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
    gateway.proc.wait(30)
    type(session.sparkContext)._gateway = type(session.sparkContext)._jvm = None

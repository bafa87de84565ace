from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.streaming.harness import World


@pytest.fixture
def world(tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Iterator[World]:
    """Give a pipeline that has never run, with topics of its own; end its drivers afterwards."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(config=kafka_config, pipeline=f"p-{source}", source=source, sink=sink, home=tmp_path / "home")
    yield world
    world.end()


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Give a small Spark session in this process; its JVM ends with the module's last test."""
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    yield session
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM ends with its parent's pipe
    gateway.proc.wait(30)
    type(session.sparkContext)._gateway = type(session.sparkContext)._jvm = None

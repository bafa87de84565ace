from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.integration.spark_session import spark_session
from tests.integration.streaming.harness import World
from tests.shared_jvm import SharedJvm


@pytest.fixture
def world(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], shared_jvm: SharedJvm
) -> Iterator[World]:
    """Give a pipeline that has never run, with topics of its own; end its drivers afterwards."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "home", jvm=shared_jvm)
    yield world
    world.end()


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Give a session in this process, for what needs no driver of its own; its JVM ends with the package's tests."""
    conf = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    with spark_session(conf, log_level="ERROR") as session:
        yield session

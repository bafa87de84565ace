from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.streaming.harness import World


@pytest.fixture
def world(tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Iterator[World]:
    """Give a pipeline that has never run, with topics of its own; end its drivers afterwards."""
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(config=kafka_config, pipeline=f"p-{source}", source=source, sink=sink, home=tmp_path / "home")
    yield world
    world.end()

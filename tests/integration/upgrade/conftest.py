from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.streaming.harness import World
from tests.integration.upgrade.harness import Story
from tests.shared_jvm import SharedJvm


@pytest.fixture
def story(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], shared_jvm: SharedJvm
) -> Iterator[Story]:
    """Give a pipeline that has never run, and end whatever of it runs afterwards."""
    source, sink = make_topic(partitions=2), make_topic(partitions=2)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "home", jvm=shared_jvm)
    made = Story(world, tmp_path)
    yield made
    made.end()

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

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


@pytest.fixture
def signals_as_before() -> Iterator[None]:
    """Take back what drivers that run in this process have set."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.integration.streaming.replay.harness import Bench


@pytest.fixture
def bench(jvm: None, tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Bench:
    """Give what runs pipelines in this process."""
    return Bench(kafka_config, tmp_path, make_topic)

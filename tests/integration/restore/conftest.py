from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.integration.restore.harness import Bench
from tests.integration.spark_session import one_jvm


@pytest.fixture(scope="package")
def jvm() -> Iterator[None]:
    """Make the drivers of this package, which run in this process one after the other, share one JVM."""
    with one_jvm():
        yield


@pytest.fixture
def bench(jvm: None, tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]) -> Bench:
    """Give what runs pipelines in this process."""
    return Bench(kafka_config, tmp_path, make_topic)

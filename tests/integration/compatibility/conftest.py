from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.spark_session import spark_session
from tests.integration.streaming.harness import CONF


@pytest.fixture(scope="package")
def spark() -> Iterator[Any]:
    """Give one session for all versions of all pipelines; its JVM ends with the package's tests."""
    with spark_session({**CONF, "spark.sql.streaming.numRecentProgressUpdates": "1"}, log_level="OFF") as session:
        yield session

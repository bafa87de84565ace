from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="package")
def spark(jvm: None) -> Iterator[SparkSession]:
    """Give one session for all versions of all pipelines."""
    with spark_session({"spark.sql.streaming.numRecentProgressUpdates": "1"}, log_level="OFF") as session:
        yield session

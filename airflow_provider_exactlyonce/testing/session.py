"""A local Spark session for tests of jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.streaming import file_systems
from airflow_provider_exactlyonce.streaming.spark.session import planning_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL: Final = {
    "spark.app.name": "exactlyonce job test",
    "spark.master": "local[2]",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def local_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a local session with the settings that drivers have, and stop it afterwards: one for all tests.

    :param conf: more Spark settings
    """
    with planning_session({**_SMALL, **file_systems.session_settings(Path()), **(conf or {})}) as session:
        yield session

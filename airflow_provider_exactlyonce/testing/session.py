"""A local Spark session for tests of jobs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.streaming import file_systems, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SMALL: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.shuffle.partitions": "2",
}


@contextmanager
def local_session(conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """Give a local session with the settings that drivers have, and stop it afterwards: one for all tests.

    :param conf: more Spark settings
    """
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[2]").appName("exactlyonce job test")
    asked = {**_SMALL, **file_systems.session_settings(Path()), **(conf or {})}
    for name, value in settings.submit_settings(asked).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()

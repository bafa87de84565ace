"""A Spark session on two cores, in the benchmark's own process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_session(settings: Mapping[str, str], *, log_level: str = "ERROR") -> SparkSession:
    """Make the session; more cores than two would only make the broker wait, and the UI costs memory."""
    from pyspark.sql import SparkSession

    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    spark = SparkSession.builder.master("local[2]").config(map={**quiet, **settings}).getOrCreate()
    spark.sparkContext.setLogLevel(log_level)
    return spark

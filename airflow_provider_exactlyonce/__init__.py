"""Exactly-once PySpark streams, run from Apache Airflow."""

from airflow_provider_exactlyonce._moved import find_moved_modules

__version__ = "0.2.0"

find_moved_modules()

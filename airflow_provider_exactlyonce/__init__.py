"""Exactly-once PySpark streams, run from Apache Airflow."""

__version__ = "0.2.0"

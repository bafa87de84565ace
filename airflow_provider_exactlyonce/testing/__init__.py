"""Tests of a job: rows in, rows out, batch by batch, without Kafka and without a cluster.

Users import it, and for a sink of their own the conformance suite. The package itself does not; functions of keyed
state have a harness without Spark in ``state``.
"""

from airflow_provider_exactlyonce.testing.job import JobBatch, OutputRecord, run_job
from airflow_provider_exactlyonce.testing.records import InputRecord
from airflow_provider_exactlyonce.testing.session import local_session

__all__ = ["InputRecord", "JobBatch", "OutputRecord", "local_session", "run_job"]

"""Moved to :mod:`airflow_provider_exactlyonce.testing.sink_conformance`; this name is deleted in 0.3."""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "testing.sink_conformance")

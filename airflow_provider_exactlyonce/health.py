"""Moved to :mod:`airflow_provider_exactlyonce.policies.health_rules`; this name is deleted in 0.3."""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "policies.health_rules")

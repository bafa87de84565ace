"""Moved to :mod:`airflow_provider_exactlyonce.policies.restart_strategy`; this name is deleted in 0.3."""

from airflow_provider_exactlyonce._moved import moved

__getattr__ = moved(__name__, "policies.restart_strategy")

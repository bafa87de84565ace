"""The devkit's own error."""

from __future__ import annotations

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError


class DevkitError(ExactlyOnceError):
    """The machine lacks a requirement of the embedded broker; the message names it, and how to get it."""

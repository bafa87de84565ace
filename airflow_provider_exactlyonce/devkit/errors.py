"""The devkit's own error."""

from __future__ import annotations

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError


class DevkitError(ExactlyOnceError):
    """The machine lacks something that the embedded broker needs; the message says what, and how to get it."""

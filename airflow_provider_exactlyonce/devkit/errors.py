"""The devkit's own error."""

from __future__ import annotations

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError


class DevkitError(ExactlyOnceError):
    """The embedded broker can't start, stop or make a topic; the message says why, and what to do."""

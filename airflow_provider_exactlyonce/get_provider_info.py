"""What Airflow's providers manager wants to know about the package; imports nothing heavy."""

from __future__ import annotations

from typing import Any


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, as Airflow's ``provider_info.schema.json`` defines it."""
    return {
        "package-name": "airflow-provider-exactlyonce",
        "name": "Exactly Once",
        "description": "Exactly-once PySpark streams from Kafka to Kafka: one transaction per micro-batch, "
        "a commit ledger, gates and restarts.",
    }

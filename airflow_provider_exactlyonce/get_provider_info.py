"""The package's description for Airflow's providers manager; imports nothing."""

from __future__ import annotations

from typing import Any, Final

_PACKAGE: Final = "airflow_provider_exactlyonce"
_INTEGRATION: Final = "Exactly Once"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, as Airflow's ``provider_info.schema.json`` defines it."""
    return {
        "package-name": "airflow-provider-exactlyonce",
        "name": "Exactly Once",
        "description": "Exactly-once PySpark streams from Kafka to Kafka: one Kafka transaction per micro-batch, "
        "a commit ledger, gates and restarts. The documentation is installed with it: exactlyonce help.",
        "integrations": [
            {
                "integration-name": _INTEGRATION,
                "external-doc-url": "https://spark.apache.org/docs/latest/streaming/index.html",
                "tags": ["apache", "software"],
            }
        ],
        "operators": [
            _modules(
                "operators.audit",
                "operators.backfill",
                "operators.retry",
                "operators.savepoint",
                "operators.streaming",
                "operators.upgrade",
            )
        ],
        "sensors": [
            _modules("sensors.commit_gate", "sensors.kafka_transactions", "sensors.pipeline_state", "sensors.polling")
        ],
        "triggers": [
            _modules(
                "triggers.commit_gate",
                "triggers.committed_ranges",
                "triggers.driver",
                "triggers.home_checker",
                "triggers.kafka_transactions",
                "triggers.log_throttle",
                "triggers.pipeline",
                "triggers.pipeline_state",
                "triggers.polling",
                "triggers.shared_poller",
                "triggers.upgrade",
            )
        ],
        "hooks": [
            _modules(
                "hooks.arguments",
                "hooks.azure",
                "hooks.clusters",
                "hooks.connections",
                "hooks.google_cloud",
                "hooks.home",
                "hooks.kafka",
                "hooks.launch",
                "hooks.lineage",
                "hooks.metrics",
                "hooks.object_storage",
                "hooks.packages",
                "hooks.spark_submit",
            )
        ],
        "asset-uris": [{"schemes": ["exactlyonce"], "handler": f"{_PACKAGE}.assets.pipeline.sanitize_uri"}],
        "extra-links": [
            f"{_PACKAGE}.links.audit.AuditReportLink",
            f"{_PACKAGE}.links.pipeline.PipelineStatusLink",
            f"{_PACKAGE}.links.pipeline.SavepointLink",
            f"{_PACKAGE}.links.spark.SparkApplicationLink",
            f"{_PACKAGE}.links.spark.SparkUILink",
        ],
    }


def _modules(*names: str) -> dict[str, Any]:
    return {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.{name}" for name in names]}

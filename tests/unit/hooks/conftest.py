"""Connections to clusters, and what stands for a provider that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_module

PASSWORD = "kafka-password-4711"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Give a function that sets the connection of type spark."""
    kafka = {"bootstrap.servers": "broker:9092", "sasl.password": PASSWORD}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": kafka}))

    def set_to(host: str, **extra: str) -> None:
        connection = {"conn_type": "spark", "host": host, "extra": {"deploy-mode": "cluster", **extra}}
        monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))

    return set_to


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Stand in for Airflow's Kubernetes provider, which costs each import of the Spark provider's hook seconds.

    Only its few lines that make a client of the official package are replaced; a test says what they return.
    """
    client = ModuleType("airflow.providers.cncf.kubernetes.kube_client")

    monkeypatch.setattr(spark_submit_module, "kube_client", client, raising=False)
    return client

"""Connections to clusters, and what stands for a provider that is not there."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import pytest
from airflow.providers.apache.spark.hooks import spark_submit as spark_submit_module
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

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


@pytest.fixture(scope="package")
def key() -> dict[str, str]:
    """Give a service account's key."""
    private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return {
        "type": "service_account",
        "client_email": "streams@project.iam.gserviceaccount.com",
        "token_uri": "https://oauth2.googleapis.com/token",
        "private_key": private.private_bytes(*form).decode(),
    }

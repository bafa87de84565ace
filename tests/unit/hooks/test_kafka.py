"""From a connection to client configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowNotFoundException

from airflow_provider_exactlyonce.exceptions import RefusedError, SettingRefusedError
from airflow_provider_exactlyonce.hooks.kafka import client_config, driver_config, source_config, sources_config
from airflow_provider_exactlyonce.kafka.config import parse
from airflow_provider_exactlyonce.ledger.source_clusters import from_environment


def connect(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any]) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_SHOP", json.dumps({"conn_type": "kafka", "extra": extra}))


def test_cluster_and_credentials_are_taken_and_what_is_for_other_clients_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours = {
        "bootstrap.servers": "broker:9092",
        "client.id": "shop",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": "/ca.pem",
        "socket.keepalive.enable": True,
    }
    others = {
        "group.id": "my-group",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "transactional.id": "t",
        "isolation.level": "read_uncommitted",
        "linger.ms": 5,
    }
    connect(monkeypatch, {**ours, **others})
    assert client_config("kafka_shop") == ours


def test_the_driver_reads_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"bootstrap.servers": "broker:9092", "group.id": "g", "socket.timeout.ms": 1000})
    assert parse(driver_config("kafka_shop")) == {"bootstrap.servers": "broker:9092", "socket.timeout.ms": "1000"}


def test_a_setting_that_is_null_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"bootstrap.servers": "broker:9092", "sasl.mechanism": None, "ssl.ca.location": None})
    assert client_config("kafka_shop") == parse(driver_config("kafka_shop")) == {"bootstrap.servers": "broker:9092"}


def test_a_driver_reads_the_connections_of_sources_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"bootstrap.servers": "broker:9092", "group.id": "g", "sasl.password": "p"})
    monkeypatch.setenv("EXACTLYONCE_SOURCES", sources_config(["kafka_shop"]))
    assert from_environment("kafka_shop") == source_config("kafka_shop")
    with pytest.raises(RefusedError, match="are read through the connection kafka_gone"):
        source_config("kafka_gone")


def test_a_connection_to_a_tables_store_says_what_delta_rs_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = {"conn_type": "aws", "login": "key", "password": "hush", "extra": {"region_name": "eu-west-1"}}
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps(connection))
    told = {"aws_access_key_id": "key", "aws_secret_access_key": "hush", "aws_region": "eu-west-1"}
    assert source_config("lake") == told


def test_a_callback_can_not_be_handed_to_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__APACHE_KAFKA__CALLBACK_ALLOWLIST", "json.dumps")
    connect(monkeypatch, {"bootstrap.servers": "broker:9092", "oauth_cb": "json.dumps"})
    with pytest.raises(SettingRefusedError, match="oauth_cb of connection kafka_shop"):
        driver_config("kafka_shop")


def test_a_connection_without_brokers_or_none_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, {"client.id": "shop"})
    for read in (client_config, source_config):
        with pytest.raises(RefusedError, match=r"connection kafka_shop: .*bootstrap\.servers.*of type kafka"):
            read("kafka_shop")
    with pytest.raises(AirflowNotFoundException):
        client_config("kafka_nowhere")

"""What a driver is told of the connections that its sinks and formats name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks import connections, spark_submit


def connect(monkeypatch: pytest.MonkeyPatch, **connection: Any) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GIVEN", json.dumps(connection))


def test_what_airflows_own_hook_keeps_for_itself_does_not_reach_libpq(monkeypatch: pytest.MonkeyPatch) -> None:
    own = dict.fromkeys(sorted(PostgresHook.ignored_extra_options - {"iam", "azure_conn_id"}), "x")
    extra = {**own, "iam": False, "sslmode": "require", "keepalives_idle": 30}
    connect(monkeypatch, conn_type="postgres", host="db", schema="shop", login="me", password="hush", extra=extra)
    told = {"host": "db", "dbname": "shop", "user": "me", "password": "hush"}
    assert json.loads(connections.postgres(["given"])) == {
        "given": {**told, "sslmode": "require", "keepalives_idle": "30"}
    }


@pytest.mark.parametrize("token", [{"iam": True, "aws_conn_id": "aws"}, {"azure_conn_id": "azure"}])
def test_a_token_that_ends_before_the_stream_is_refused(token: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, conn_type="postgres", host="db", extra=token)
    with pytest.raises(RefusedError, match=r"connection given has .* nobody would renew it"):
        connections.postgres(["given"])


def test_a_connection_of_another_type_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, conn_type="kafka", extra={"bootstrap.servers": "broker:9092"})
    with pytest.raises(RefusedError, match="connection given is of type kafka: postgres_conn_ids takes"):
        connections.postgres(["given"])
    with pytest.raises(RefusedError, match="connection given of type kafka has no host: a schema registry"):
        connections.schema_registry("given")
    with pytest.raises(RefusedError, match="connection given is of type kafka: conn_id takes one of type spark"):
        spark_submit.cluster_of("given", {})


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("https://me:hush@registry:8081", "https://registry:8081"),
        ("http://me:hush@registry:8081", "http://registry:8081"),
        ("http://me:hush@registry:8081/https", "https://registry:8081"),
    ],
)
def test_a_schema_registry_is_asked_over_what_its_uri_says(
    given: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_GIVEN", given)
    assert json.loads(connections.schema_registry("given")) == {"url": url, "basic.auth.user.info": "me:hush"}


PRINCIPAL = {"tenant_id": "here"}
KEY = {"type": "service_account", "private_key": "hush"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"conn_type": "aws", "login": "me", "password": "hush", "extra": {"endpoint_url": "http://minio:9000"}},
            {"aws_access_key_id": "me", "aws_secret_access_key": "hush", "aws_endpoint_url": "http://minio:9000"}
            | {"aws_allow_http": "true"},
        ),
        (
            {"conn_type": "wasb", "login": "shop", "password": "hush"},
            {"azure_storage_account_name": "shop", "azure_storage_account_key": "hush"}
            | {"azure_storage_endpoint": "https://shop.blob.core.windows.net"},
        ),
        (
            {"conn_type": "wasb", "host": "http://127.0.0.1:10000/shop", "password": "hush"},
            {"azure_storage_account_name": "shop", "azure_storage_account_key": "hush", "allow_http": "true"}
            | {"azure_storage_endpoint": "http://127.0.0.1:10000/shop"},
        ),
        (
            {"conn_type": "adls", "host": "shop", "login": "app", "password": "hush", "extra": PRINCIPAL},
            {"azure_storage_account_name": "shop", "azure_tenant_id": "here"}
            | {"azure_client_id": "app", "azure_client_secret": "hush"}
            | {"azure_storage_endpoint": "https://shop.blob.core.windows.net"},
        ),
        ({"conn_type": "google_cloud_platform", "extra": {"keyfile_dict": KEY}}, {"google_service_account_key": KEY}),
        ({"conn_type": "google_cloud_platform"}, {}),
        ({"conn_type": "generic", "extra": {"user": "me", "fast": True}}, {"user": "me", "fast": "true"}),
        ({"conn_type": "generic", "extra": {"google_service_account_key": KEY}}, {"google_service_account_key": KEY}),
        ({"conn_type": "aws", "extra": {"service_config": None, "region_name": "a"}}, {"aws_region": "a"}),
        ({"conn_type": "aws", "extra": {"service_config": {"s3": None}, "region_name": "a"}}, {"aws_region": "a"}),
    ],
)
def test_a_connection_to_a_store_is_told_in_delta_rs_words(
    given: dict[str, Any], told: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, **given)
    options = json.loads(connections.stores(["given"]))["given"]
    for name in options.keys() & {"google_service_account_key"}:
        options[name] = json.loads(options[name])
    assert options == told


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"conn_type": "wasb", "login": "shop", "extra": {"sas_token": "hush"}}, "has sas_token: a home or a table"),
        (
            {"conn_type": "aws", "extra": {"role_arn": "a"}},
            "has role_arn='a': delta-rs takes roles from the environment",
        ),
        (
            {"conn_type": "google_cloud_platform", "extra": {"gcs.endpoint": "http://here", "is_anonymous": True}},
            "has gcs.endpoint=http://here: a table of Delta Lake is on Google's own servers",
        ),
    ],
)
def test_a_store_that_a_table_can_not_be_in_is_refused(
    given: dict[str, Any], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, **given)
    with pytest.raises(RefusedError, match=f"connection given {why}"):
        connections.stores(["given"])

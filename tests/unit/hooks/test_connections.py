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

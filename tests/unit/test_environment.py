"""Connections of sinks as the driver finds them in its environment: found, or refused by name and without a secret."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.environment import parameters_of
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import DeltaSink, IcebergSink

VARIABLE, SECRET = "EXACTLYONCE_STORES", "hunter2"


def parameters(conn_id: str) -> dict[str, str] | None:
    return parameters_of(VARIABLE, conn_id, "delta-rs' storage options", "store_conn_ids")


def test_a_connection_is_found_in_the_variable_or_in_the_file_that_it_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = json.dumps({"lake": {"aws_region": "eu", "aws_secret_access_key": SECRET, "port": 1}})
    expected = {"aws_region": "eu", "aws_secret_access_key": SECRET, "port": "1"}
    monkeypatch.setenv(VARIABLE, known)
    assert parameters("lake") == expected
    file = tmp_path / "stores.json"
    file.write_text(known)
    monkeypatch.setenv(VARIABLE, f"@{file}")
    assert parameters("lake") == expected
    sink = DeltaSink(name="lake", path="s3://b/t", conn_id="lake", storage_options={"aws_region": "us"})
    assert sink.options == {**expected, "aws_region": "us"}
    in_capitals = DeltaSink(name="lake", path="s3://b/t", conn_id="lake", storage_options={"AWS_REGION": "us"})
    assert in_capitals.options == {"aws_secret_access_key": SECRET, "port": "1", "AWS_REGION": "us"}
    assert SECRET not in repr(sink) + repr(sink.facts)
    monkeypatch.delenv(VARIABLE)
    assert parameters("lake") is None
    assert sink.options == {"aws_region": "us"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            json.dumps({"other": {"k": SECRET}}),
            r'no connection lake\..*from store_conn_ids=\["lake"\] of the operator',
        ),
        (json.dumps([SECRET]), "has no connection lake"),
        (f"{{{SECRET}", "is not JSON"),
        ("@/nowhere/stores.json", "names the file /nowhere/stores.json, which can't be read here"),
    ],
)
def test_what_cannot_be_used_is_refused_without_its_text(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(RefusedError, match=said) as refused:
        parameters("lake")
    assert SECRET not in str(refused.value)


def test_a_catalog_has_its_connections_properties_and_over_them_those_that_are_declared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {
        "catalog": {"type": "rest", "uri": "https://lake", "credential": f"id:{SECRET}"},
        "store": {"aws_region": "eu"},
    }
    monkeypatch.setenv(VARIABLE, json.dumps(known))
    declared = IcebergSink(
        "lake.shop.payments", name="lake", conn_id="catalog", catalog_properties={"uri": "https://other"}
    )
    assert declared.properties == {**known["catalog"], "uri": "https://other"}
    assert SECRET not in repr(declared) + repr(declared.facts)
    with pytest.raises(RefusedError, match=r"connection store of sink lake has aws_region, .* of type iceberg"):
        _ = IcebergSink("lake.shop.payments", name="lake", conn_id="store").properties
    monkeypatch.delenv(VARIABLE)
    assert IcebergSink("lake.shop.payments", name="lake", conn_id="catalog").properties == {}

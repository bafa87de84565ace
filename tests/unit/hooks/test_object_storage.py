"""What a driver gets in its environment of a connection to the bucket of its home."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks.object_storage import driver_environment, split

HOME = "s3://lake@bucket/shop"
HERE = Path("/nowhere")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)


def connect(monkeypatch: pytest.MonkeyPatch, conn_type: str = "aws", extra: Any = None, **fields: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": conn_type, "extra": extra or {}, **fields}))


def test_the_connection_is_taken_out_of_the_location() -> None:
    assert split(HOME) == ("lake", "s3://bucket/shop")
    assert split("s3://bucket/shop") == (None, "s3://bucket/shop")
    assert split("/home/a@b/shop") == (None, "/home/a@b/shop")


def test_keys_are_handed_on_and_no_session_token_of_the_worker_is_mixed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {"region_name": "eu-central-1", "endpoint_url": "http://elsewhere"}
    connect(
        monkeypatch,
        extra={**extra, "service_config": {"s3": {"endpoint_url": "http://store:9000"}}},
        login="key",
        password="hunter2",
    )
    assert driver_environment(HOME, HERE) == {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "AWS_SESSION_TOKEN": None,
        "AWS_REGION": "eu-central-1",
        "AWS_DEFAULT_REGION": "eu-central-1",
        "AWS_ENDPOINT_URL": "http://store:9000",
    }


def test_a_session_token_goes_with_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "hunter2", "aws_session_token": "token"}
    connect(monkeypatch, extra=keys)
    assert driver_environment(HOME, HERE)["AWS_SESSION_TOKEN"] == "token"


def test_what_a_driver_finds_and_renews_itself_is_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, extra={"region_name": "eu-central-1"})
    assert driver_environment(HOME, HERE) == {"AWS_REGION": "eu-central-1", "AWS_DEFAULT_REGION": "eu-central-1"}
    connect(monkeypatch, extra={"profile_name": "streams"})
    none = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"))
    assert driver_environment(HOME, HERE) == {"AWS_PROFILE": "streams", **none}
    assert driver_environment("s3://bucket/shop", HERE) == {}
    assert driver_environment("/a/path", HERE) == {}


def test_a_connection_of_another_type_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, "postgres")
    with pytest.raises(RefusedError, match="connection lake is of type postgres: a home on s3: takes one of type aws"):
        driver_environment(HOME, HERE)

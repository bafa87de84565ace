"""What a task and a driver get of a connection to a storage account of Azure, for a home in a container."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from upath import UPath

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks.object_storage import check_for_cluster, driver_environment, open_place, split
from airflow_provider_exactlyonce.storage.opening import hadoop_url

HOME = "abfss://lake@box/shop"
EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"
ELSEWHERE = "https://orders.blob.core.chinacloudapi.cn"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def connect(conn_type: str = "wasb", extra: dict[str, Any] | None = None, **fields: str) -> None:
        monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": conn_type, "extra": extra or {}, **fields}))

    return connect


def opened() -> Any:
    return open_place("lake", UPath("abfss://box/shop"))


def test_the_connection_is_taken_out_of_the_location() -> None:
    assert split(HOME) == ("lake", "abfss://box/shop")


@pytest.mark.parametrize(
    ("fields", "account", "endpoint", "url"),
    [
        ({"login": "orders"}, "orders", "", "abfss://box@orders.dfs.core.windows.net/shop"),
        ({"host": "orders", "login": "x"}, "orders", "", "abfss://box@orders.dfs.core.windows.net/shop"),
        ({"host": "orders.blob.core.windows.net/"}, "orders", "", "abfss://box@orders.dfs.core.windows.net/shop"),
        ({"host": ELSEWHERE}, "orders", ELSEWHERE, "abfss://box@orders.dfs.core.chinacloudapi.cn/shop"),
    ],
)
@pytest.mark.parametrize("conn_type", ["wasb", "adls"])
@pytest.mark.parametrize("key", ["", "a2V5"])
def test_a_connection_names_the_account_and_its_key(
    connect: Callable[..., None],
    fields: dict[str, str],
    account: str,
    endpoint: str,
    url: str,
    conn_type: str,
    key: str,
    tmp_path: Path,
) -> None:
    connect(conn_type, password=key, **fields)
    assert driver_environment(HOME, tmp_path) == {
        "AZURE_STORAGE_ACCOUNT_NAME": account,
        "AZURE_STORAGE_ACCOUNT_KEY": key or None,
        "AZURE_STORAGE_ENDPOINT": endpoint or None,
    }
    place = opened()
    assert str(place) == "abfss://box/shop"
    assert hadoop_url(place) == url
    given = place.storage_options
    assert f"AccountKey={key}" in given["connection_string"] if key else given["anon"] is False


def test_an_emulator_has_its_account_in_the_path(connect: Callable[..., None], tmp_path: Path) -> None:
    connect(host=EMULATOR, password="a2V5")
    assert driver_environment(HOME, tmp_path)["AZURE_STORAGE_ENDPOINT"] == EMULATOR
    assert hadoop_url(opened()) == "abfs://box@devstoreaccount1.dfs.core.windows.net/shop"


def test_a_principal_takes_the_place_of_the_key(connect: Callable[..., None], tmp_path: Path) -> None:
    connect(extra={"tenant_id": "t"}, host="https://orders.blob.core.windows.net", login="app", password="hunter2")
    assert driver_environment(HOME, tmp_path) == {
        "AZURE_STORAGE_ACCOUNT_NAME": "orders",
        "AZURE_STORAGE_ACCOUNT_KEY": None,
        "AZURE_STORAGE_ENDPOINT": None,
        "AZURE_TENANT_ID": "t",
        "AZURE_CLIENT_ID": "app",
        "AZURE_CLIENT_SECRET": "hunter2",
    }
    given = opened().storage_options
    assert [given[name] for name in ("tenant_id", "client_id", "client_secret")] == ["t", "app", "hunter2"]


@pytest.mark.parametrize(
    ("extra", "fields", "why"),
    [
        ({}, {}, "names no storage account"),
        ({"tenant_id": "t"}, {"login": "app", "password": "x"}, "names no storage account"),
        ({"tenant_id": "t"}, {"host": "orders", "login": "app"}, "has a tenant_id: it takes"),
        ({"sas_token": "hunter2"}, {"login": "orders"}, "has sas_token"),
        ({"connection_string": "hunter2"}, {"login": "orders"}, "has connection_string"),
    ],
)
def test_what_a_driver_could_not_use_is_refused_by_name(
    connect: Callable[..., None], extra: dict[str, str], fields: dict[str, str], why: str, tmp_path: Path
) -> None:
    connect(extra=extra, **fields)
    for use in (opened, lambda: driver_environment(HOME, tmp_path)):
        with pytest.raises(RefusedError, match=why) as refused:
            use()
        assert "hunter2" not in str(refused.value)


def test_a_connection_of_another_type_is_refused(connect: Callable[..., None]) -> None:
    connect("aws")
    with pytest.raises(RefusedError, match="is of type aws: a home on abfss: takes one of type wasb or adls"):
        opened()


def test_a_driver_in_a_cluster_can_not_have_a_key(connect: Callable[..., None]) -> None:
    connect(login="orders", password="a2V5")
    with pytest.raises(RefusedError, match="has a key, which only this host has"):
        check_for_cluster(HOME)
    connect(login="orders")
    check_for_cluster(HOME)

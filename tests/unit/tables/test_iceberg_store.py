"""Locations of Iceberg's tables, as catalogs write them."""

from __future__ import annotations

import pickle
from base64 import b64encode

import pytest
from pyarrow.fs import AzureFileSystem

from airflow_provider_exactlyonce.tables.iceberg_store import IcebergStore

KEY = b64encode(b"hunter2").decode()


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs"])
@pytest.mark.parametrize("container", ["lake@shop.dfs.core.windows.net", "lake"])
def test_a_container_of_azure_may_be_followed_by_its_account(scheme: str, container: str) -> None:
    store = IcebergStore({"adls.account-key": KEY, **({} if "@" in container else {"adls.account-name": "shop"})})
    system, path = pickle.loads(pickle.dumps(store)).system(f"{scheme}://{container}/shop/events/data/0.parquet")
    assert isinstance(system, AzureFileSystem)
    assert system == AzureFileSystem(account_name="shop", account_key=KEY)
    assert path == "lake/shop/events/data/0.parquet"


@pytest.mark.parametrize("location", ["file:///lake/0.parquet", "/lake/0.parquet"])
def test_a_path_is_on_this_machine(location: str) -> None:
    assert IcebergStore({}).local(location) == "/lake/0.parquet"
    assert IcebergStore({}).local("s3://lake/0.parquet") is None

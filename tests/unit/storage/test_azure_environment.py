"""How the environment names a storage account of Azure, to Python and to Hadoop."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import azure_environment
from airflow_provider_exactlyonce.storage.azure_environment import hadoop_keys, hadoop_settings, options_of_environment
from airflow_provider_exactlyonce.storage.opening import hadoop_url, place_of, store_of

TYPE = "fs.azure.account.oauth.provider.type"
PRINCIPAL = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app", "AZURE_CLIENT_SECRET": "hunter2"}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*azure_environment.PRINCIPAL, "AZURE_FEDERATED_TOKEN_FILE", "AZURE_STORAGE_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ACCOUNT_KEY"):
        monkeypatch.delenv(name, raising=False)


def test_a_name_is_judged_without_an_account_and_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of("abfss://box/shop")
    for use in (store_of, hadoop_url):
        with pytest.raises(RefusedError, match="none is named: set AZURE_STORAGE_ACCOUNT_NAME"):
            use(place)
    with pytest.raises(RefusedError, match="names the account with the container: give abfss://container/directory"):
        place_of("abfss://box@orders.dfs.core.windows.net/shop")


def test_a_key_is_a_setting_of_hadoop_that_is_given_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "orders")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==")
    assert options_of_environment()["connection_string"] == (
        "AccountName=orders;AccountKey=aHVudGVyMg==;BlobEndpoint=https://orders.blob.core.windows.net"
    )
    assert hadoop_keys() == {"fs.azure.account.key.orders.dfs.core.windows.net": "aHVudGVyMg=="}
    settings = hadoop_settings()
    assert "aHVudGVyMg==" not in settings.values()
    assert not any(name.startswith(("fs.azure.account.auth", "fs.azure.abfs")) for name in settings)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/orders")
    assert hadoop_settings()["fs.azure.abfs.endpoint"] == "127.0.0.1:10000"
    assert hadoop_keys() == {"fs.azure.account.key.orders.dfs.core.windows.net": "aHVudGVyMg=="}


@pytest.mark.parametrize(
    ("variables", "provider", "keys"),
    [
        (PRINCIPAL, "ClientCredsTokenProvider", {"fs.azure.account.oauth2.client.secret": "hunter2"}),
        (
            {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app", "AZURE_FEDERATED_TOKEN_FILE": "/token"},
            "WorkloadIdentityTokenProvider",
            {},
        ),
        ({"AZURE_CLIENT_ID": "app"}, "MsiTokenProvider", {}),
        ({}, "MsiTokenProvider", {}),
    ],
)
def test_without_a_key_hadoop_looks_for_the_identity_that_python_finds(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], provider: str, keys: dict[str, str]
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "orders")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = hadoop_settings()
    assert settings["fs.azure.account.auth.type"] == "OAuth"
    assert settings[TYPE] == f"org.apache.hadoop.fs.azurebfs.oauth2.{provider}"
    assert settings.get("fs.azure.account.oauth2.client.id") == variables.get("AZURE_CLIENT_ID")
    assert hadoop_keys() == keys
    assert "hunter2" not in settings.values()
    assert options_of_environment()["anon"] is False

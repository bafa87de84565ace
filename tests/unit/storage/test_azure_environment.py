"""How the environment names a storage account of Azure, to Python and to Hadoop."""

from __future__ import annotations

import os

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import azure_environment
from airflow_provider_exactlyonce.storage.azure_environment import hadoop_keys, hadoop_settings, options_of_environment
from airflow_provider_exactlyonce.storage.opening import hadoop_url, place_of, store_of

HOST = "orders.dfs.core.windows.net"
PRINCIPAL = {"AZURE_TENANT_ID": "t", "AZURE_CLIENT_ID": "app", "AZURE_CLIENT_SECRET": "hunter2"}


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)


def test_a_name_is_judged_without_an_account_and_nothing_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of("abfss://box/shop")
    for use in (store_of, hadoop_url):
        with pytest.raises(RefusedError, match="none is named: set AZURE_STORAGE_ACCOUNT_NAME"):
            use(place)
    with pytest.raises(RefusedError, match="names the account with the container: give abfss://container/directory"):
        place_of("abfss://box@orders.dfs.core.windows.net/shop")


@pytest.mark.parametrize(
    ("endpoint", "key", "why"),
    [
        ("orders.blob.core.chinacloudapi.cn", "a2V5", "give https://HOST, or an emulator's"),
        ("http://orders.blob.core.windows.net", "a2V5", "give https://HOST, or an emulator's"),
        ("https://127.0.0.1:10000/orders", "a2V5", "give https://HOST, or an emulator's"),
        ("http://127.0.0.1:10000/orders", None, "an emulator needs the account's key"),
    ],
)
def test_an_endpoint_that_python_and_hadoop_would_take_for_two_is_refused(
    endpoint: str, key: str | None, why: str
) -> None:
    with pytest.raises(RefusedError, match=why):
        azure_environment.options("orders", key=key, endpoint=endpoint)


def test_a_key_without_an_account_is_of_no_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    with pytest.raises(RefusedError, match="none is named"):
        hadoop_settings()


@pytest.mark.parametrize("authority", ["https://login.chinacloudapi.cn/", "login.chinacloudapi.cn"])
def test_another_cloud_has_its_own_hosts(monkeypatch: pytest.MonkeyPatch, authority: str) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "orders")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://orders.blob.core.chinacloudapi.cn/")
    monkeypatch.setenv("AZURE_AUTHORITY_HOST", authority)
    for name, value in PRINCIPAL.items():
        monkeypatch.setenv(name, value)
    settings, host = hadoop_settings(), "orders.dfs.core.chinacloudapi.cn"
    assert (
        settings[f"fs.azure.account.oauth2.client.endpoint.{host}"] == "https://login.chinacloudapi.cn/t/oauth2/token"
    )
    monkeypatch.delenv("AZURE_CLIENT_SECRET")
    monkeypatch.setenv("AZURE_FEDERATED_TOKEN_FILE", "/token")
    authority_setting = f"fs.azure.account.oauth2.msi.authority.{host}"
    assert hadoop_settings()[authority_setting] == "https://login.chinacloudapi.cn/"


def test_a_key_is_a_setting_of_hadoop_that_is_given_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "orders")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "aHVudGVyMg==")
    assert options_of_environment()["connection_string"] == (
        "AccountName=orders;AccountKey=aHVudGVyMg==;BlobEndpoint=https://orders.blob.core.windows.net"
    )
    assert hadoop_keys() == {"exactlyonce.azure.secret": "aHVudGVyMg=="}
    settings = hadoop_settings()
    assert "aHVudGVyMg==" not in settings.values()
    assert settings[f"fs.azure.account.key.{HOST}"] == "${exactlyonce.azure.secret}"
    assert settings[f"fs.azure.account.auth.type.{HOST}"] == "SharedKey"
    assert "fs.azure.abfs.endpoint" not in settings
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:10000/orders")
    assert hadoop_settings()["fs.azure.abfs.endpoint"] == "127.0.0.1:10000"
    assert hadoop_settings()[f"fs.azure.account.key.{HOST}"] == "${exactlyonce.azure.secret}"


@pytest.mark.parametrize(
    ("variables", "provider", "keys"),
    [
        (PRINCIPAL, "ClientCredsTokenProvider", {"exactlyonce.azure.secret": "hunter2"}),
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
    of_account = {name[17 : -len(HOST) - 1]: value for name, value in settings.items() if name.endswith(HOST)}
    assert of_account["auth.type"] == "OAuth"
    assert of_account["oauth.provider.type"] == f"org.apache.hadoop.fs.azurebfs.oauth2.{provider}"
    assert of_account.get("oauth2.client.id") == variables.get("AZURE_CLIENT_ID")
    assert ("oauth2.client.secret" in of_account) is bool(keys)
    assert hadoop_keys() == keys
    assert "hunter2" not in settings.values()
    assert options_of_environment()["anon"] is False

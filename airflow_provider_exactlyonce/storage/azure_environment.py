"""What the environment says of a storage account of Azure, as Azure's tools read it: for adlfs, and for Hadoop.

A container is one of an account. Without the account's key both find the credentials by themselves: a service
principal in the environment, a workload identity, or the host's managed identity.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: The account's name, and its key.
ACCOUNT: Final = "AZURE_STORAGE_ACCOUNT_NAME"
KEY: Final = "AZURE_STORAGE_ACCOUNT_KEY"
#: Where its blobs are, when that is not Azure's public cloud: another one, or an emulator.
ENDPOINT: Final = "AZURE_STORAGE_ENDPOINT"
#: A service principal: its directory, its name, and its secret.
PRINCIPAL: Final = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")

_FEDERATED: Final = "AZURE_FEDERATED_TOKEN_FILE"
_OAUTH: Final = "fs.azure.account.oauth2"
_PROVIDERS: Final = "org.apache.hadoop.fs.azurebfs.oauth2"


def options_of_environment() -> dict[str, Any]:
    """Return what adlfs is given; nothing of an account that nobody has named."""
    account = os.environ.get(ACCOUNT)
    return options(account, key=os.environ.get(KEY), endpoint=os.environ.get(ENDPOINT)) if account else {}


def options(
    account: str, *, key: str | None = None, endpoint: str | None = None, principal: tuple[str, str, str] | None = None
) -> dict[str, Any]:
    """Return what adlfs is given: it keeps no listings, since others write there, too.

    :param key: of the account; without it, and without a principal, the credentials are those that are found
    :param endpoint: URL of its blobs, None for Azure's public cloud
    :param principal: its directory, its name, and its secret
    """
    url = (endpoint or f"https://{account}.blob.core.windows.net").rstrip("/")
    found: dict[str, Any] = {"anon": False}
    if key:
        words = {"AccountName": account, "AccountKey": key, "BlobEndpoint": url}
        found = {"connection_string": ";".join(f"{name}={value}" for name, value in words.items())}
    elif principal:
        found = dict(zip(("tenant_id", "client_id", "client_secret"), principal, strict=True))
    # With a connection string it asks nobody for the host.
    return {"account_name": account, "account_host": urlsplit(url).netloc, "use_listings_cache": False, **found}


def endpoint_of(given: Mapping[str, Any]) -> str:
    """Return the URL of an account's blobs.

    :param given: what :func:`options` has made
    :raises RefusedError: when no account was named
    """
    if not given.get("account_name"):
        raise RefusedError(
            f"a home on abfss: is in a container of a storage account, and none is named: set {ACCOUNT}, or in a DAG "
            "name a connection: abfss://CONN_ID@CONTAINER/DIRECTORY"
        )
    words = dict(word.split("=", 1) for word in given.get("connection_string", "").split(";") if word)
    return words.get("BlobEndpoint") or f"https://{given['account_host']}"


def system_of(place: Any) -> AbstractFileSystem:
    """Return the file system of a place.

    :raises RefusedError: when no account was named
    """
    endpoint_of(place.storage_options)
    return place.fs


def hadoop_url(place: Any) -> str:
    """Return what Hadoop is told instead of a place: it wants the account there.

    :raises RefusedError: when no account was named
    """
    container, _, path = place.path.partition("/")
    given = place.storage_options
    endpoint = endpoint_of(given)
    scheme = "abfs" if _is_emulator(endpoint) else "abfss"
    return f"{scheme}://{container}@{_hadoop_account(given['account_name'], endpoint)}/{path.strip('/')}"


def hadoop_settings() -> dict[str, str]:
    """Return what Hadoop is told of the account that the environment names; none is a secret."""
    given = options_of_environment()
    endpoint = endpoint_of(given)
    settings = {
        "fs.abfs.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        "fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
        "fs.AbstractFileSystem.abfs.impl": "org.apache.hadoop.fs.azurebfs.Abfs",
        "fs.AbstractFileSystem.abfss.impl": "org.apache.hadoop.fs.azurebfs.Abfss",
        # Its threads, two of each client, would keep the JVM from ending.
        "fs.azure.metrics.collection.enabled": "false",
    }
    if not os.environ.get(KEY):
        settings |= {"fs.azure.account.auth.type": "OAuth", **_identity()}
    if _is_emulator(endpoint):
        settings |= {
            "fs.azure.abfs.endpoint": urlsplit(endpoint).netloc,
            "fs.azure.account.hns.enabled": "false",  # it has blobs, and no directories
            "fs.azure.fns.account.service.type": "BLOB",
            "fs.azure.ingress.service.type": "BLOB",
            "fs.azure.always.use.https": "false",
            "fs.azure.networking.library": "JDK_HTTP_URL_CONNECTION",  # Apache's can't do without TLS there
        }
    return settings


def hadoop_keys() -> dict[str, str]:
    """Return the secrets of the environment as settings of Hadoop, which does not look there."""
    given = options_of_environment()
    secret = os.environ.get(PRINCIPAL[2])
    if key := os.environ.get(KEY):
        return {f"fs.azure.account.key.{_hadoop_account(given['account_name'], endpoint_of(given))}": key}
    return {f"{_OAUTH}.client.secret": secret} if secret else {}


def _identity() -> dict[str, str]:
    """Return how Hadoop gets a token, in the order in which Azure's library for Python looks."""
    tenant, client, secret = map(os.environ.get, PRINCIPAL)
    known = {f"{_OAUTH}.client.id": client} if client else {}
    if tenant and client and secret:
        return {
            "fs.azure.account.oauth.provider.type": f"{_PROVIDERS}.ClientCredsTokenProvider",
            f"{_OAUTH}.client.endpoint": f"https://login.microsoftonline.com/{tenant}/oauth2/token",
            **known,
        }
    if tenant and client and (token := os.environ.get(_FEDERATED)):
        return {
            "fs.azure.account.oauth.provider.type": f"{_PROVIDERS}.WorkloadIdentityTokenProvider",
            f"{_OAUTH}.msi.tenant": tenant,
            f"{_OAUTH}.token.file": token,
            **known,
        }
    return {"fs.azure.account.oauth.provider.type": f"{_PROVIDERS}.MsiTokenProvider", **known}


def _is_emulator(endpoint: str) -> bool:
    """Whether the account is in the path, and not in the host's name."""
    return bool(urlsplit(endpoint).path)


def _hadoop_account(account: str, endpoint: str) -> str:
    """Return the account as a host of Azure's other interface, in which Hadoop wants it named; an emulator's, too."""
    host = f"{account}.blob.core.windows.net" if _is_emulator(endpoint) else urlsplit(endpoint).netloc
    return host.replace(".blob.", ".dfs.", 1)

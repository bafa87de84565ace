"""Reads a storage account of Azure from the environment, as Azure's tools do: for adlfs, and for Hadoop.

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
#: Where Azure's libraries get tokens, when that is not the public cloud's server.
_AUTHORITY: Final = "AZURE_AUTHORITY_HOST"
#: A service principal: its directory, its name, and its secret.
PRINCIPAL: Final = ("AZURE_TENANT_ID", "AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET")

_FEDERATED: Final = "AZURE_FEDERATED_TOKEN_FILE"
#: The setting that has the secret: Spark hides settings with this word in their name, and Hadoop's own lacks it.
_SECRET: Final = "exactlyonce.azure.secret"
_PROVIDERS: Final = "org.apache.hadoop.fs.azurebfs.oauth2"


def options_of_environment() -> dict[str, Any]:
    """Return the arguments of adlfs; empty when no account is named."""
    account = os.environ.get(ACCOUNT)
    return options(account, key=os.environ.get(KEY), endpoint=os.environ.get(ENDPOINT)) if account else {}


def options(
    account: str, *, key: str | None = None, endpoint: str | None = None, principal: tuple[str, str, str] | None = None
) -> dict[str, Any]:
    """Return the arguments of adlfs: it keeps no listings, since other processes write there, too.

    :param key: of the account; without it, and without a principal, the credentials are those that are found
    :param endpoint: URL of its blobs, None for Azure's public cloud
    :param principal: its directory, its name, and its secret
    :raises RefusedError: when the endpoint is no URL of blobs, or an emulator's, and there is no key
    """
    url = (endpoint or public_endpoint(account)).rstrip("/")
    parts = urlsplit(url)
    if not parts.netloc or parts.scheme != ("http" if _is_emulator(url) else "https"):
        raise RefusedError(
            f"the blobs of account {account} are at {endpoint!r}: give https://HOST, or an emulator's "
            "http://HOST:PORT/ACCOUNT"
        )
    if _is_emulator(url) and not key:
        raise RefusedError(f"the blobs of account {account} are at {endpoint!r}: an emulator needs the account's key")
    credentials: dict[str, Any] = {"anon": False}
    if key:
        words = {"AccountName": account, "AccountKey": key, "BlobEndpoint": url}
        credentials = {"connection_string": ";".join(f"{name}={value}" for name, value in words.items())}
    elif principal:
        credentials = dict(zip(("tenant_id", "client_id", "client_secret"), principal, strict=True))
    # With a connection string it needs no look-up of the host.
    return {"account_name": account, "account_host": parts.netloc, "use_listings_cache": False, **credentials}


def public_endpoint(account: str) -> str:
    """Return the URL of the blobs of an account in Azure's public cloud."""
    return f"https://{account}.blob.core.windows.net"


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
    return _words(given).get("BlobEndpoint") or f"https://{given['account_host']}"


def account_key(given: Mapping[str, Any]) -> str | None:
    """Return an account's key, None where there is none.

    :param given: what :func:`options` has made
    """
    return _words(given).get("AccountKey")


def _words(storage_options: Mapping[str, Any]) -> dict[str, str]:
    return dict(word.split("=", 1) for word in storage_options.get("connection_string", "").split(";") if word)


def system_of(place: Any) -> AbstractFileSystem:
    """Return the file system of a place.

    :raises RefusedError: when no account was named
    """
    endpoint_of(place.storage_options)
    return place.fs


def hadoop_url(place: Any) -> str:
    """Return a place's URL for Hadoop, which needs the account in it.

    :raises RefusedError: when no account was named
    """
    container, _, path = place.path.partition("/")
    storage_options = place.storage_options
    endpoint = endpoint_of(storage_options)
    scheme = "abfs" if _is_emulator(endpoint) else "abfss"
    return f"{scheme}://{container}@{_hadoop_account(storage_options['account_name'], endpoint)}/{path.strip('/')}"


def hadoop_settings() -> dict[str, str]:
    """Return Hadoop's settings for the account that the environment names; none is a secret.

    :raises RefusedError: when it names no account
    """
    storage_options = options_of_environment()
    endpoint = endpoint_of(storage_options)
    account = _hadoop_account(storage_options["account_name"], endpoint)
    settings = {
        "fs.abfs.impl": "org.apache.hadoop.fs.azurebfs.AzureBlobFileSystem",
        "fs.abfss.impl": "org.apache.hadoop.fs.azurebfs.SecureAzureBlobFileSystem",
        "fs.AbstractFileSystem.abfs.impl": "org.apache.hadoop.fs.azurebfs.Abfs",
        "fs.AbstractFileSystem.abfss.impl": "org.apache.hadoop.fs.azurebfs.Abfss",
        # Its threads, two of each client, would keep the JVM from ending.
        "fs.azure.metrics.collection.enabled": "false",
        **{f"fs.azure.account.{name}.{account}": value for name, value in _credentials().items()},
    }
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
    """Return the secret of the environment as a setting of Hadoop, which does not look there."""
    secret = os.environ.get(KEY) or os.environ.get(PRINCIPAL[2])
    return {_SECRET: secret} if secret else {}


def _credentials() -> dict[str, str]:
    """Return how Hadoop gets in, in the order in which Azure's library for Python looks; a secret by its setting."""
    if os.environ.get(KEY):
        return {"auth.type": "SharedKey", "key": f"${{{_SECRET}}}"}
    tenant, client, secret = map(os.environ.get, PRINCIPAL)
    authority = os.environ.get(_AUTHORITY, "login.microsoftonline.com").rstrip("/")
    if "://" not in authority:  # as Azure's own constants have it, and its library for Python takes it
        authority = f"https://{authority}"
    settings = {"auth.type": "OAuth", **({"oauth2.client.id": client} if client else {})}
    if tenant and client and secret:
        provider = "ClientCredsTokenProvider"
        settings |= {
            "oauth2.client.endpoint": f"{authority}/{tenant}/oauth2/token",
            "oauth2.client.secret": f"${{{_SECRET}}}",
        }
    elif tenant and client and (token := os.environ.get(_FEDERATED)):
        provider = "WorkloadIdentityTokenProvider"
        settings |= {
            "oauth2.msi.authority": f"{authority}/",
            "oauth2.msi.tenant": tenant,
            "oauth2.token.file": token,
        }
    else:
        provider = "MsiTokenProvider"
    return {**settings, "oauth.provider.type": f"{_PROVIDERS}.{provider}"}


def _is_emulator(endpoint: str) -> bool:
    """Whether the account is in the path, and not in the host's name."""
    return bool(urlsplit(endpoint).path)


def _hadoop_account(account: str, endpoint: str) -> str:
    """Return the account as a host of Azure's other interface, in which Hadoop wants it named; an emulator's, too."""
    host = f"{account}.blob.core.windows.net" if _is_emulator(endpoint) else urlsplit(endpoint).netloc
    return host.replace(".blob.", ".dfs.", 1)

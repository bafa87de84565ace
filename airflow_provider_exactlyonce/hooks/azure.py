"""Reads a connection of type ``wasb`` or ``adls`` to a storage account of Azure, for a task and for a driver.

Airflow's provider for Azure is not needed: a home takes the account's key, a service principal, or what Azure's
libraries find.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import azure_environment

CONN_TYPES: Final = ("wasb", "adls")
#: Other ways to credentials, which a driver has no way to follow.
_OTHER_WAYS: Final = (
    "connection_string",
    "shared_access_key",
    "sas_token",
    "client_secret_auth_config",
    "managed_identity_client_id",
    "workload_identity_tenant_id",
)


def options(connection: Any) -> dict[str, Any]:
    """Return the arguments of adlfs.

    :raises RefusedError: when the connection can't be used
    """
    account, endpoint = _account(connection)
    principal = _principal(connection)
    key = None if principal else connection.password
    return azure_environment.options(account, key=key, endpoint=endpoint, principal=principal)


def driver_environment(connection: Any) -> Mapping[str, str | None]:
    """Return variables for the environment of a driver beside the task; None for a variable that must not be set.

    A connection without a key gives no credentials: the driver finds the same as the task.

    :raises RefusedError: when the connection can't be used
    """
    account, endpoint = _account(connection)
    principal = _principal(connection)
    return {
        azure_environment.ACCOUNT: account,
        azure_environment.ENDPOINT: endpoint,
        # The worker's own would go before a principal.
        azure_environment.KEY: None if principal else connection.password or None,
        **(dict(zip(azure_environment.PRINCIPAL, principal, strict=True)) if principal else {}),
    }


def has_key(connection: Any) -> bool:
    """Whether it has a key, or a principal's secret."""
    return bool(connection.password)


def _principal(connection: Any) -> tuple[str, str, str] | None:
    """Return a service principal's directory, name and secret, None where there is none."""
    tenant = _field(connection, "tenant_id")
    if tenant is None:
        return None
    if not connection.login or not connection.password:
        raise RefusedError(
            f"connection {connection.conn_id} has a tenant_id: it takes a service principal's name as its login, and "
            "its secret as its password"
        )
    return str(tenant), connection.login, connection.password


def _account(connection: Any) -> tuple[str, str | None]:
    """Return the account and the URL of its blobs, None for Azure's public cloud."""
    for name in _OTHER_WAYS:
        if _field(connection, name) is not None:
            raise RefusedError(
                f"connection {connection.conn_id} has {name}: a home or a table on abfss: takes an account's key as "
                "the password, a service principal with tenant_id, or without both what Azure's libraries find"
            )
    host = (connection.host or "").rstrip("/")
    endpoint = host if "://" in host else f"https://{host}" if "." in host else None
    if endpoint is not None:
        _, _, address = endpoint.partition("://")
        server, _, account = address.partition("/")
        account = account or server.partition(".")[0]
        is_public = endpoint == azure_environment.public_endpoint(account)
        return account, None if is_public else endpoint
    account = host or ("" if _field(connection, "tenant_id") else connection.login or "")
    if not account:
        raise RefusedError(
            f"connection {connection.conn_id} names no storage account: give its name as the login, or the URL of its "
            "blobs as the host"
        )
    return account, None


def _field(connection: Any, name: str) -> Any:
    """Return a field that is filled, None for an empty one."""
    extra = connection.extra_dejson
    # Where an older Airflow has put it.
    return extra.get(name) or extra.get(f"extra__{connection.conn_type}__{name}") or None

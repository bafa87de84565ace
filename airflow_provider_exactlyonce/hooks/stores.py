"""The one place that turns Airflow connections to stores of tables into what delta-rs and pyiceberg are told."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError

#: What a connection of type ``aws`` has in its extra, and delta-rs' name for it.
_AWS: Final = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
}
#: What would need a call to AWS first, whose answer ends before a stream does.
_ROLES: Final = ("role_arn", "assume_role_method", "profile_name")


def driver_config(conn_ids: Sequence[str]) -> str:
    """Return what connections say of object stores and catalogs, for a driver's environment, as JSON.

    :param conn_ids: connections of type ``aws`` or ``iceberg``; of any other type the extra is taken as it is
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it asks for what delta-rs can't do
    """
    from airflow.sdk import Connection

    connections = {}
    for conn_id in conn_ids:
        connection = Connection.get(conn_id)
        extra = connection.extra_dejson
        given = _READ.get(connection.conn_type, _as_it_is)(connection, extra)
        connections[conn_id] = {name: _text(value) for name, value in given.items() if value not in (None, "")}
    return json.dumps(connections)


def _as_it_is(_: Any, extra: Mapping[str, Any]) -> Mapping[str, Any]:
    return extra


def _of_aws(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    for name in _ROLES:
        if extra.get(name):
            raise RefusedError(
                f"connection {connection.conn_id} has {name}={extra[name]!r}: delta-rs takes roles from the "
                "environment of the driver, as of an instance profile or a web identity. Leave it out of the connection"
            )
    service = extra.get("service_config", {}).get("s3", {})
    given = {**extra, **({"endpoint_url": service["endpoint_url"]} if service.get("endpoint_url") else {})}
    options = {ours: given.get(theirs) for theirs, ours in _AWS.items()}
    if connection.login:
        options |= {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
    if str(options["aws_endpoint_url"]).startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def _of_iceberg(connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return the properties of a catalog, as the hook of Airflow's provider for Iceberg reads its connections."""
    properties = {"type": "rest", **extra}
    if connection.host:
        properties["uri"] = connection.host.rstrip("/")
    if properties["type"] != "rest":
        return properties  # which has its keys in the extra
    if bool(connection.login) != bool(connection.password):
        raise RefusedError(
            f"connection {connection.conn_id} has a client's id or its secret, and not the other: a catalog takes both "
            "or none"
        )
    if connection.login:
        properties["credential"] = f"{connection.login}:{connection.password}"
    return properties


_READ: Final = {"aws": _of_aws, "iceberg": _of_iceberg}
#: Types of connections that are to stores and catalogs, and to nothing else.
TYPES: Final = frozenset(_READ)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

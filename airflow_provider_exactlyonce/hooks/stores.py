"""The one place that turns Airflow connections to object stores into delta-rs' storage options."""

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
    """Return the storage options of connections for a driver's environment, as JSON.

    :param conn_ids: connections of type ``aws``; of any other type the extra is storage options as they are
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it asks for what delta-rs can't do
    """
    from airflow.sdk import Connection

    connections = {}
    for conn_id in conn_ids:
        connection = Connection.get(conn_id)
        extra = connection.extra_dejson
        given = _of_aws(conn_id, connection, extra) if connection.conn_type == "aws" else extra
        connections[conn_id] = {name: _text(value) for name, value in given.items() if value not in (None, "")}
    return json.dumps(connections)


def _of_aws(conn_id: str, connection: Any, extra: Mapping[str, Any]) -> dict[str, Any]:
    for name in _ROLES:
        if extra.get(name):
            raise RefusedError(
                f"connection {conn_id} has {name}={extra[name]!r}: delta-rs takes roles from the environment of the "
                "driver, such as an instance profile or a web identity. Leave it out of the connection"
            )
    service = extra.get("service_config", {}).get("s3", {})
    given = {**extra, **({"endpoint_url": service["endpoint_url"]} if service.get("endpoint_url") else {})}
    options = {ours: given.get(theirs) for theirs, ours in _AWS.items()}
    if connection.login:
        options |= {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
    if str(options["aws_endpoint_url"]).startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)

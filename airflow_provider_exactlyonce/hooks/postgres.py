"""The one place that turns Airflow connections of type ``postgres`` into libpq's parameters."""

from __future__ import annotations

import json
from collections.abc import Sequence


def driver_config(conn_ids: Sequence[str]) -> str:
    """Return the parameters of connections for a driver's environment, as JSON.

    :param conn_ids: connections of type ``postgres``; the extra is libpq's parameters, as the provider's hook takes it
    :raises AirflowNotFoundException: when there is no such connection
    """
    from airflow.sdk import Connection

    connections = {}
    for conn_id in conn_ids:
        connection = Connection.get(conn_id)
        given = {
            "host": connection.host,
            "port": connection.port,
            "dbname": connection.schema,
            "user": connection.login,
            "password": connection.password,
            **{name: value for name, value in connection.extra_dejson.items() if isinstance(value, str | int)},
        }
        connections[conn_id] = {name: str(value) for name, value in given.items() if value not in (None, "")}
    return json.dumps(connections)

"""The one place that turns a connection of type ``http`` into the configuration of a schema registry's client."""

from __future__ import annotations

import json


def driver_config(conn_id: str) -> str:
    """Return the registry's configuration for a driver's environment, as JSON.

    :param conn_id: connection of type ``http``; its host may be the whole URL, its schema is ``http`` or ``https``, and
        its extra has further words of confluent-kafka's configuration, as ``ssl.ca.location``
    :raises AirflowNotFoundException: when there is no such connection
    """
    from airflow.sdk import Connection

    connection = Connection.get(conn_id)
    host = connection.host or ""
    url = host if "://" in host else f"{connection.schema or 'http'}://{host}"
    if connection.port:
        scheme, separator, rest = url.partition("://")
        place, slash, path = rest.partition("/")
        url = f"{scheme}{separator}{place}:{connection.port}{slash}{path}"
    user = {"basic.auth.user.info": f"{connection.login}:{connection.password or ''}"} if connection.login else {}
    return json.dumps({"url": url, **user, **connection.extra_dejson})

"""The one place that turns the Airflow connections of a job's sinks, tables and formats into its driver's settings.

Each answer is JSON, for the driver's environment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from airflow.sdk import Connection

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks import azure, google_cloud
from airflow_provider_exactlyonce.storage import azure_environment

#: What a connection of type ``aws`` has in its extra, and delta-rs' name for it.
_AWS: Final = {
    "aws_access_key_id": "aws_access_key_id",
    "aws_secret_access_key": "aws_secret_access_key",
    "aws_session_token": "aws_session_token",
    "region_name": "aws_region",
    "endpoint_url": "aws_endpoint_url",
}
#: What asks for a call first whose answer ends.
_TOKENS: Final = ("iam", "azure_conn_id")
#: What the hook of Airflow's provider keeps for itself.
_NOT_LIBPQ: Final = frozenset(
    {
        *_TOKENS,
        *("cursor", "sqlalchemy_scheme", "sqlalchemy_query", "aws_conn_id"),
        *("redshift", "redshift-serverless", "cluster-identifier", "workgroup-name"),
    }
)
#: What would need a call to AWS first, whose answer ends before a stream does.
_ROLES: Final = ("role_arn", "assume_role_method", "profile_name")


def postgres(conn_ids: Sequence[str]) -> str:
    """Return libpq's parameters by connection.

    :param conn_ids: connections of type ``postgres``; the extra is libpq's parameters, as the provider's hook takes it
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it is of another type, or asks for a token, which ends before a stream does
    """
    return _by_connection(conn_ids, _libpq_parameters)


def stores(conn_ids: Sequence[str], *, beside: Mapping[str, str | None] | None = None) -> str:
    """Return the options of delta-rs and pyiceberg for object stores and catalogs, by connection.

    :param conn_ids: connections of type ``aws``, ``google_cloud_platform``, ``wasb``, ``adls``, or ``iceberg``; of any
        other type the extra is taken as it is
    :param beside: what the connection of the driver's home puts into the driver's environment
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it asks for a feature that delta-rs lacks, or would be used with a part of the home's
    """

    def read(connection: Any) -> Mapping[str, Any]:
        if connection.conn_type not in _READ:
            return dict(connection.extra_dejson)
        options = _READ[connection.conn_type](connection)
        if connection.conn_type == "aws":
            _check_beside(connection.conn_id, options, beside or {})
        return options

    return _by_connection(conn_ids, read)


def schema_registry(conn_id: str) -> str:
    """Return the configuration of a schema registry's client.

    :param conn_id: connection of type ``http``; its host may be the whole URL, its schema is ``http`` or ``https``, and
        its extra has further words of confluent-kafka's configuration, as ``ssl.ca.location``. One of type ``https``,
        as a URI gives it, is asked over ``https``
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it has no host
    """
    connection = Connection.get(conn_id)
    host = connection.host or ""
    if not host:
        raise RefusedError(
            f"connection {conn_id} of type {connection.conn_type} has no host: a schema registry takes one of type "
            "http, whose host may be the whole URL"
        )
    # A connection as a URI has the scheme as its type.
    scheme = "https" if connection.conn_type == "https" else connection.schema or "http"
    url = host if "://" in host else f"{scheme}://{host}"
    if connection.port:
        scheme, separator, address = url.partition("://")
        authority, slash, path = address.partition("/")
        url = f"{scheme}{separator}{authority}:{connection.port}{slash}{path}"
    user = {"basic.auth.user.info": f"{connection.login}:{connection.password or ''}"} if connection.login else {}
    return json.dumps({"url": url, **user, **connection.extra_dejson})


def _by_connection(conn_ids: Sequence[str], read: Callable[[Any], Mapping[str, Any]]) -> str:
    connections = {}
    for conn_id in conn_ids:
        parameters = read(Connection.get(conn_id))
        connections[conn_id] = {name: text_of(value) for name, value in parameters.items() if value not in (None, "")}
    return json.dumps(connections)


def _libpq_parameters(connection: Any) -> dict[str, Any]:
    if connection.conn_type != "postgres":
        raise RefusedError(
            f"connection {connection.conn_id} is of type {connection.conn_type}: postgres_conn_ids takes those of type "
            "postgres"
        )
    extra = connection.extra_dejson
    for name in _TOKENS:
        if extra.get(name):
            raise RefusedError(
                f"connection {connection.conn_id} has {name}: its token ends before a stream does, and nobody would "
                "renew it in the driver. Give the connection a password, or a client certificate: sslcert and sslkey"
            )
    return {
        "host": connection.host,
        "port": connection.port,
        "dbname": connection.schema,
        "user": connection.login,
        "password": connection.password,
        **{name: value for name, value in extra.items() if isinstance(value, str | int) and name not in _NOT_LIBPQ},
    }


def _aws_options(connection: Any) -> dict[str, Any]:
    extra = connection.extra_dejson
    for name in _ROLES:
        if extra.get(name):
            raise RefusedError(
                f"connection {connection.conn_id} has {name}={extra[name]!r}: delta-rs takes roles from the "
                "environment of the driver, as of an instance profile or a web identity. Leave it out of the connection"
            )
    service = (extra.get("service_config") or {}).get("s3") or {}
    fields = {**extra, **({"endpoint_url": service["endpoint_url"]} if service.get("endpoint_url") else {})}
    options = {option: fields.get(field) for field, option in _AWS.items()}
    if connection.login:
        options |= {"aws_access_key_id": connection.login, "aws_secret_access_key": connection.password}
    if str(options["aws_endpoint_url"]).startswith("http://"):
        options["aws_allow_http"] = "true"
    return options


def _check_beside(conn_id: str, options: Mapping[str, Any], home: Mapping[str, str | None]) -> None:
    """Check that a key of a connection's own is not used with the endpoint or the session token of the home.

    Delta-rs takes each option that it is not given from the environment.
    """
    if not options["aws_access_key_id"]:
        return  # then the environment's key is used, and all that belongs to it
    if home.get("AWS_ENDPOINT_URL") and not options["aws_endpoint_url"]:
        raise RefusedError(
            f"connection {conn_id} has a key and no endpoint_url, and that of the home's connection, "
            f"{home['AWS_ENDPOINT_URL']}, would be used: give it one, such as https://s3.eu-west-1.amazonaws.com"
        )
    if home.get("AWS_SESSION_TOKEN") and not options["aws_session_token"]:
        raise RefusedError(
            f"connection {conn_id} has a key and no session token, and that of the home's connection, whose "
            "credentials end, would be used: give the home's connection a key that does not end, or leave out the key "
            f"of {conn_id} if the home's opens the table, too"
        )


def _azure_options(connection: Any) -> dict[str, Any]:
    # Delta-rs' options have the names of the variables.
    variables = azure.driver_environment(connection)
    # Without it delta-rs would take the one of the home, from the driver's environment.
    endpoint = variables[azure_environment.ENDPOINT] or azure_environment.public_endpoint(
        str(variables[azure_environment.ACCOUNT])
    )
    options = {name.lower(): value for name, value in {**variables, azure_environment.ENDPOINT: endpoint}.items()}
    return {**options, "allow_http": "true"} if endpoint.startswith("http://") else options


def _google_options(connection: Any) -> dict[str, Any]:
    key = google_cloud.service_account(connection)
    return {} if key is None else {"google_service_account_key": json.dumps(key)}


def _catalog_properties(connection: Any) -> dict[str, Any]:
    """Return the properties of a catalog, as the hook of Airflow's provider for Iceberg reads its connections."""
    properties = {"type": "rest", **connection.extra_dejson}
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


_READ: Final = {
    "aws": _aws_options,
    google_cloud.CONN_TYPE: _google_options,
    **dict.fromkeys(azure.CONN_TYPES, _azure_options),
    "iceberg": _catalog_properties,
}
#: Types of connections that are to stores and catalogs, and to nothing else.
TYPES: Final = frozenset(_READ)


def text_of(value: Any) -> str:
    """Return a setting's value as Java, libpq and delta-rs read it; what has parts as JSON."""
    return json.dumps(value) if isinstance(value, bool | dict | list) else str(value)

"""The one place that knows how a home in a bucket is reached with an Airflow connection, here and in a driver.

``s3://aws_default@bucket/pipelines/shop`` is Airflow's own way to name a place in a bucket and a connection to it. Here
the connection opens the place: one on S3 through Airflow's Amazon provider. A driver gets the place without the
connection, and the credentials in its environment, where Python, Hadoop and delta-rs look for them.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.hooks import azure, google_cloud
from airflow_provider_exactlyonce.storage.opening import parts_of
from airflow_provider_exactlyonce.storage.s3_environment import KEYS

_log = logging.getLogger(__name__)

#: The types of the connection that opens a place, by the place's scheme.
_TYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "s3": ("aws",),
    "gs": (google_cloud.CONN_TYPE,),
    "abfss": azure.CONN_TYPES,
}
#: By connection and its content: a changed connection is read anew, and an unchanged one once.
_OPTIONS: Final[dict[tuple[str, str], Mapping[str, Any]]] = {}
_OPENING: Final = threading.Lock()


def split(location: str) -> tuple[str | None, str]:
    """Return the connection that a location names, None for none, and the location without it; makes no request.

    :raises RefusedError: when it names none that opens it, or has a password in it
    """
    parts = parts_of(location)
    user, is_there, container = parts.netloc.rpartition("@")
    if not is_there:
        return None, location
    if parts.scheme not in _TYPES or not user:
        forms = " and ".join(f"{scheme}://CONN_ID@BUCKET/PATH" for scheme in _TYPES)
        raise RefusedError(f"checkpoint={location!r}: a connection opens {forms}, and nothing else")
    return user, parts._replace(netloc=container).geturl()


def open_place(conn_id: str, place: Any) -> Path:
    """Return a place in a bucket, with a connection's credentials; its file system renews those that expire.

    :param conn_id: connection of type ``aws``, ``google_cloud_platform``, ``wasb``, or ``adls``
    :param place: the same with the environment's
    :raises AirflowNotFoundException: when there is no such connection: the provider would go on without credentials
    :raises RefusedError: when it is of another type, or can't be used, or its provider lacks a requirement
    """
    from upath import UPath

    connection = _connection(conn_id, place.protocol)
    digest = hashlib.sha256(connection.get_uri().encode()).hexdigest()
    with _OPENING:
        options = _OPTIONS.get((conn_id, digest))
        if options is None:
            options = _OPTIONS[conn_id, digest] = _options(connection, place.protocol)
    opened: Any = UPath(str(place), **options)
    return opened  # type: ignore[no-any-return]


def driver_environment(location: str, here: Path) -> Mapping[str, str | None]:
    """Return environment variables with which a driver beside the task reaches its home; None for one to be unset.

    A connection without keys gives none: the driver itself finds an instance profile, a container's role, a web
    identity or a service account, and can renew it.

    :param here: folder of this host, for a key that has to be a file, see :func:`driver_files`
    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it can't be used
    """
    conn_id, place = split(location)
    if conn_id is None:
        return {}
    scheme = urlsplit(place).scheme
    connection = _connection(conn_id, scheme)
    if scheme == "gs":
        return google_cloud.driver_environment(connection, here)
    return azure.driver_environment(connection) if scheme == "abfss" else _environment_of_s3(conn_id)


def driver_files(location: str, here: Path) -> Mapping[Path, str]:
    """Return the files that :func:`driver_environment` names and that have to be written, which are secret.

    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it can't be used
    """
    conn_id, place = split(location)
    if conn_id is None or urlsplit(place).scheme != "gs":
        return {}
    return google_cloud.driver_files(_connection(conn_id, "gs"), here)


def check_for_cluster(location: str) -> None:
    """Check that a driver in a cluster, not beside the task, can reach its home.

    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it can't
    """
    conn_id, place = split(location)
    scheme = urlsplit(place).scheme
    has_key = {"gs": google_cloud.has_key, "abfss": azure.has_key}.get(scheme)
    if conn_id is not None and has_key is not None and has_key(_connection(conn_id, scheme)):
        raise RefusedError(
            f"{location}: its connection has a key, which only this host has, and the driver runs in a cluster: use a "
            "connection without a key, and the cluster's own identity"
        )


def _environment_of_s3(conn_id: str) -> Mapping[str, str | None]:
    """Credentials of a role that the connection assumes are handed on as they are."""
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    hook = S3Hook(aws_conn_id=conn_id)
    config = hook.conn_config
    variables = {
        "AWS_PROFILE": config.profile_name,
        "AWS_REGION": config.region_name,  # for Java and delta-rs
        "AWS_DEFAULT_REGION": config.region_name,  # for Python
        "AWS_ENDPOINT_URL": config.get_service_endpoint_url("s3"),
    }
    environment: dict[str, str | None] = {name: str(value) for name, value in variables.items() if value}
    if config.profile_name:  # the worker's own keys would go before it
        environment |= dict.fromkeys(KEYS)
    if config.role_arn:
        _log.warning(
            "connection %s assumes %s: the driver gets credentials that end, and ends with them",
            conn_id,
            config.role_arn,
        )
    if config.role_arn or config.aws_access_key_id:
        keys = hook.get_credentials()
        # A worker's own session token would not fit to other keys.
        environment |= zip(KEYS, (keys.access_key, keys.secret_key, keys.token), strict=True)
    return environment


def _connection(conn_id: str, scheme: str) -> Any:
    from airflow.sdk import Connection

    connection = Connection.get(conn_id)
    if connection.conn_type not in _TYPES[scheme]:
        raise RefusedError(
            f"connection {conn_id} is of type {connection.conn_type}: a home on {scheme}: takes one of type "
            f"{' or '.join(_TYPES[scheme])}"
        )
    return connection


def _options(connection: Any, scheme: str) -> Mapping[str, Any]:
    if scheme == "gs":
        return google_cloud.options(connection)
    return azure.options(connection) if scheme == "abfss" else _options_of_s3(connection.conn_id)


def _options_of_s3(conn_id: str) -> Mapping[str, Any]:
    from airflow.sdk.io import get_fs

    try:
        options: Mapping[str, Any] = get_fs("s3", conn_id).storage_options
    except (ImportError, ValueError) as error:
        raise RefusedError(f"{error}; a home on s3: needs airflow-provider-exactlyonce[s3]") from error
    return options

"""The one place that knows how a home in a bucket is reached with an Airflow connection, here and in a driver.

``s3://aws_default@bucket/pipelines/shop`` is Airflow's own way to name a place in a bucket and a connection to it. Here
the connection opens the place through Airflow's Amazon provider. A driver gets the place without the connection, and
the credentials in its environment, where botocore, Hadoop and delta-rs look for them.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.s3_environment import KEYS

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_log = logging.getLogger(__name__)

#: By connection and what it says: one that was changed is opened anew, and the same one once.
_SYSTEMS: Final[dict[tuple[str, str], AbstractFileSystem]] = {}
_OPENING: Final = threading.Lock()


def split(location: str) -> tuple[str | None, str]:
    """Return the connection that a location names, None for none, and the location without it; asks nobody.

    :raises RefusedError: when it names none that opens it, or has a password in it
    """
    parts = urlsplit(location)
    user, is_there, container = parts.netloc.rpartition("@")
    if not is_there:
        return None, location
    place = parts._replace(netloc=container).geturl()
    if ":" in user:  # which is not shown
        raise RefusedError(f"checkpoint={place!r} has a password in it; name a connection: s3://CONN_ID@BUCKET/PATH")
    if parts.scheme != "s3" or not user:
        raise RefusedError(f"checkpoint={location!r}: a connection opens s3://CONN_ID@BUCKET/PATH, and nothing else")
    return user, place


def open_place(conn_id: str, place: Path) -> Path:
    """Return a place in a bucket, with a connection's credentials; those that end are renewed by the provider.

    :param conn_id: connection of type ``aws``
    :param place: the same with the environment's
    :raises AirflowNotFoundException: when there is no such connection: the provider would go on without credentials
    :raises RefusedError: when it is of another type, or the provider lacks what it needs
    """
    from upath import UPath

    said = hashlib.sha256(_connection(conn_id).get_uri().encode()).hexdigest()
    with _OPENING:
        system = _SYSTEMS.get((conn_id, said))
        if system is None:
            system = _SYSTEMS[conn_id, said] = _open(conn_id)
    opened: Any = UPath(str(place), **system.storage_options)
    return opened  # type: ignore[no-any-return]


def driver_environment(location: str) -> Mapping[str, str]:
    """Return what a driver needs in its environment to reach its home.

    Nothing of a connection without keys: an instance profile, a container's role or a web identity is found by the
    driver itself, which can renew it. Credentials of a role that the connection assumes are handed on as they are.

    :raises AirflowNotFoundException: when there is no such connection
    :raises RefusedError: when it can't be used
    """
    conn_id, _ = split(location)
    if conn_id is None:
        return {}
    from airflow.providers.amazon.aws.hooks.s3 import S3Hook

    _connection(conn_id)
    hook = S3Hook(aws_conn_id=conn_id)
    config = hook.conn_config
    variables = {
        "AWS_PROFILE": config.profile_name,
        "AWS_REGION": config.region_name,  # for Java and delta-rs
        "AWS_DEFAULT_REGION": config.region_name,  # for Python
        "AWS_ENDPOINT_URL": config.get_service_endpoint_url("s3"),
    }
    environment = {name: str(value) for name, value in variables.items() if value}
    if config.profile_name:  # the worker's own keys would go before it
        environment |= dict.fromkeys(KEYS, "")
    if config.role_arn:
        _log.warning(
            "connection %s assumes %s: the driver gets credentials that end, and ends with them",
            conn_id,
            config.role_arn,
        )
    if config.role_arn or config.aws_access_key_id:
        keys = hook.get_credentials()
        # An empty one is none; a worker's own session token would not fit to other keys.
        environment |= zip(KEYS, (keys.access_key, keys.secret_key, keys.token or ""), strict=True)
    return environment


def _connection(conn_id: str) -> Any:
    from airflow.sdk import Connection

    connection = Connection.get(conn_id)
    if connection.conn_type != "aws":
        raise RefusedError(
            f"connection {conn_id} is of type {connection.conn_type}: a home on s3: takes one of type aws"
        )
    return connection


def _open(conn_id: str) -> AbstractFileSystem:
    from airflow.sdk.io import get_fs

    try:
        return get_fs("s3", conn_id)
    except (ImportError, ValueError) as error:
        raise RefusedError(f"{error}; a home on s3: needs airflow-provider-exactlyonce[s3]") from error

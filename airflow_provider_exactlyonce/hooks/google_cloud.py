"""Reads a connection of type ``google_cloud_platform`` to Google Cloud Storage, for a task and for a driver.

Airflow's provider for Google is not needed: a home takes a service account's key, or what Google's libraries find.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import gcs_environment

CONN_TYPE: Final = "google_cloud_platform"
#: A service account's key: the path of its file, or the file's content.
_KEYS: Final = ("key_path", "keyfile_dict")
#: Other ways to credentials, which a driver has no way to follow.
_OTHER_WAYS: Final = ("key_secret_name", "credential_config_file", "impersonation_chain", "idp_issuer_url")
_SCOPES: Final = ("https://www.googleapis.com/auth/devstorage.read_write",)
#: Where an older Airflow has put a field.
_PREFIX: Final = "extra__google_cloud_platform__"


def options(connection: Any) -> dict[str, Any]:
    """Return the arguments of gcsfs.

    :raises RefusedError: when the connection can't be used
    """
    from google.oauth2.service_account import Credentials

    _check(connection)
    emulator = _emulator(connection)
    key = None if emulator else _key(connection)
    if key is None:
        return gcs_environment.options(emulator)
    try:
        token = Credentials.from_service_account_info(key, scopes=_SCOPES)
    except ValueError as error:  # names the missing part, and shows nothing that is there
        raise RefusedError(f"connection {connection.conn_id} has no key of a service account: {error}") from error
    return gcs_environment.options(None, token)


def driver_environment(connection: Any, folder: Path) -> Mapping[str, str]:
    """Return variables for the environment of a driver beside the task.

    A connection without a key gives none: the driver finds the same credentials as the task.

    :param folder: of this host, for a key that is no file yet, see :func:`driver_files`
    :raises RefusedError: when the connection can't be used
    """
    _check(connection)
    if emulator := _emulator(connection):
        return {gcs_environment.EMULATOR: emulator}
    path = _field(connection, "key_path") or next(iter(driver_files(connection, folder)), None)
    return {} if path is None else {gcs_environment.CREDENTIALS: str(Path(path).absolute())}


def driver_files(connection: Any, folder: Path) -> dict[Path, str]:
    """Return the files that :func:`driver_environment` names and that have to be written; they are secret.

    :raises RefusedError: when the connection can't be used
    """
    if _emulator(connection) is not None or _field(connection, "key_path") is not None:
        return {}
    key = _key(connection)
    return {} if key is None else {folder / "gcs.json": json.dumps(key)}


def service_account(connection: Any) -> dict[str, Any] | None:
    """Return the key of a service account for a table's store, None where the driver finds its credentials.

    :raises RefusedError: when the connection can't be used, or is to an emulator
    """
    _check(connection)
    if (emulator := _emulator(connection)) is not None:
        raise RefusedError(
            f"connection {connection.conn_id} has gcs.endpoint={emulator}: a table of Delta Lake is on Google's own "
            "servers, since no emulator has the interface that delta-rs uses"
        )
    return _key(connection)


def has_key(connection: Any) -> bool:
    """Whether it has a key, which is on this host only."""
    return any(_field(connection, name) is not None for name in _KEYS)


def _check(connection: Any) -> None:
    for name in _OTHER_WAYS:
        if _field(connection, name) is not None:
            raise RefusedError(
                f"connection {connection.conn_id} has {name}: a home or a table on gs: takes a service account's key, "
                "key_path or keyfile_dict, or without one the application default credentials"
            )
    if all(_field(connection, name) is not None for name in _KEYS):
        raise RefusedError(f"connection {connection.conn_id} has key_path and keyfile_dict: give it one key")


def _emulator(connection: Any) -> str | None:
    """Return the address of an emulator, which needs no credentials."""
    address, is_anonymous = _field(connection, "gcs.endpoint"), _field(connection, "is_anonymous") is not None
    if (address is not None) != is_anonymous:
        raise RefusedError(
            f"connection {connection.conn_id} has {'is_anonymous' if is_anonymous else 'gcs.endpoint'}: an emulator "
            "takes both, is_anonymous and gcs.endpoint, and Google takes neither"
        )
    return None if address is None else str(address).rstrip("/")


def _key(connection: Any) -> dict[str, Any] | None:
    """Return the key of a service account; no part of it is ever shown."""
    path, keyfile_dict = _field(connection, "key_path"), _field(connection, "keyfile_dict")
    try:
        text = Path(path).read_text(encoding="utf-8") if path is not None else keyfile_dict
    except (OSError, ValueError) as error:
        raise RefusedError(f"connection {connection.conn_id} has key_path, which can't be read: {error}") from error
    if text is None:
        return None
    try:
        key = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        key = None
    if not isinstance(key, dict) or key.get("type") != "service_account":
        raise RefusedError(
            f"connection {connection.conn_id} has no key of a service account in "
            f"{'keyfile_dict' if path is None else path} (not shown: it may be a secret)"
        )
    return key


def _field(connection: Any, name: str) -> Any:
    """Return a field that is filled, None for an empty one."""
    extra = connection.extra_dejson
    return extra.get(name) or extra.get(f"{_PREFIX}{name}") or None

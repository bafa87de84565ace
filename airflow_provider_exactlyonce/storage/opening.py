"""Finds the place that a location names, its store, and Hadoop's name for it."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import SplitResult, urlsplit

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage import azure_environment, gcs_environment, hdfs_clients, s3_environment
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.remote import identity_of
from airflow_provider_exactlyonce.storage.store import Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LOCAL: Final = LocalStore()

#: What a location of each scheme looks like, the package that opens it, and the extra that brings that.
_SCHEMES: Final[Mapping[str, tuple[str, str, str]]] = {
    "s3": ("s3://bucket/directory", "s3fs", "s3"),
    "gs": ("gs://bucket/directory", "gcsfs", "gcs"),
    "abfss": ("abfss://container/directory", "adlfs", "azure"),
    "hdfs": ("hdfs://host:port/directory", "hdfs-native", "hdfs"),
}
#: What opens a place with the environment's credentials is given.
_OPTIONS: Final[Mapping[str, Callable[[], Mapping[str, Any]]]] = {
    "s3": s3_environment.options_of_environment,
    "gs": gcs_environment.options_of_environment,
    "abfss": azure_environment.options_of_environment,
}
#: What opens one that may have no way to its credentials.
_SYSTEMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "gs": gcs_environment.system_of,
    "abfss": azure_environment.system_of,
}
#: What fsspec takes for a pattern, or another part of a URL, and what Hadoop resolves.
_ODD: Final = re.compile(r"[*?\[\]#;]|/(?=/)|/\.{1,2}(?=/|$)")
_HADOOP_SCHEMES: Final[Mapping[str, str]] = {"s3": "s3a"}
_STORES: Final[dict[tuple[str, int], Store]] = {}

os.register_at_fork(before=hdfs_clients.keep)


def parts_of(location: str) -> SplitResult:
    """Return the parts of a location.

    :raises RefusedError: when it is no URL, or has a password in it; it is not shown then
    """
    try:
        parts = urlsplit(location)
    except ValueError:
        raise RefusedError("a home is named by what is no URL (not shown: it may hold a password)") from None
    user, _, server = parts.netloc.rpartition("@")
    if ":" in user:
        home = parts._replace(netloc=server).geturl()
        raise RefusedError(f"{home!r} has a password in it; name a connection in a DAG: s3://CONN_ID@BUCKET/PATH")
    return parts


def place_of(location: Any) -> Path:
    """Return the place that a location names.

    :param location: a local path, a URL, or a place already. A connection in ``s3://connection@bucket/key`` is for
        Airflow, which has made the environment of it
    :raises RefusedError: when it is on a file system that a home can't be on, or its package is not installed
    """
    if not isinstance(location, str | Path):
        return location  # type: ignore[no-any-return]
    parts = parts_of(str(location))
    if isinstance(location, Path) or parts.scheme in ("", "file"):
        return Path(_path_of(str(location)) if parts.scheme == "file" else location).expanduser().resolve()
    if parts.scheme not in _SCHEMES:
        raise RefusedError(
            f"{location!r}: a home is a local path, a file: URI, or at "
            f"{', '.join(f'{scheme}://' for scheme in _SCHEMES)}; {parts.scheme}: is not read"
        )
    from upath import UPath

    scheme, server, key = parts.scheme, parts.netloc.rpartition("@")[2], parts.path.strip("/")
    form, package, extra = _SCHEMES[scheme]
    if not server or not key:
        raise RefusedError(f"{location!r} names no directory: give {form}")
    if scheme == "abfss" and "." in server:  # which no container's name has
        raise RefusedError(
            f"{location!r} names the account with the container: give {form}, and the account in "
            f"{azure_environment.ACCOUNT}, or in a DAG by a connection: abfss://CONN_ID@CONTAINER/DIRECTORY"
        )
    if odd := _ODD.search(str(location).partition("://")[2].rstrip("/")):
        raise RefusedError(
            f"{location!r} has {odd[0]!r} in it, which clients take for something else than a part of a name: give the "
            "directory another one"
        )
    if importlib.util.find_spec(package.replace("-", "_")) is None:
        raise RefusedError(
            f"{package}, which reads and writes {scheme}:, is not installed: install "
            f"airflow-provider-exactlyonce[{extra}]"
        )
    # Credentials are the environment's.
    place: Any = UPath(f"{scheme}://{server}/{key}", **_OPTIONS.get(scheme, dict)())
    return place  # type: ignore[no-any-return]


def _path_of(uri: str) -> str:
    """Return the path of a ``file:`` URI, in which nothing is decoded or left out, as in fsspec.

    :raises RefusedError: when it names another machine, as ``file://data/shop`` does
    """
    path = uri.partition(":")[2]
    if not path.startswith("//"):
        return path
    server, _, below = path[2:].partition("/")
    if server not in ("", "localhost"):
        raise RefusedError(
            f"{uri!r} names a machine, {server!r}, and a file: URI is of this one: give 'file:/{server}/{below}'"
        )
    return f"/{below}"


def is_local(place: Any) -> bool:
    """Whether a place is on this machine's file systems, mounted ones among them."""
    return isinstance(place, Path)


def is_link(file: Any) -> bool:
    """Whether another name has the same bytes, and not a copy of them."""
    return is_local(file) and file.stat().st_nlink > 1


def location_of(place: Any) -> str:
    """Return the location from which :func:`place_of` makes this place; a place's ``str()`` lacks HDFS's name node.

    :param place: a path of this machine, or one of universal_pathlib
    """
    if is_local(place) or place.protocol != "hdfs":
        return str(place)
    host, port = (place.storage_options.get(name) for name in ("host", "port"))
    return f"hdfs://{host}:{port}{place.path}" if port else f"hdfs://{host}{place.path}"


def is_there(place: Any) -> bool:
    """Whether there is a file or a directory, in a bucket one that is not empty.

    A path of universal_pathlib says no when it does not know.

    :raises OSError: when the file system does not tell
    """
    store = store_of(place)
    return place.exists() if is_local(place) else store.facts(place) is not None or bool(store.names(place))


def hadoop_url(place: Any) -> str:
    """Return a place's URL for Spark: without a scheme it would be on the cluster's own file system.

    :param place: a path of this machine, or one of universal_pathlib
    """
    if isinstance(place, Path):
        return f"file:{place}"
    if place.protocol == "abfss":
        return azure_environment.hadoop_url(place)
    scheme, _, path = location_of(place).partition("://")
    return f"{_HADOOP_SCHEMES.get(scheme, scheme)}://{path.rstrip('/')}"


def store_of(place: Any) -> Store:
    """Return the store of a place.

    :param place: a path of this machine, or one of universal_pathlib
    :raises RefusedError: when it is on a file system that is not known to keep the contract
    """
    if isinstance(place, Path):
        return LOCAL
    system = _SYSTEMS[place.protocol](place) if place.protocol in _SYSTEMS else place.fs
    key = (identity_of(system), os.getpid())  # clients do not outlive a fork
    if key not in _STORES:
        _STORES[key] = _opened(system)
    return _STORES[key]


def _opened(system: AbstractFileSystem) -> Store:
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if "s3" in protocols:
        from airflow_provider_exactlyonce.storage import s3

        return s3.open_store(system)
    if "hdfs" in protocols and type(system).__module__.startswith("hdfs_native"):
        from airflow_provider_exactlyonce.storage import hdfs

        return hdfs.open_store(system)
    if "gs" in protocols:
        from airflow_provider_exactlyonce.storage import gcs

        return gcs.open_store(system)
    if type(system).__module__.startswith("adlfs"):
        from airflow_provider_exactlyonce.storage import azure

        return azure.open_store(system)
    raise RefusedError(
        f"{type(system).__name__} is no file system for a home: it is not known that of two who create a file one "
        "does. Use a path, s3:, gs:, abfss:, or hdfs:"
    )

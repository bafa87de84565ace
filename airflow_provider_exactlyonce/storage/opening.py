"""Finds the store of a place."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.remote import identity_of
from airflow_provider_exactlyonce.storage.store import Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LOCAL: Final = LocalStore()
_STORES: Final[dict[tuple[str, int], Store]] = {}


def hadoop_url(place: Any) -> str:
    """Return what Spark is told instead of a place: without a scheme it would be on the cluster's own file system.

    :param place: a path of this machine, or one of universal_pathlib
    """
    return f"file:{place}" if isinstance(place, Path) else str(place.fs.unstrip_protocol(place.path))


def store_of(place: Any) -> Store:
    """Return the store of a place.

    :param place: a path of this machine, or one of universal_pathlib
    :raises RefusedError: when it is on a file system that is not known to keep the contract
    """
    if isinstance(place, Path):
        return LOCAL
    key = (identity_of(place.fs), os.getpid())  # clients do not outlive a fork
    if key not in _STORES:
        _STORES[key] = _opened(place.fs)
    return _STORES[key]


def _opened(system: AbstractFileSystem) -> Store:
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if "memory" in protocols:
        from airflow_provider_exactlyonce.storage.memory import MemoryStore

        return MemoryStore(system)
    if "s3" in protocols:
        from airflow_provider_exactlyonce.storage import s3

        return s3.open_store(system)
    if "hdfs" in protocols and type(system).__module__.startswith("hdfs_native"):
        from airflow_provider_exactlyonce.storage import hdfs

        return hdfs.open_store(system)
    raise RefusedError(
        f"{type(system).__name__} is no file system for a home: it is not known that of two who create a file one "
        "does. Use a path, s3:, or hdfs: with airflow-provider-exactlyonce[hdfs]"
    )

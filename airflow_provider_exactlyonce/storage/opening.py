"""Finds the store of a place."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.local import LocalStore
from airflow_provider_exactlyonce.storage.store import Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

LOCAL: Final = LocalStore()


def store_of(place: Any) -> Store:
    """Return the store of a place.

    :param place: a path of this machine, or one of universal_pathlib
    :raises RefusedError: when it is on a file system that is not known to keep the contract
    """
    if isinstance(place, Path):
        return LOCAL
    return _remote(place.fs)


@functools.cache
def _remote(system: AbstractFileSystem) -> Store:
    protocols = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if "memory" in protocols:
        from airflow_provider_exactlyonce.storage.memory import MemoryStore

        return MemoryStore(system)
    if "s3" in protocols:
        from airflow_provider_exactlyonce.storage import s3

        return s3.open_store(system)
    raise RefusedError(
        f"{type(system).__name__} is no file system for a home: it is not known that of two who create a file one "
        "does. Use a path, or s3:"
    )

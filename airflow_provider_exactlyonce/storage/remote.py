"""What the file systems behind fsspec have in common: they are listed, copied and removed in one way."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.store import Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

COPIED_BYTES: Final = 8 * 1024 * 1024


class RemoteStore(Store):
    """Files of one file system of fsspec.

    :param system: keeps no listings: others write there, too
    """

    has_locks = False

    def __init__(self, system: AbstractFileSystem) -> None:
        self.system: Final = system

    @override
    def delete(self, place: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm_file(path_of(place))

    @override
    def names(self, directory: Path) -> Sequence[str]:
        return names_in(self.system, directory)

    @override
    def copy(self, source: Any, target: Path, *, final: bool = False) -> None:
        there: Any = target
        if not isinstance(source, Path) and identity_of(source.fs) == identity_of(there.fs):
            self.system.cp_file(path_of(source), path_of(target))
            return
        with source.open("rb") as read, self.system.open(path_of(target), "wb") as written:
            shutil.copyfileobj(read, written, COPIED_BYTES)

    @override
    def holding(self, place: Path, *, seconds: float | None = None, note: str = "") -> AbstractContextManager[None]:
        raise RefusedError(
            f"{place} can't be held: its file system has no locks that end with their process. Upgrades and rollbacks "
            "need one: they work with a home on a mounted file system"
        )

    @override
    def flush(self, places: Sequence[Path]) -> None:
        """Nothing is left to do: a file is whole and kept when its write was answered."""

    @override
    def remove(self, directory: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            self.system.rm(path_of(directory), recursive=True)


def identity_of(system: AbstractFileSystem) -> str:
    """Return what file systems have in common that reach the same with the same rights; fsspec makes one a thread."""
    from fsspec.utils import tokenize

    return str(tokenize(type(system).__name__, system.storage_options))


def path_of(place: Any) -> str:
    """Return what fsspec calls a place."""
    return str(place.path)


def names_in(system: AbstractFileSystem, directory: Path) -> Sequence[str]:
    """Return the names of what is in a directory, sorted; the mark that some writers make of the directory is none."""
    path = path_of(directory).rstrip("/")
    try:
        listed = system.ls(path, detail=False)
    except FileNotFoundError:
        return []
    below = (entry.rstrip("/") for entry in listed)
    return sorted({entry.rpartition("/")[2] for entry in below if entry.rpartition("/")[0] == path})

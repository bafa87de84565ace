"""The directory of a table, beside its log. Names are relative to it, with slashes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles

_LOCAL_URL: Final = "file://"


def local_path(path: str) -> str | None:
    """Return the path on this machine's file systems, None for a URL of another store."""
    if path.startswith(_LOCAL_URL):
        return path.removeprefix(_LOCAL_URL)
    return None if "://" in path else path


class DeltaFiles(TableFiles):
    """A directory of this machine, of a network file system, or of a store.

    A store is written to by delta-rs' own client, so that one set of options serves its log and these files.

    :param path: an absolute path, or a URL of delta-rs
    :param options: what delta-rs needs to know of the store
    """

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        local = local_path(path)
        self._local: Final = None if local is None else Path(local)
        self._place: Final = path.rstrip("/") if local is None else str(self._local)
        self._system: Any = None
        if local is None:
            from deltalake.fs import DeltaStorageHandler
            from pyarrow.fs import PyFileSystem

            self._system = PyFileSystem(DeltaStorageHandler(self._place, dict(options)))

    @override
    def local(self, name: str) -> Path | None:
        return None if self._local is None else self._local / name

    @override
    def remote(self, name: str) -> tuple[Any, str]:
        return self._system, name

    @override
    def above(self, path: Path) -> Iterable[Path]:
        """Return all folders up to the table's directory: another process may have made them, and waited for none."""
        for folder in path.parents:
            yield folder
            if folder == self._local:
                return

    @override
    def place(self, name: str) -> str:
        return f"{self._place}/{name}"

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order, without hidden ones; none when it does not exist."""
        if (path := self.local(folder)) is None:
            return sorted({PurePosixPath(name).relative_to(folder).parts[0] for name in self.below(folder)})
        try:
            return sorted(name for name in os.listdir(path) if not name.startswith("."))
        except FileNotFoundError:
            return []


def flush_commit(path: str, version: int) -> None:
    """Make a version of a table's log on this machine outlive a loss of power; delta-rs does not wait for the disk.

    :param path: of the table; in a store there is nothing to do
    """
    if local_path(path) is not None:
        DeltaFiles(path, {}).keep(f"_delta_log/{version:020d}.json")

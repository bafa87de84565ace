"""The files of a table beside its log: what tasks write, and the sink's own notes. Names are relative to the table."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, Final, Protocol

from airflow_provider_exactlyonce.files import flush, replacing

_LOCAL_URL: Final = "file://"
_BUFFER_BYTES: Final = 2**20
_READABLE: Final = 0o644  # for those who audit the table, too


class TableFiles(Protocol):
    """Files below a table's directory, names with slashes."""

    def replace(self, name: str, content: bytes) -> None:
        """Put a whole file in the place of what is there, if anything, durably."""

    def read(self, name: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: when there is none
        """

    def names(self, folder: str) -> list[str]:
        """Return the names in a directory, sorted; none when it does not exist."""

    def below(self, folder: str) -> list[str]:
        """Return all files below a directory, as names relative to the table; none when it does not exist."""

    def open_new(self, name: str) -> BinaryIO:
        """Open a file to write; it is there when it was closed and :meth:`keep` has returned."""

    def keep(self, name: str) -> None:
        """Make a file that was written and closed outlive a loss of power."""

    def open(self, name: str) -> BinaryIO:
        """Open a file to read."""

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is none."""

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, if it is there."""

    def place(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""


def open_files(path: str, options: Mapping[str, str]) -> TableFiles:
    """Open the directory of a table.

    :param path: an absolute path, or a URL of delta-rs
    :param options: what delta-rs needs to know of the store
    """
    if (local := local_path(path)) is not None:
        return LocalFiles(local)
    return RemoteFiles(path, options)


def local_path(path: str) -> str | None:
    """Return the path on this machine's file systems, None for a URL of another store."""
    if path.startswith(_LOCAL_URL):
        return path.removeprefix(_LOCAL_URL)
    return None if "://" in path else path


class LocalFiles:
    """A directory of this machine, or of a network file system."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)

    def replace(self, name: str, content: bytes) -> None:
        """Write beside the file, durably, and rename."""
        path = self._root / name
        if not path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._flush_above(path.parent)
        with replacing(path, mode=_READABLE) as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        return (self._root / name).read_bytes()

    def names(self, folder: str) -> list[str]:
        """Return the names in a directory, without hidden ones."""
        try:
            return sorted(name for name in os.listdir(self._root / folder) if not name.startswith("."))
        except FileNotFoundError:
            return []

    def below(self, folder: str) -> list[str]:
        """Return the files below a directory."""
        files = (file for file in (self._root / folder).rglob("*") if file.is_file())
        return sorted(file.relative_to(self._root).as_posix() for file in files)

    def open_new(self, name: str) -> BinaryIO:
        """Open a file that must not be there."""
        file = self._root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("xb")

    def keep(self, name: str) -> None:
        """Flush a file, and the directories that lead to it."""
        flush(self._root / name)
        self._flush_above(self._root / name)

    def open(self, name: str) -> BinaryIO:
        """Open a file to read."""
        return (self._root / name).open("rb")

    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is none."""
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it."""
        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a straggler may write into it; the next try finds the rest
        else:
            path.unlink(missing_ok=True)

    def place(self, name: str) -> str:
        """Return the path."""
        return str(self._root / name)

    def _flush_above(self, path: Path) -> None:
        """Flush the directories above a path, up to the root."""
        for folder in path.parents:
            flush(folder)
            if folder == self._root:
                return


class RemoteFiles:
    """Files in a store that delta-rs writes its log to, by its own client, so that one set of options serves both.

    A store answers a write when it is durable.
    """

    def __init__(self, url: str, options: Mapping[str, str]) -> None:
        from deltalake.fs import DeltaStorageHandler
        from pyarrow.fs import PyFileSystem

        self._url: Final = url.rstrip("/")
        self._system: Final[Any] = PyFileSystem(DeltaStorageHandler(self._url, dict(options)))

    def replace(self, name: str, content: bytes) -> None:
        """Write the whole object."""
        with self.open_new(name) as file:
            file.write(content)

    def read(self, name: str) -> bytes:
        """Return an object's content."""
        with self.open(name) as file:
            return file.read()

    def names(self, folder: str) -> list[str]:
        """Return the last part of the names below a prefix."""
        return sorted({PurePosixPath(name).relative_to(folder).parts[0] for name in self.below(folder)})

    def below(self, folder: str) -> list[str]:
        """Return the names below a prefix."""
        from pyarrow.fs import FileSelector, FileType

        infos = self._system.get_file_info(FileSelector(folder, allow_not_found=True, recursive=True))
        return sorted(info.path for info in infos if info.type == FileType.File)

    def open_new(self, name: str) -> BinaryIO:
        """Open an object to write."""
        # Without a buffer pyarrow passes on what delta-rs does not take.
        return self._system.open_output_stream(name, buffer_size=_BUFFER_BYTES)  # type: ignore[no-any-return]

    def keep(self, name: str) -> None:
        """Do nothing: what was written and closed is durable."""

    def open(self, name: str) -> BinaryIO:
        """Open an object to read."""
        return self._system.open_input_file(name)  # type: ignore[no-any-return]

    def size(self, name: str) -> int | None:
        """Return an object's size in bytes, None when there is none."""
        return self._system.get_file_info(name).size  # type: ignore[no-any-return]

    def remove(self, name: str) -> None:
        """Remove an object, or all below a prefix."""
        for object_name in [*self.below(name), name]:
            with suppress(FileNotFoundError):
                self._system.delete_file(object_name)

    def place(self, name: str) -> str:
        """Return the URL."""
        return f"{self._url}/{name}"


def flush_commit(path: str, version: int) -> None:
    """Make a version of a table's log on this machine outlive a loss of power; delta-rs does not wait for the disk.

    :param path: of the table; in a store there is nothing to do
    """
    if (local := local_path(path)) is not None:
        LocalFiles(local).keep(f"_delta_log/{version:020d}.json")

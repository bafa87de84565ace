"""Files that become visible whole or not at all: on this machine's file systems, and on those of fsspec.

All that the sinks for files rest on is :meth:`Storage.create`: of all who create one name, one succeeds.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.files import flush

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Object stores that refuse the second of two conditional writes, and whose fsspec package asks for it (``create``).
CONDITIONAL_WRITES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
_NOT_SUPPORTED: Final = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)
_MEMORY_LOCK: Final = threading.Lock()


def open_storage(path: str, options: Mapping[str, Any]) -> Storage:
    """Open what a path or URL names.

    :param path: an absolute path, or a URL of fsspec
    :param options: what fsspec needs to know of the file system
    :raises RefusedError: when it can't publish a file atomically, or is unknown
    """
    if "://" not in path:
        return LocalStorage(path)
    from fsspec.core import url_to_fs
    from fsspec.implementations.dirfs import DirFileSystem
    from fsspec.implementations.local import LocalFileSystem

    try:
        system, root = url_to_fs(path, **options)
    except (ImportError, ValueError, OSError) as error:
        raise RefusedError(f"path={path!r} can't be opened: {error}") from error
    while isinstance(system, DirFileSystem):
        system, root = system.fs, system._join(root)
    if isinstance(system, LocalFileSystem):
        return LocalStorage(root)
    kinds = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if not kinds & (CONDITIONAL_WRITES | {"memory"}):
        raise RefusedError(
            f"path={path!r}: {type(system).__name__} can neither rename nor create a file so that one of two writers "
            "loses, and a killed run could overwrite its successor's commit. Use a local or network path, or one of "
            f"{', '.join(sorted(CONDITIONAL_WRITES))}"
        )
    return RemoteStorage(system, root, in_memory="memory" in kinds)


class Storage(ABC):
    """Files below one directory; names are relative to it, with slashes."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Publish a new file: whole, durable, and never over another.

        :raises FileExistsError: when the name is taken; it is as it was
        :raises OSError: anything else; nobody knows whether it was created
        """

    def check_exclusive(self, folder: str) -> None:
        """Try out that a name can't be created twice.

        :param folder: where to try it
        :raises RefusedError: when it can
        :raises OSError: when the file system does not answer
        """
        name = f"{folder}/probe-{uuid.uuid4().hex}"
        try:
            self.create(name, b"1")
            self.create(name, b"2")
        except FileExistsError:
            return
        finally:
            self.remove(name)
        raise RefusedError(
            f"{self.place(name)} was created twice: this store ignores conditional writes, and a killed run could "
            "overwrite its successor's commit. Use another store, or a version of it that has them"
        )

    @abstractmethod
    def replace(self, name: str, content: bytes) -> None:
        """Put a whole file in the place of what is there, if anything; the last writer wins."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return a file's content.

        :raises FileNotFoundError: when there is none
        """

    @abstractmethod
    def names(self, folder: str) -> list[str]:
        """Return the names in a directory, sorted; none when it does not exist."""

    @abstractmethod
    def below(self, folder: str) -> list[str]:
        """Return all files below a directory, as names relative to the root; none when it does not exist."""

    @abstractmethod
    def open_new(self, name: str) -> BinaryIO:
        """Open a file to write; it is there when it was closed and :meth:`keep` has returned."""

    @abstractmethod
    def keep(self, name: str) -> None:
        """Make a file that was written and closed outlive a loss of power."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file to read."""

    @abstractmethod
    def size(self, name: str) -> int | None:
        """Return a file's size in bytes, None when there is none."""

    @abstractmethod
    def modified(self, name: str) -> float:
        """Return when a file was written, in seconds since the epoch."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it, if it is there."""

    @abstractmethod
    def place(self, name: str) -> str:
        """Return the path or URL by which readers open a file."""

    @property
    @abstractmethod
    def filesystem(self) -> AbstractFileSystem:
        """The file system, for readers that take one of fsspec."""


class LocalStorage(Storage):
    """A directory of this machine, or of a network file system with hard links."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)

    @override
    def create(self, name: str, content: bytes) -> None:
        beside = self._written(name, content)
        try:
            os.link(beside, self._root / name)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
            raise RefusedError(
                f"{self._root / name}: the file system has no hard links ({error}), and nothing else creates a whole "
                "file so that one of two writers loses. Use another path"
            ) from error
        finally:
            beside.unlink()
        flush(beside.parent)

    @override
    def replace(self, name: str, content: bytes) -> None:
        beside = self._written(name, content)
        beside.replace(self._root / name)
        flush(beside.parent)

    @override
    def read(self, name: str) -> bytes:
        return (self._root / name).read_bytes()

    @override
    def names(self, folder: str) -> list[str]:
        try:
            return sorted(one for one in os.listdir(self._root / folder) if not one.startswith("."))
        except FileNotFoundError:
            return []

    @override
    def below(self, folder: str) -> list[str]:
        files = (file for file in (self._root / folder).rglob("*") if file.is_file())
        return sorted(file.relative_to(self._root).as_posix() for file in files)

    @override
    def open_new(self, name: str) -> BinaryIO:
        file = self._root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        return file.open("xb")

    @override
    def keep(self, name: str) -> None:
        file = self._root / name
        flush(file)
        for folder in file.parents:
            flush(folder)
            if folder == self._root:
                return

    @override
    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    @override
    def size(self, name: str) -> int | None:
        try:
            return (self._root / name).stat().st_size
        except FileNotFoundError:
            return None

    @override
    def modified(self, name: str) -> float:
        return (self._root / name).stat().st_mtime

    @override
    def remove(self, name: str) -> None:
        import shutil

        path = self._root / name
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a straggler may write into it; the next try finds the rest
        else:
            path.unlink(missing_ok=True)

    @override
    def place(self, name: str) -> str:
        return str(self._root / name)

    @property
    @override
    def filesystem(self) -> AbstractFileSystem:
        from fsspec.implementations.local import LocalFileSystem

        return LocalFileSystem()

    def _written(self, name: str, content: bytes) -> Path:
        """Write the content durably beside the name, where nobody looks."""
        target = self._root / name
        beside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        if not target.parent.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            for folder in target.parent.relative_to(self._root).parents:
                flush(self._root / folder)
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        return beside


class RemoteStorage(Storage):
    """An object store through fsspec, or fsspec's memory within one process."""

    def __init__(self, system: AbstractFileSystem, root: str, *, in_memory: bool) -> None:
        self._system: Final = system
        self._root: Final = root.rstrip("/")
        self._in_memory: Final = in_memory

    @override
    def create(self, name: str, content: bytes) -> None:
        if not self._in_memory:
            self._system.pipe_file(self._path(name), content, mode="create")
            return
        with _MEMORY_LOCK:
            if self._system.exists(self._path(name)):
                raise FileExistsError(name)
            self._system.pipe_file(self._path(name), content)

    @override
    def replace(self, name: str, content: bytes) -> None:
        self._system.pipe_file(self._path(name), content)

    @override
    def read(self, name: str) -> bytes:
        return bytes(self._system.cat_file(self._path(name)))

    @override
    def names(self, folder: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            found = self._system.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(one).name for one in found)

    @override
    def below(self, folder: str) -> list[str]:
        self._system.invalidate_cache()
        root = self._path("")
        return sorted(one[len(root) :] for one in self._system.find(self._path(folder)))

    @override
    def open_new(self, name: str) -> BinaryIO:
        return self._system.open(self._path(name), "wb")  # type: ignore[no-any-return]

    @override
    def keep(self, name: str) -> None:
        """Do nothing: an object store answers a write when it is durable."""

    @override
    def open(self, name: str) -> BinaryIO:
        return self._system.open(self._path(name), "rb")  # type: ignore[no-any-return]

    @override
    def size(self, name: str) -> int | None:
        self._system.invalidate_cache()
        try:
            return int(self._system.size(self._path(name)))
        except FileNotFoundError:
            return None

    @override
    def modified(self, name: str) -> float:
        return float(self._system.modified(self._path(name)).timestamp())

    @override
    def remove(self, name: str) -> None:
        self._system.invalidate_cache()
        with suppress(FileNotFoundError):
            self._system.rm(self._path(name), recursive=True)

    @override
    def place(self, name: str) -> str:
        return str(self._system.unstrip_protocol(self._path(name)))

    @property
    @override
    def filesystem(self) -> AbstractFileSystem:
        return self._system

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

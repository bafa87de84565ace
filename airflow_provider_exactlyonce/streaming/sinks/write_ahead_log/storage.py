"""Files that are created whole, once: on this machine's file systems, and in object stores by fsspec."""

from __future__ import annotations

import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.files import flush, is_without_links, link, make_directory

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

#: Object stores that refuse the second of two conditional writes, and whose fsspec package asks for it (``create``).
CONDITIONAL_WRITES: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl"})
_LOCAL_URL: Final = "file://"


def open_storage(path: str, options: Mapping[str, Any]) -> Storage:
    """Open the storage at a path or URL.

    :param path: an absolute path, or a URL of fsspec
    :param options: fsspec's options of the file system
    :raises RefusedError: when it can't publish a file atomically, or is unknown
    """
    local = path.removeprefix(_LOCAL_URL)
    if "://" not in local:
        return LocalStorage(local)
    from fsspec.core import url_to_fs

    try:
        system, root = url_to_fs(path, **options)
    except (ImportError, ValueError, OSError) as error:
        raise RefusedError(f"path={path!r} can't be opened: {error}") from error
    kinds = {system.protocol} if isinstance(system.protocol, str) else set(system.protocol)
    if not kinds & CONDITIONAL_WRITES:
        raise RefusedError(
            f"path={path!r}: {type(system).__name__} can neither rename nor create a file so that one of two writers "
            "loses, and a killed run could overwrite its successor's commit. Use a local or network path, or one of "
            f"{', '.join(sorted(CONDITIONAL_WRITES))}"
        )
    return RemoteStorage(system, root)


class Storage(ABC):
    """Files below one directory; names are relative to it, with slashes."""

    @abstractmethod
    def create(self, name: str, content: bytes) -> None:
        """Publish a new file: whole, durable, and never over another.

        :raises FileExistsError: when the name is taken; it is as it was
        :raises OSError: anything else; it is unknown whether it was created
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
    def names(self, folder: str) -> list[str]:
        """Return the names in a directory, sorted; none when it does not exist."""

    @abstractmethod
    def open(self, name: str) -> BinaryIO:
        """Open a file to read.

        :raises FileNotFoundError: when there is none
        """

    def first_line(self, name: str) -> bytes:
        """Return a file's first line; raises as :meth:`open` does."""
        with self.open(name) as file:
            return file.readline()

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""

    def remove_unfinished(self, folder: str, through: str) -> None:  # noqa: B027 - a store has nothing unfinished
        """Remove the remains of dead processes' files that were never created.

        :param through: the greatest name that is created: nothing up to it can be created any more
        """

    @abstractmethod
    def place(self, name: str) -> str:
        """Return the path or URL of a file, for messages."""


class LocalStorage(Storage):
    """A directory of this machine, or of a network file system with hard links."""

    def __init__(self, root: str) -> None:
        self._root: Final = Path(root)

    @override
    def create(self, name: str, content: bytes) -> None:
        target = self._root / name
        make_directory(target.parent)
        temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
        try:
            with temporary.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _link(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)
        flush(target.parent)

    @override
    def names(self, folder: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._root / folder) if not name.startswith("."))
        except FileNotFoundError:
            return []

    @override
    def open(self, name: str) -> BinaryIO:
        return (self._root / name).open("rb")

    @override
    def remove(self, name: str) -> None:
        (self._root / name).unlink(missing_ok=True)

    @override
    def remove_unfinished(self, folder: str, through: str) -> None:
        for path in (self._root / folder).glob(".*"):
            if path.name.removeprefix(".")[: len(through)] <= through:
                path.unlink(missing_ok=True)

    @override
    def place(self, name: str) -> str:
        return str(self._root / name)


class RemoteStorage(Storage):
    """An object store, which answers a write when it is durable."""

    def __init__(self, system: AbstractFileSystem, root: str) -> None:
        self._system: Final = system
        self._root: Final = root.rstrip("/")

    @override
    def create(self, name: str, content: bytes) -> None:
        self._system.pipe_file(self._path(name), content, mode="create")

    @override
    def names(self, folder: str) -> list[str]:
        self._system.invalidate_cache()
        try:
            paths = self._system.ls(self._path(folder), detail=False)
        except FileNotFoundError:
            return []
        return sorted(PurePosixPath(path).name for path in paths)

    @override
    def open(self, name: str) -> BinaryIO:
        self._system.invalidate_cache()
        return self._system.open(self._path(name), "rb")  # type: ignore[no-any-return]

    @override
    def remove(self, name: str) -> None:
        self._system.invalidate_cache()
        with suppress(FileNotFoundError):
            self._system.rm_file(self._path(name))

    @override
    def place(self, name: str) -> str:
        return str(self._system.unstrip_protocol(self._path(name)))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def _link(temporary: Path, target: Path) -> None:
    try:
        link(temporary, target)
    except OSError as error:
        if not is_without_links(error):
            raise
        raise RefusedError(
            f"{target}: the file system has no hard links ({error}), and nothing else creates a whole file so that one "
            "of two writers loses. Use another path"
        ) from error

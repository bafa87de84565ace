"""fsspec's file system in this process's memory as a home's store: for tests of what has to run on any."""

from __future__ import annotations

import io
import os
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from typing_extensions import override
from upath import UPath

from airflow_provider_exactlyonce.storage import opening
from airflow_provider_exactlyonce.storage.remote import RemoteStore, identity_of, path_of
from airflow_provider_exactlyonce.storage.store import FileFacts, HeldError, Store, Stored, version_of

#: The file system is the process's, and does nothing in one step.
_STEP: Final = threading.Lock()
_HELD: Final[defaultdict[str, threading.Lock]] = defaultdict(threading.Lock)
_NOTES: Final[dict[str, str]] = {}


def folder() -> Path:
    """Give an empty folder, whose store the package finds."""
    place: Any = UPath(f"memory://{uuid.uuid4()}")
    opening._STORES[identity_of(place.fs), os.getpid()] = MemoryStore(place.fs)
    return place  # type: ignore[no-any-return]


class MemoryStore(RemoteStore):
    """Files that nobody else sees."""

    has_locks = True
    silence_seconds = seconds_per_read = 0.0

    @override
    def read(self, place: Path) -> Stored | None:
        try:
            content: bytes = self.system.cat_file(path_of(place))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stored(content=content, version=version_of(content))

    @override
    def create(self, place: Path, content: bytes) -> str:
        with _STEP:
            if self.read(place) is not None:
                raise FileExistsError(str(place))
            return self._put(place, content)

    @override
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        with _STEP:
            return self._put(place, content)

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        if of is None:
            super().copy(source, target)
            return
        content = io.BytesIO()  # what fsspec writes here is there from its first byte on
        with of.reading(source) as read:
            shutil.copyfileobj(read, content)
        self._put(target, content.getvalue())

    @override
    def names(self, directory: Path) -> Sequence[str]:
        return sorted({path.partition("/")[0] for path in self._files(directory)})

    @override
    def _files(self, directory: Path) -> list[str]:
        top = f"{path_of(directory).rstrip('/')}/"
        return [path.removeprefix(top) for path in self.system.find(top) if path.startswith(top)]

    @override
    @contextmanager
    def holding(self, place: Path, *, seconds: float | None = None, note: str = "") -> Iterator[None]:
        with _STEP:
            lock = _HELD[path_of(place)]
        if not lock.acquire(timeout=self.held_seconds if seconds is None else seconds):
            raise HeldError(f"another thread holds {place}", _NOTES.get(path_of(place), ""))
        try:
            _NOTES[path_of(place)] = note
            yield
        finally:
            lock.release()

    @override
    def facts(self, place: Path) -> FileFacts | None:
        try:
            info = self.system.info(path_of(place))
        except FileNotFoundError:
            return None
        if info["type"] == "directory":
            return None
        return FileFacts(size=info["size"], modified=self.system.modified(path_of(place)).timestamp())

    def _put(self, place: Path, content: bytes) -> str:
        self.system.pipe_file(path_of(place), content)
        return version_of(content)

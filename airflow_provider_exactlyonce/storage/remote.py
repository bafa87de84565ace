"""What the file systems behind fsspec have in common: they are copied and removed in one way."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.store import Readable, Store

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

COPIED_BYTES: Final = 8 * 1024 * 1024


class RemoteStore(Store):
    """Files of one file system of fsspec.

    :param system: keeps no listings: others write there, too
    """

    has_locks = False
    silence_seconds = 30.0  # a request that is not answered may take two thirds of it
    seconds_per_read = 5.0
    #: What the client below raises when it is not done what it asks, besides :class:`OSError`.
    failures: tuple[type[Exception], ...] = ()

    def __init__(self, system: AbstractFileSystem) -> None:
        self.system: Final = system

    @override
    def delete(self, place: Path) -> None:
        with self._os_errors(place), contextlib.suppress(FileNotFoundError):
            self.system.rm_file(path_of(place))

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        with self._os_errors(target):
            if of is None:
                self.system.cp_file(path_of(source), path_of(target))
                return
            with of.reading(source) as reader:
                writer = self.system.open(path_of(target), "wb")
                try:
                    shutil.copyfileobj(reader, writer, COPIED_BYTES)
                except BaseException:
                    with contextlib.suppress(OSError, *self.failures):
                        writer.discard()
                    writer.closed = True  # when it is closed, or collected, fsspec completes it
                    raise
                writer.close()

    @override
    @contextmanager
    def reading(self, place: Path) -> Iterator[Readable]:
        with self._os_errors(place), self.system.open(path_of(place), "rb") as reader:
            yield reader

    @contextmanager
    def _os_errors(self, place: Path | str) -> Iterator[None]:
        try:
            yield
        except self.failures as error:
            raise error if isinstance(error, OSError) else OSError(f"{place}: {error!r}") from error

    @override
    def holding(self, place: Path, *, seconds: float | None = None, note: str = "") -> AbstractContextManager[None]:
        raise RefusedError(f"{place} can't be held: its file system has no locks that end with their process")

    @override
    def flush(self, places: Sequence[Path]) -> None:
        """Nothing is left to do: a file is whole and kept when its write was answered."""

    @override
    def remove(self, directory: Path) -> None:
        with self._os_errors(directory), contextlib.suppress(FileNotFoundError):
            self.system.rm(path_of(directory), recursive=True)


def identity_of(system: AbstractFileSystem) -> str:
    """Return what file systems have in common that reach the same with the same rights; fsspec makes one a thread."""
    from fsspec.utils import tokenize

    return str(tokenize(type(system).__name__, system.storage_options))


def path_of(place: Any) -> str:
    """Return what fsspec calls a place."""
    return str(place.path)

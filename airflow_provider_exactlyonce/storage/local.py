"""File systems of this machine, and those that it has mounted: by rename, hard link and flock."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce import files
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.polling import poll_until
from airflow_provider_exactlyonce.storage.store import (
    FileFacts,
    HeldError,
    Readable,
    Store,
    Stored,
    version_of,
)

#: What a file system without locks answers.
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM, errno.EBADF})
_LOCK_POLL_SECONDS: Final = 0.005
_FLUSHING_THREADS: Final = 16
_FLUSHED_BY_ONE_THREAD: Final = 16  # starting one costs as much as some flushes
_COPIED_BYTES: Final = 1024 * 1024


class LocalStore(Store):
    """Files that only their owner reads.

    What is replaced or deleted with a condition has a lock beside it, ``<name without its suffix>.lock``.
    """

    @override
    def read(self, place: Path) -> Stored | None:
        try:
            content = place.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return Stored(content=content, version=version_of(content))

    @override
    def create(self, place: Path, content: bytes) -> str:
        return _write(place, content, durable=True, exclusive=True)

    @override
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        return _write(place, content, durable=durable, exclusive=False)

    @override
    def delete(self, place: Path) -> None:
        place.unlink(missing_ok=True)

    @override
    @contextmanager
    def holding(self, place: Path, *, seconds: float | None = None, note: str = "") -> Iterator[None]:
        files.make_directory(place.parent, mode=0o700)
        lock, seconds = place.with_suffix(".lock"), self.held_seconds if seconds is None else seconds
        with os.fdopen(os.open(lock, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            is_locked = poll_until(
                lambda: files.try_lock(file.fileno()), seconds=seconds, poll_seconds=_LOCK_POLL_SECONDS
            )
            if not is_locked:
                raise HeldError(f"a process has held {lock} for {seconds:.0f} s", file.read().strip())
            if note:
                file.truncate(0)
                file.write(f"{note}\n")
                file.flush()
            yield

    @override
    def names(self, directory: Path) -> Sequence[str]:
        try:
            return sorted(os.listdir(directory))
        except (FileNotFoundError, NotADirectoryError):
            return []

    @override
    def _files(self, directory: Path) -> Iterator[str]:
        def fail(error: OSError) -> None:
            if not isinstance(error, FileNotFoundError | NotADirectoryError) or Path(error.filename) != directory:
                raise error

        for folder, directories, names in os.walk(directory, onerror=fail, followlinks=True):
            inner = Path(folder).relative_to(directory)
            for link in filter(os.path.islink, (os.path.join(folder, name) for name in directories)):
                ancestors = {os.path.realpath(directory / parent) for parent in (inner, *inner.parents)}
                if os.path.realpath(link) in ancestors:  # in a circle it would never end
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), link)
            yield from (str(inner / name) for name in names)

    @override
    def facts(self, place: Path) -> FileFacts | None:
        try:
            status = place.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return FileFacts(size=status.st_size, modified=status.st_mtime)

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        target.parent.mkdir(mode=0o777 if of is None else 0o700, parents=True, exist_ok=True)
        if of is None and final and _try_link(source, target):
            return
        with (of or self).reading(source) as reader, target.open("wb") as writer:
            try:
                # What only its owner may read stays so; other file systems don't tell.
                os.fchmod(writer.fileno(), stat.S_IMODE(source.stat().st_mode) if of is None else 0o600)
                shutil.copyfileobj(reader, writer, _COPIED_BYTES)
                writer.flush()
            except BaseException:
                with suppress(OSError):
                    if os.path.samestat(os.fstat(writer.fileno()), target.stat()):
                        target.unlink()
                raise

    @override
    def reading(self, place: Path) -> AbstractContextManager[Readable]:
        return place.open("rb")

    @override
    def flush(self, places: Sequence[Path]) -> None:
        """Flush many at once: a file system writes its journal once for all that wait for it."""
        count = min(_FLUSHING_THREADS, -(-len(places) // _FLUSHED_BY_ONE_THREAD))
        with ThreadPoolExecutor(max(count, 1)) as threads:
            for _ in threads.map(_flush_each, [places[first::count] for first in range(count)]):
                pass

    @override
    def remove(self, directory: Path) -> None:
        def fail(_: object, place: str, exc_info: tuple[type, BaseException, object]) -> None:
            if not isinstance(exc_info[1], FileNotFoundError | NotADirectoryError):
                raise exc_info[1]

        shutil.rmtree(directory, onerror=fail)

    @override
    def check(self, directory: Path) -> None:
        try:
            super().check(directory)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise RefusedError(
                f"{directory} is on a file system that has neither hard links nor locks ({error.strerror}): of two "
                f"drivers both could believe that the pipeline is theirs. {self.remedy}"
            ) from error


def _write(place: Path, content: bytes, **options: Any) -> str:
    files.make_directory(place.parent, mode=0o700)
    with files.replacing(place, **options) as file:
        file.write(content)
    return version_of(content)


def _try_link(source: Path, target: Path) -> bool:
    try:
        files.link(source, target)
    except OSError as error:
        if not files.is_without_links(error):
            raise
        return False
    return True


def _flush_each(places: Iterable[Path]) -> None:
    for place in places:
        files.flush(place)

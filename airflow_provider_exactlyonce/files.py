"""Files that are replaced whole, or not at all; directories that last; and locks, which a process's death releases."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

_PRIVATE = 0o600  # what mkstemp gives
_NO_LINKS = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


@contextmanager
def replacing(
    path: Path, *, durable: bool = True, exclusive: bool = False, mode: int = _PRIVATE
) -> Iterator[IO[bytes]]:
    """Open a file that takes the place of ``path`` when the block ends; after an error in it all is as before.

    :param durable: flush to disk before and after the rename; False for what describes only the moment
    :param exclusive: create it, and never replace one that is there
    :param mode: its permissions
    :raises FileExistsError: when it is there and ``exclusive`` was asked for
    """
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if exclusive:
            _create(temporary, path)
        else:
            _rename(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    if durable:
        flush(path.parent)


def _create(temporary: str, path: Path) -> None:
    before = os.stat(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        # NFS sends a request again whose answer was lost, and finds our own link, or what has replaced it since. A link
        # within one tick of a file system's clock leaves the time as it was.
        after = os.stat(temporary)
        if after.st_nlink == 1 and after.st_ctime_ns == before.st_ctime_ns:
            raise
    except OSError as error:
        if not is_without_links(error):  # on one with links, others create without the lock
            raise
        with _only_creator(path.parent):
            if path.exists():
                raise FileExistsError(path) from None
            _rename(temporary, path)
    Path(temporary).unlink(missing_ok=True)


def _rename(temporary: str, path: Path) -> None:
    temporary_stat = os.stat(temporary)
    try:
        os.replace(temporary, path)
    except FileNotFoundError:
        # As above; but somebody may have removed it. Whether a file that has been replaced since was ours is not known.
        if not (path.exists() and os.path.samestat(temporary_stat, os.stat(path))):
            raise


def link(source: Path, target: Path) -> None:
    """Give a file a second name.

    :raises FileExistsError: when another file has it
    :raises OSError: anything else; see :func:`is_without_links`
    """
    try:
        os.link(source, target)
    except FileExistsError:  # NFS sends a request again whose answer was lost, and finds our own link
        if not source.samefile(target):
            raise


def is_without_links(error: OSError) -> bool:
    """Whether an error says that a file system has no hard links, or that there are none between two of them."""
    return isinstance(error, PermissionError) or error.errno in _NO_LINKS


@contextmanager
def _only_creator(directory: Path) -> Iterator[None]:
    """Keep other processes from creating a file by rename at the same time.

    :raises OSError: when the file system has no locks either
    """
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path, *, mode: int = 0o777) -> None:
    """Make a directory and those above it, so that what is flushed in it is found again after a loss of power.

    :param mode: its own permissions; those above it have the process's usual ones
    """
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode, exist_ok=True)
        flush(path.parent)


def try_lock(descriptor: int) -> bool:
    """Lock an open file unless another process has locked it; returns whether it is ours. Closing it unlocks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

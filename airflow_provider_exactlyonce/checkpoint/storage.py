"""Puts files where a savepoint or a lineage needs them, on local file systems and on what fsspec reaches.

A local path is a :class:`pathlib.Path`. Any other is one of universal_pathlib, such as Airflow's ObjectStoragePath: it
is asked for no more than reading, writing a whole file, and listing.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import files
from airflow_provider_exactlyonce.control.json_store import is_local

#: What a file system without hard links, or two file systems, answer.
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})

_FLUSHING_THREADS: Final = 16
_FLUSHED_BY_ONE_THREAD: Final = 16  # starting one costs as much as some flushes


def link(source: Path, target: Path) -> None:
    """Give a file that nobody writes again a second name; copy it where there are no hard links."""
    if not (is_local(source) and is_local(target)):
        copy(source, target)
        return
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a file's bytes."""
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 1024 * 1024)


def flush(path: Path) -> None:
    """Wait until a local file's bytes, or a directory's names, are on disk; others are when they are written."""
    if is_local(path):
        files.flush(path)


def flush_all(paths: Sequence[Path]) -> None:
    """Flush many at once: a file system writes its journal once for all that wait for it."""
    count = min(_FLUSHING_THREADS, -(-len(paths) // _FLUSHED_BY_ONE_THREAD))
    with ThreadPoolExecutor(max(count, 1)) as threads:
        for _ in threads.map(_flush_each, [paths[first::count] for first in range(count)]):
            pass


def _flush_each(paths: Iterable[Path]) -> None:
    for path in paths:
        flush(path)


def remove(directory: Path) -> None:
    """Remove a directory with all that is in it; one that is not there is no error."""
    if is_local(directory):
        shutil.rmtree(directory, ignore_errors=True)
        return
    remote: Any = directory
    if remote.exists():
        remote.fs.rm(remote.path, recursive=True)

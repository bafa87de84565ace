"""Puts files where a savepoint or a lineage needs them: as a second name for the same bytes, else as a copy."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Final

#: What a file system without hard links, or two file systems, answer.
_NO_LINKS: Final = frozenset({errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS})


def link(source: Path, target: Path) -> None:
    """Give a file that nobody writes again a second name; copy it where the file system has no hard links."""
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        copy(source, target)


def copy(source: Path, target: Path) -> None:
    """Copy a file's bytes."""
    with source.open("rb") as read, target.open("xb") as written:
        shutil.copyfileobj(read, written, 1024 * 1024)


def flush(path: Path) -> None:
    """Wait until a file's bytes, or a directory's names, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

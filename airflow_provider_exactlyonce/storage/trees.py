"""Whole directories: what is in them, and copies that are compared with what they are made of."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.remote import path_of
from airflow_provider_exactlyonce.storage.store import HIDDEN, version_of

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Content:
    """What tells the bytes of two files apart.

    :param size: bytes
    :param digest: SHA-256
    """

    size: int
    digest: str


def files_below(directory: Any) -> Sequence[str]:
    """Return the files in a directory and below it, relative to it, sorted; none when it is not there.

    What is nobody's file is none of them: :data:`~airflow_provider_exactlyonce.storage.store.HIDDEN`.

    :raises OSError: when the file system does not tell
    """
    paths = _local_files(directory) if isinstance(directory, Path) else _remote_files(directory)
    return sorted(path for path in paths if not any(part.startswith(HIDDEN) for part in path.split("/")))


def _remote_files(directory: Any) -> list[str]:
    top = f"{path_of(directory).rstrip('/')}/"
    try:
        paths = directory.fs.find(top)
    except FileNotFoundError:
        return []
    return [str(path).removeprefix(top) for path in paths if path.startswith(top) and not path.endswith("/")]


def _local_files(directory: Path) -> list[str]:
    def fail(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError | NotADirectoryError) or Path(error.filename) != directory:
            raise error

    walked = os.walk(directory, onerror=fail)
    return [str((Path(folder) / name).relative_to(directory)) for folder, _, names in walked for name in names]


def directories_of(top: Path, files: Iterable[Path]) -> list[Path]:
    """Return the directories whose names are new with new files, from the parent of the topmost down.

    :param files: below ``top``
    """
    return [top.parent, *{parent for file in files for parent in file.parents if top in (parent, *parent.parents)}]


def content_of(place: Path) -> Content | None:
    """Read a whole file and return what tells its bytes apart; None when there is certainly none.

    :raises OSError: when the file system does not tell
    """
    if store_of(place).facts(place) is None:
        return None
    size, digest = 0, hashlib.sha256()
    with place.open("rb") as file:  # not by hashlib.file_digest: files of HDFS have no readinto
        while piece := file.read(_READ_BYTES):
            size += len(piece)
            digest.update(piece)
    return Content(size=size, digest=digest.hexdigest())


def copy_file(source: Path, target: Path) -> tuple[Content, bool]:
    """Copy a file to a place of any file system unless it is there, and compare both.

    :returns: what is in it, and whether it was copied
    :raises FileNotFoundError: when there is no source
    :raises ExactlyOnceError: when the copy has other bytes
    """
    wanted = content_of(source)
    if wanted is None:
        raise FileNotFoundError(f"{source} is gone")
    facts = store_of(target).facts(target)
    if facts is not None and facts.size == wanted.size and content_of(target) == wanted:
        return wanted, False
    store_of(target).copy(source, target)
    check_content(target, wanted)
    return wanted, True


def check_content(place: Path, wanted: Content) -> None:
    """Check that a file that was just written has these bytes.

    :raises ExactlyOnceError: when it has others
    """
    actual = content_of(place)
    if actual != wanted:
        raise ExactlyOnceError(f"{place} was written, and has {actual}, not {wanted}: look at its file system")


def content_of_bytes(content: bytes) -> Content:
    """Return what :func:`content_of` gives for a file of these bytes."""
    return Content(size=len(content), digest=version_of(content))

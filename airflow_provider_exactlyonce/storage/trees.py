"""Copies of whole directories, which are compared with their originals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import version_of

_READ_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Content:
    """The identity of a file's bytes.

    :param size: bytes
    :param digest: SHA-256
    """

    size: int
    digest: str


def directories_of(top: Path, files: Iterable[Path]) -> list[Path]:
    """Return the directories to flush after files were created, from the parent of the topmost down.

    :param files: below ``top``
    """
    return [top.parent, *{parent for file in files for parent in file.parents if top in (parent, *parent.parents)}]


def bytes_of(place: Path) -> bytes:
    """Read a file.

    :raises FileNotFoundError: when there is certainly none
    :raises OSError: when the file system does not answer
    """
    stored = store_of(place).read(place)
    if stored is None:
        raise FileNotFoundError(f"{place} is gone")
    return stored.content


def content_of(place: Path) -> Content | None:
    """Read a whole file and return its size and digest; None when there is certainly no file.

    :raises OSError: when the file system does not answer
    """
    if store_of(place).facts(place) is None:
        return None
    size, digest = 0, hashlib.sha256()
    with store_of(place).reading(place) as file:  # not by hashlib.file_digest: files of HDFS have no readinto
        while piece := file.read(_READ_BYTES):
            size += len(piece)
            digest.update(piece)
    return Content(size=size, digest=digest.hexdigest())


def copy_file(source: Path, target: Path) -> tuple[Content, bool]:
    """Copy a file to a place of any file system unless it is there, and compare both.

    :returns: its content's identity, and whether it was copied
    :raises FileNotFoundError: when there is no source
    :raises ExactlyOnceError: when the copy has other bytes
    """
    wanted = content_of(source)
    if wanted is None:
        raise FileNotFoundError(f"{source} is gone")
    facts = store_of(target).facts(target)
    if facts is not None and facts.size == wanted.size and content_of(target) == wanted:
        return wanted, False
    copy(source, target)
    check_content(target, wanted)
    return wanted, True


def copy(source: Path, target: Path, *, final: bool = False) -> None:
    """Copy a file to a place of any file system, inside one where that can be done.

    :param final: the source is never changed again, so both may share their bytes
    :raises FileNotFoundError: when there is no source
    """
    source_store, target_store = store_of(source), store_of(target)
    target_store.copy(source, target, of=None if source_store is target_store else source_store, final=final)


def check_content(place: Path, wanted: Content) -> None:
    """Check that a file that was just written has these bytes.

    :raises ExactlyOnceError: when it has others
    """
    actual = content_of(place)
    if actual != wanted:
        raise ExactlyOnceError(f"{place} was written, and has {actual}, not {wanted}: look at its file system")


def content_of_bytes(content: bytes) -> Content:
    """Return the result of :func:`content_of` for a file of these bytes."""
    return Content(size=len(content), digest=version_of(content))

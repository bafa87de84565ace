"""One JSON document in one file: whole or absent, readable by its owner only.

A document is written to a temporary name in the same directory, flushed to disk and renamed; on an object store it is
written at once. It carries a checksum of itself, so that a file that was torn by a lost machine or a foreign hand is
never taken for a document.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.files import replacing

_CHECKSUM: Final = "checksum"

T = TypeVar("T")


def _checksum(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"crc32:{zlib.crc32(canonical.encode()):08x}"


def is_local(path: object) -> bool:
    """Tell a path of this machine's file systems from one of universal_pathlib."""
    return isinstance(path, Path)


def write(path: Path, body: Mapping[str, Any], *, durable: bool = True, exclusive: bool = False) -> None:
    """Replace the document at ``path``; readers see the old or the new one, nothing between.

    :param body: JSON values; the key ``checksum`` is ours
    :param durable: flush to disk before the rename. False for documents that describe only the moment (heartbeats).
    :param exclusive: create it, and never replace one that is there
    :raises FileExistsError: when it is there and ``exclusive`` was asked for
    """
    text = json.dumps({**body, _CHECKSUM: _checksum(body)}, indent=1)
    if not is_local(path):
        _put(path, text, exclusive=exclusive)
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replacing(path, durable=durable, exclusive=exclusive) as file:
        file.write(text.encode())


def _put(path: Any, text: str, *, exclusive: bool) -> None:
    if exclusive and path.exists():
        raise FileExistsError(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def read(path: Path, readable: Collection[int] = (1,)) -> dict[str, Any] | None:
    """Return the document's body, or None when there is none or it isn't whole.

    :param readable: numbers of the schemas that are read
    :raises RefusedError: when a newer release has written it under another one
    """
    try:
        document = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    if not isinstance(document, dict):
        return None
    checksum = document.pop(_CHECKSUM, None)
    if checksum != _checksum(document):
        return None
    codec.check_schema(document, str(path), readable)
    return document


def load(path: Path, kind: type[T]) -> T | None:
    """Return the object that the document describes, or None when there is none or it isn't whole.

    :param kind: a dataclass
    :raises RefusedError: when a newer release has written it under another schema, or it lacks something
    """
    body = read(path)
    return None if body is None else codec.load(kind, body, str(path))

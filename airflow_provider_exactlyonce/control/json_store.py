"""One JSON document in one file: whole or absent, readable by its owner only.

The store of the file system that it is on sees to it that readers find the old document or the new one. It carries a
checksum of itself, so that a file that was torn by a lost machine or a foreign hand is never taken for a document.
"""

from __future__ import annotations

import json
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.storage.opening import store_of
from airflow_provider_exactlyonce.storage.store import ChangedError, Stored

_CHECKSUM: Final = "checksum"
#: Of concurrent changes of a document, all but one are refused each time.
_TRIES: Final = 100

T = TypeVar("T")


def _checksum(body: Mapping[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return f"crc32:{zlib.crc32(canonical.encode()):08x}"


def write(path: Path, body: Mapping[str, Any], *, durable: bool = True, exclusive: bool = False) -> None:
    """Replace the document at ``path``; readers see the old or the new one, nothing between.

    :param body: JSON values; the key ``checksum`` is ours
    :param durable: flush to disk before the rename. False for documents that describe only the moment (heartbeats).
    :param exclusive: create it, and never replace one that is there
    :raises FileExistsError: when it is there and ``exclusive`` was asked for
    :raises OutcomeUnknownError: when it is unknown whether it was written
    """
    store, content = store_of(path), _encoded(body)
    if exclusive:
        store.create(path, content)
    else:
        store.replace(path, content, durable=durable)


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps({**body, _CHECKSUM: _checksum(body)}, indent=1).encode()


@dataclass
class _Look:
    """What was read in one look.

    :ivar answers: by path; the error where there was no answer
    :ivar silence: what came in the place of an answer after a long time: whoever asks again waits as long again
    """

    answers: dict[str, Stored | OSError | None] = field(default_factory=dict)
    silence: OSError | None = None


#: None outside of one.
_LOOK: Final[ContextVar[_Look | None]] = ContextVar("one look at a home", default=None)
_LONG_SECONDS: Final = 2.0


@contextmanager
def one_look() -> Iterator[None]:
    """Read each document once, as it is when it is first asked for; for who only looks, and looks again.

    An error is shared as a document is; one that took long is that of all documents which are asked for later.
    """
    token = _LOOK.set(_Look())
    try:
        yield
    finally:
        _LOOK.reset(token)


def _stored(path: Path) -> Stored | None:
    look = _LOOK.get()
    if look is None:
        return store_of(path).read(path)
    if look.silence is not None:
        raise look.silence
    if str(path) not in look.answers:
        asked_at = time.monotonic()
        try:
            look.answers[str(path)] = store_of(path).read(path)
        except OSError as error:
            look.answers[str(path)] = error
            look.silence = error if time.monotonic() - asked_at > _LONG_SECONDS else None
    answer = look.answers[str(path)]
    if isinstance(answer, OSError):
        raise answer
    return answer


def read(path: Path, readable: Collection[int] = (1,)) -> dict[str, Any] | None:
    """Return the document's body, or None when there is none or it isn't whole.

    :param readable: numbers of the schemas that are read
    :raises RefusedError: when a newer release has written it under another one
    :raises OSError: when the file system does not tell
    """
    return _body(_stored(path), path, readable)


def _body(stored: Stored | None, path: Path, readable: Collection[int] = (1,)) -> dict[str, Any] | None:
    try:
        document = None if stored is None else json.loads(stored.content)
    except ValueError:
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

    :raises RefusedError: when a newer release has written it under another schema, or it lacks something
    """
    return _loaded(_stored(path), path, kind)


def _loaded(stored: Stored | None, path: Path, kind: type[T]) -> T | None:
    body = _body(stored, path)
    return None if body is None else codec.load(kind, body, str(path))


def change(path: Path, kind: type[T], decide: Callable[[T | None], T | None], *, durable: bool = True) -> T | None:
    """Read, change and write a document, again whenever another process was faster; returns what was written.

    :param decide: gets the document, None when there is none or it isn't whole; returns its replacement, None to
        leave it as it is
    :param durable: flush to disk before the rename
    :raises RefusedError: as :func:`load` does
    :raises HeldError: when another process keeps it from being changed
    :raises OutcomeUnknownError: when it is unknown whether it was written
    """
    for _ in range(_TRIES):
        stored = store_of(path).read(path)
        document = decide(_loaded(stored, path, kind))
        if document is None or _swapped(path, stored, document, durable=durable):
            return document
    raise _never_left_alone(path)


def swap(path: Path, stored: Stored | None, made: Any) -> None:
    """Replace a document unless it was changed since it was read.

    :param stored: the document as it was read, None when there was none
    :param made: a dataclass, or the document's body
    :raises ChangedError: when another process was faster
    :raises HeldError: when another process keeps it from being changed
    :raises OutcomeUnknownError: when it is unknown whether it was written
    """
    if not _swapped(path, stored, made, durable=True):
        raise ChangedError(f"{path} was changed since it was read")


def overwrite(path: Path, made: Any) -> None:
    """Write a document whatever is there; no change that was decided before comes after it.

    :raises HeldError: when another process keeps it from being changed
    :raises OutcomeUnknownError: when it is unknown whether it was written
    """
    for _ in range(_TRIES):
        if _swapped(path, store_of(path).read(path), made, durable=True):
            return
    raise _never_left_alone(path)


def _swapped(path: Path, stored: Stored | None, document: Any, *, durable: bool) -> bool:
    store, content = store_of(path), _encoded(document if isinstance(document, Mapping) else codec.dump(document))
    with suppress(FileExistsError, ChangedError):
        if stored is None:
            store.create(path, content)
        else:
            store.replace_if(path, content, stored.version, durable=durable)
        return True
    return False


def rewrite(path: Path) -> None:
    """Write a document as it is, if there is one: to know whether the file system takes writes.

    :raises OSError: when it does not
    :raises OutcomeUnknownError: when nobody knows
    """
    store = store_of(path)
    if (stored := store.read(path)) is not None:
        with suppress(ChangedError):
            store.replace_if(path, stored.content, stored.version)


def remove(path: Path, kind: type[T], doomed: Callable[[T | None], bool]) -> None:
    """Remove a document if ``doomed`` says so, which is asked again whenever another process has changed it.

    :param doomed: gets the document, None when it isn't whole
    :raises RefusedError: as :func:`load` does
    :raises HeldError: when another process keeps it from being changed
    :raises OutcomeUnknownError: when it is unknown whether it was removed
    """
    store = store_of(path)
    for _ in range(_TRIES):
        if (stored := store.read(path)) is None or not doomed(_loaded(stored, path, kind)):
            return
        with suppress(ChangedError):
            store.delete_if(path, stored.version)
            return
    raise _never_left_alone(path)


def _never_left_alone(path: Path) -> ChangedError:
    return ChangedError(f"{path} was changed {_TRIES} times between a look and a write; see what writes there")

"""The contract of a home with its file system.

A *place* is a :class:`pathlib.Path` on this machine's file systems, and a path of universal_pathlib, such as Airflow's
ObjectStoragePath, on any other. :func:`~airflow_provider_exactlyonce.storage.opening.store_of` finds its store.

**What is atomic.** :meth:`Store.create`, :meth:`Store.replace`, :meth:`Store.replace_if`: a reader finds the old
content or the new one, whole, and the new one as soon as the call has returned. :meth:`Store.copy` and
:meth:`Store.remove` are not: a call that is killed leaves a part. So a directory counts only after a document has been
written in it last, and no longer after a document says that it is being removed.

**What outlives a power failure.** A durable write, after the call has returned; a copy, after :meth:`Store.flush`.

**Versions** distinguish contents, and nothing else: the same bytes written twice may have the same version. A writer
that has to distinguish its own write adds unique bytes to the content.

**No, and don't know.** These three mean *no*: the place is as others have left it, and nothing of ours comes later.

* ``None`` of a read: there is no such file;
* :class:`FileExistsError` of a create;
* :class:`ChangedError`, or :class:`HeldError`, of a conditional change: the place is not as it was read.

:class:`OutcomeUnknownError` means *don't know*: it was written, or not, or will be yet. Any other :class:`OSError` of a
write means the same; of a read, that nothing is known. A second read of the place returns its content of then.
"""

from __future__ import annotations

import errno
import hashlib
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError

#: What no repetition changes, or no file system says. A full disk may be emptied, and a lost server be found.
_FOR_GOOD: Final = frozenset((errno.E2BIG, errno.EINVAL, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOMEM, errno.EROFS))

#: Names that begin so are temporary: files that are being written or tested, and locks.
HIDDEN: Final = ".exactlyonce-"


class ChangedError(ExactlyOnceError):
    """The place was changed since it was read: another process was faster, and nothing was written."""


class OutcomeUnknownError(ExactlyOnceError):
    """The outcome of a write is unknown: it was made, or not, or may be made yet."""


class HeldError(ExactlyOnceError):
    """Another process keeps a place from being changed.

    :param note: the holder's own description
    """

    def __init__(self, message: str, note: str) -> None:
        super().__init__(message)
        self.note: Final = note


class Readable(Protocol):
    """An open file."""

    def read(self, size: int = -1, /) -> bytes:
        """Return so many of the next bytes, fewer or none at its end; all that are left for -1."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A file's content, and its version."""

    content: bytes
    version: str


@dataclass(frozen=True, kw_only=True)
class FileFacts:
    """A file's facts, known without reading it.

    :param size: bytes
    :param modified: seconds since the epoch, by the file system's clock
    """

    size: int
    modified: float


def is_no_answer(error: BaseException) -> bool:
    """Whether an error of a file system says nothing, and the same question may be answered later."""
    if isinstance(error, OSError):
        for_good = FileNotFoundError | PermissionError | NotADirectoryError | IsADirectoryError | FileExistsError
        return not isinstance(error, for_good) and error.errno not in _FOR_GOOD
    return isinstance(error, OutcomeUnknownError)


def version_of(content: bytes) -> str:
    """Return the version of a content, on file systems that keep none."""
    return hashlib.sha256(content).hexdigest()


class Store(ABC):
    """One file system. All of it may be called by several threads, and at the same time by other processes."""

    @abstractmethod
    def read(self, place: Path) -> Stored | None:
        """Read a file; None when there is certainly none.

        :raises OSError: when the file system does not tell
        """

    @abstractmethod
    def create(self, place: Path, content: bytes) -> str:
        """Create a file durably, with the directories above; of concurrent creates of one place, one succeeds.

        :returns: its version
        :raises FileExistsError: it is there, and as it was
        :raises OutcomeUnknownError: it is unknown whether it was created
        """

    @abstractmethod
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        """Create or replace a file, with the directories above; returns its version.

        A write that was not answered may be made after a later one: nothing that must not go back is written this way.

        :param durable: False for what describes only the moment
        :raises OutcomeUnknownError: its content is unknown
        """

    def replace_if(self, place: Path, content: bytes, version: str, *, durable: bool = True) -> str:
        """Replace a file unless it was changed; of concurrent calls for a version one succeeds. Returns the new one.

        Certain against :meth:`create`, :meth:`replace_if` and :meth:`delete_if` of others. Whoever uses
        :meth:`replace` or :meth:`delete` on the same place wants it changed whatever others do. Where places can't be
        held, a store has another way, here and in :meth:`delete_if`.

        :param version: of the content to replace
        :param durable: False for what describes only the moment
        :raises ChangedError: it has another version, or is gone
        :raises OutcomeUnknownError: it is unknown whether it was replaced
        """
        with self.holding(place):
            self._check_unchanged(place, version)
            return self.replace(place, content, durable=durable)

    @abstractmethod
    def delete(self, place: Path) -> None:
        """Delete a file. One that is not there is no error; so it may be repeated."""

    def delete_if(self, place: Path, version: str) -> None:
        """Delete a file unless it was changed. One that is not there is no error.

        :param version: of the content to delete
        :raises ChangedError: it has another version
        """
        with self.holding(place):
            if self.read(place) is not None:
                self._check_unchanged(place, version)
                self.delete(place)

    @abstractmethod
    def holding(self, place: Path, *, seconds: float | None = None, note: str = "") -> AbstractContextManager[None]:
        """Keep everybody else from changing a place with a condition, and from holding it; ends with the process.

        While it lasts, its holder changes the place by :meth:`replace` and :meth:`delete`.

        :param seconds: for so long another holder is waited for, 0 for not at all; None for :attr:`held_seconds`
        :param note: describes the holder in others' messages
        :raises HeldError: when another process holds it
        :raises RefusedError: when the file system has no locks
        """

    @abstractmethod
    def names(self, directory: Path) -> Sequence[str]:
        """Return the names in a directory, sorted; none when it is not there.

        Everything created before the call is listed, and no file that was deleted before. A directory that has become
        empty may be listed.
        """

    def files(self, directory: Path) -> Sequence[str]:
        """Return the files in a directory and below it, relative to it, sorted; none when it is not there.

        Temporary files are left out: :data:`HIDDEN`.

        :raises OSError: when the file system does not tell of all of them
        """
        paths = self._files(directory)
        return sorted(path for path in paths if not any(part.startswith(HIDDEN) for part in path.split("/")))

    @abstractmethod
    def _files(self, directory: Path) -> Iterable[str]:
        """Return all files in a directory and below it, relative to it."""

    @abstractmethod
    def facts(self, place: Path) -> FileFacts | None:
        """Return a file's facts, None when there is certainly no file."""

    @abstractmethod
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        """Copy a file to a place of this store, inside the file system where that can be done.

        After an error nothing that looks finished is there: no file, or the one that was there before.

        :param of: the source's store, None for this one
        :param final: the source is never changed again, so both may share their bytes
        :raises FileNotFoundError: when there is no source
        """

    @abstractmethod
    def reading(self, place: Path) -> AbstractContextManager[Readable]:
        """Open a file that is read from its first byte to its last.

        :raises FileNotFoundError: when there is none
        """

    @abstractmethod
    def flush(self, places: Sequence[Path]) -> None:
        """Make copies outlive a power failure: files, and new names of directories."""

    @abstractmethod
    def remove(self, directory: Path) -> None:
        """Remove a directory with all that is in it; one that is not there is no error.

        :raises OSError: when something in it was not removed
        """

    def check(self, directory: Path) -> None:
        """Test, in a directory, that the file system keeps the contract for two writers; leaves nothing there.

        :raises RefusedError: when it does not
        :raises OSError: when the file system does not answer
        """
        test_directory = directory / f"{HIDDEN}{uuid.uuid4().hex}"
        try:
            broken = self._broken_promise(test_directory / "probe")
        finally:
            with suppress(OSError, ExactlyOnceError):
                self.remove(test_directory)
        if broken is not None:
            raise RefusedError(
                f"{directory} is on a file system that {broken}: of two drivers both could believe that the pipeline "
                f"is theirs. {self.remedy}"
            )

    def _check_unchanged(self, place: Path, version: str) -> None:
        """Compare a version with the place's; for callers that hold the place."""
        stored = self.read(place)
        if stored is None or stored.version != version:
            raise ChangedError(f"{place} {'is gone' if stored is None else 'was changed'} since it was read")

    def _broken_promise(self, place: Path) -> str | None:
        first = self.create(place, b"first")
        if _is_done(lambda: self.create(place, b"second"), FileExistsError):
            return "creates a file that is there"
        second = self.replace_if(place, b"second", first)
        if _is_done(lambda: self.replace_if(place, b"third", first), ChangedError):
            return "replaces a file that was changed, in spite of the condition"
        if _is_done(lambda: self.delete_if(place, first), ChangedError):
            return "deletes a file that was changed, in spite of the condition"
        return None if self.read(place) == Stored(content=b"second", version=second) else "does not read what it wrote"

    #: Whether a place can be held; where none can, decisions are one document that is replaced if unchanged.
    has_locks: bool = True
    #: A process that holds a place for longer, in order to change it, is frozen.
    held_seconds: float = 10.0
    #: A living process that writes every few seconds may be silent for so long, because of the file system.
    silence_seconds: float = 0.0
    #: A watcher reads a document so often at most: where each read costs money, and a slow one holds up others.
    seconds_per_read: float = 0.0
    #: What to do about a file system that does not keep the contract.
    remedy: str = "Use another one: `exactlyonce help homes` has those that were tested"


def _is_done(write: Callable[[], object], refusal: type[Exception]) -> bool:
    """Whether a write is done that has to be refused."""
    try:
        write()
    except refusal:
        return False
    return True

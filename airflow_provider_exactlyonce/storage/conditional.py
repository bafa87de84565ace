"""Object stores that write and delete on a condition.

Each request that writes is sent once by the client below, and repeated only here, where it is known that an earlier one
was not answered: a server that refuses the second because the first was made must not make us believe that another
process was faster. So each write carries a mark of its own in the object's metadata, which identifies its writer.
"""

from __future__ import annotations

import time
import uuid
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from typing_extensions import override

from airflow_provider_exactlyonce.storage.remote import RemoteStore, path_of
from airflow_provider_exactlyonce.storage.store import ChangedError, FileFacts, OutcomeUnknownError, Readable, Store

#: Name of the metadata that tells whose write it was.
MARK: Final = "exactlyonce-write"
#: Seconds before each try of a request that writes.
PAUSES: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 4.0)

#: What has to be so, in a client's words; nothing for a request without a condition.
Condition: TypeAlias = Mapping[str, Any]


class UnmadeError(OSError):
    """A request has changed nothing, and the same one may succeed."""


@dataclass(frozen=True, kw_only=True)
class ObjectMetadata:
    """An object's metadata, known without reading it.

    :param mark: of the write that made it, None for an object that others have written
    """

    facts: FileFacts
    version: str
    mark: str | None


class ConditionalStore(RemoteStore):
    """Objects of one server that judges a condition and writes, or deletes, in one step.

    A request is sent once by :meth:`_put` and :meth:`_drop`. What they raise says what became of it:
    :class:`ChangedError`, its condition was not met, or the object is gone; :class:`UnmadeError`;
    :class:`OutcomeUnknownError`, the outcome is unknown; any other error: it would fail again.
    """

    @override
    def facts(self, place: Path) -> FileFacts | None:
        metadata = self._metadata(place)
        return None if metadata is None else metadata.facts

    @override
    def create(self, place: Path, content: bytes) -> str:
        try:
            return self._write(place, content, self._unchanged(None))
        except ChangedError:
            raise FileExistsError(str(place)) from None

    @override
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        return self._write(place, content, {})

    @override
    def replace_if(self, place: Path, content: bytes, version: str, *, durable: bool = True) -> str:
        return self._write(place, content, self._unchanged(version))

    @override
    def delete_if(self, place: Path, version: str) -> None:
        failure: Exception | None = None
        for pause in PAUSES:
            time.sleep(pause)
            try:
                self._drop(place, self._unchanged(version))
            except ChangedError:
                if self._metadata(place) is not None:
                    raise
                return
            except (UnmadeError, OutcomeUnknownError) as error:
                failure = error
            else:
                return
        if self._metadata(place) is not None:
            raise OutcomeUnknownError(f"nobody knows whether {place} was deleted: {failure}") from failure

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        with self._certainly_missing(source) if of is None else nullcontext():
            super().copy(source, target, of=of, final=final)

    @override
    @contextmanager
    def reading(self, place: Path) -> Iterator[Readable]:
        with ExitStack() as opened:
            with self._certainly_missing(place):
                reader = opened.enter_context(super().reading(place))
            yield reader

    @contextmanager
    def _certainly_missing(self, place: Path) -> Iterator[None]:
        """Let no 404 of a proxy pass, which the clients below take for the server's own."""
        try:
            yield
        except FileNotFoundError as error:
            if self._metadata(place) is None:
                raise
            raise OSError(f"{place}: {error}") from error

    @override
    def names(self, directory: Path) -> Sequence[str]:
        return sorted({name.rstrip("/") for name in self._below(directory, delimiter="/")} - {""})

    @override
    def _files(self, directory: Path) -> Iterable[str]:
        return (name for name in self._below(directory) if name and not name.endswith("/"))

    def _below(self, directory: Path, delimiter: str = "") -> Iterator[str]:
        bucket, key = self._split(directory)
        prefix = f"{key.strip('/')}/"
        return (name.removeprefix(prefix) for name in self._listed(bucket, prefix, delimiter))

    def _write(self, place: Path, content: bytes, condition: Condition) -> str:
        """Write an object, if a condition is met; returns its version.

        :raises ChangedError: it is not, and nothing was written
        """
        mark, failure, unanswered = uuid.uuid4().hex, None, None
        for pause in PAUSES:
            time.sleep(pause)
            try:
                return self._put(place, content, mark, condition)
            except ChangedError:
                if unanswered is None:
                    raise
                break
            except UnmadeError as error:
                failure = error
            except OutcomeUnknownError as error:
                unanswered = error
        if unanswered is None:
            raise OSError(f"{place} was not written: {failure}") from failure
        # One that was not answered may have been made, and be the reason why the next was refused.
        metadata = self._metadata(place)
        if metadata is not None and metadata.mark == mark:
            return metadata.version
        raise OutcomeUnknownError(f"nobody knows whether {place} was written: {unanswered}") from unanswered

    @abstractmethod
    def _unchanged(self, version: str | None) -> Condition:
        """Return the condition that an object has this version, or, without one, that there is none."""

    @abstractmethod
    def _put(self, place: Path, content: bytes, mark: str, condition: Condition) -> str:
        """Send a request to write an object; returns its version."""

    @abstractmethod
    def _drop(self, place: Path, condition: Condition) -> None:
        """Send a request to delete an object."""

    @abstractmethod
    def _metadata(self, place: Path) -> ObjectMetadata | None:
        """Return an object's metadata, None when there is certainly no object; retries while there is no answer."""

    @abstractmethod
    def _listed(self, bucket: str, prefix: str, delimiter: str) -> Iterator[str]:
        """Yield the objects with a prefix; those with a delimiter after the prefix give one name, up to it."""

    def _split(self, place: Path) -> tuple[str, str]:
        """Return the bucket and the key of a place."""
        bucket, key, _ = self.system.split_path(path_of(place))
        return bucket, key

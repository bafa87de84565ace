"""HDFS: by rename, which the name node makes in one step, over a file that is there or only where none is.

A file is written whole in a directory of its own, and renamed to its place from there. A write on a condition has the
place's lock meanwhile: that directory, renamed to where all look for the lock. As the new file comes *out of the lock*,
a lock can be broken: whoever deletes what its holder has in it makes sure that the holder, frozen or slow, never writes
by it.

The client below may repeat by itself what was not answered, and the second request is refused because of the first. So
no refusal is believed: where the new file is tells whether it was renamed. And its connections to data nodes are the
process's, which a fork would share: what is read by one process could be another's answer.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hdfs_native import WriteOptions
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.storage.hdfs_connection import HdfsConnection, HdfsReader, HdfsWriter
from airflow_provider_exactlyonce.storage.remote import COPIED_BYTES, RemoteStore, path_of
from airflow_provider_exactlyonce.storage.store import (
    HIDDEN,
    FileFacts,
    OutcomeUnknownError,
    Readable,
    Store,
    Stored,
    version_of,
)

if TYPE_CHECKING:
    from hdfs_native.fsspec import HdfsFileSystem

#: How often a file is read, as the blocks of one that is replaced meanwhile may be gone; and one is taken back.
_ATTEMPTS: Final = 3
_LOCK_POLL_SECONDS: Final = 0.02

#: The process that uses HDFS.
_user: list[int] = []


def open_store(system: HdfsFileSystem) -> HdfsStore:
    """Return the store of a file system.

    :raises RefusedError: when HDFS was used before this process was forked
    """
    _user.append(os.getpid())
    if _user[0] != os.getpid():
        raise RefusedError(
            f"process {_user[0]} has used HDFS before it forked process {os.getpid()}: they would share connections. "
            "Start the process anew instead of forking it, or fork before HDFS is used"
        )
    return HdfsStore(system)


class HdfsStore(RemoteStore):
    """Files of one name service, that only their owner reads.

    :param system: of hdfs-native
    """

    #: A name node that has just started answers for half a minute and takes no writes; then the holder of a lease hears
    #: of its last one, and writes the next.
    silence_seconds = 60.0

    def __init__(self, system: HdfsFileSystem) -> None:
        super().__init__(system)
        options = {name: value for name, value in system.storage_options.items() if name not in ("host", "port")}
        self._connection: Final = HdfsConnection(system.unstrip_protocol("").rstrip("/"), options)

    @override
    def read(self, place: Path) -> Stored | None:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                content = self._connection.ask(lambda client: client.read(path_of(place)).read())
            except FileNotFoundError:
                return None
            except TimeoutError:  # whoever asks again waits as long again
                raise
            except OSError:
                if attempt == _ATTEMPTS:
                    raise
            else:
                return Stored(content=content, version=version_of(content))
        raise AssertionError("the last attempt returns or raises")

    @override
    def facts(self, place: Path) -> FileFacts | None:
        status = self._status(path_of(place))
        return None if status is None else FileFacts(size=status.length, modified=status.modification_time / 1000)

    @override
    def create(self, place: Path, content: bytes) -> str:
        with self._staging_folder(place, content) as folder:
            try:
                self._move(f"{folder}/file", place, content, overwrite=False)
            except FileExistsError:
                raise FileExistsError(str(place)) from None
        return version_of(content)

    @override
    def replace(self, place: Path, content: bytes, *, durable: bool = True) -> str:
        with self._staging_folder(place, content, durable=durable) as folder:
            self._move(f"{folder}/file", place, content, overwrite=True)
        return version_of(content)

    @override
    def replace_if(self, place: Path, content: bytes, version: str, *, durable: bool = True) -> str:
        with (
            self._staging_folder(place, content, durable=durable) as folder,
            self._locking(place, folder) as lock_folder,
        ):
            self._check_unchanged(place, version)
            self._move(f"{lock_folder}/file", place, content, overwrite=True)
        return version_of(content)

    @override
    def delete(self, place: Path) -> None:
        self._delete(path_of(place))

    @override
    def delete_if(self, place: Path, version: str) -> None:
        if self.read(place) is None:
            return
        with self._staging_folder(place, b"") as folder, self._locking(place, folder) as lock_folder:
            if self.read(place) is None:
                return
            self._check_unchanged(place, version)
            try:  # into the lock: who breaks it has made sure that this is not done any more
                self._rename(path_of(place), f"{lock_folder}/deleted")
            except OSError as error:
                if not self._is_there(f"{lock_folder}/deleted") and self.read(place) is not None:
                    raise OutcomeUnknownError(f"nobody knows whether {place} was deleted: {error}") from error

    @override
    def names(self, directory: Path) -> Sequence[str]:
        names = (str(status.path).rpartition("/")[2] for status in self._listed(path_of(directory)))
        return sorted(name for name in names if not name.startswith(HIDDEN))

    @override
    def _files(self, directory: Path) -> list[str]:
        statuses = self._listed(path_of(directory), below=True)
        top = f"{path_of(directory).rstrip('/')}/"
        return [str(status.path).removeprefix(top) for status in statuses if not status.isdir]

    @override
    def copy(self, source: Path, target: Path, *, of: Store | None = None, final: bool = False) -> None:
        self._make_directory(path_of(target.parent))
        with (of or self).reading(source) as reader:
            temporary = f"{path_of(target.parent)}/{HIDDEN}{uuid.uuid4().hex}"
            try:
                with self._new_file(temporary, durable=True) as writer:
                    shutil.copyfileobj(reader, writer, COPIED_BYTES)
                try:
                    self._rename(temporary, path_of(target), overwrite=True)
                except OSError:
                    if self._is_there(temporary):  # else an earlier request of the client has renamed it
                        raise
            except BaseException:
                with suppress(OSError):
                    self._delete(temporary)
                raise

    @override
    @contextmanager
    def reading(self, place: Path) -> Iterator[Readable]:
        yield HdfsReader(self._connection, path_of(place))

    @override
    def remove(self, directory: Path) -> None:
        self._delete(path_of(directory), below=True)

    @contextmanager
    def _new_file(self, path: str, *, durable: bool) -> Iterator[HdfsWriter]:
        options = WriteOptions(permission=0o600, create_parent=False, overwrite=False)
        file = HdfsWriter(self._connection, lambda client: client.create(path, options))
        try:
            yield file
            if durable:
                file.sync()
        except BaseException as error:
            if not isinstance(error, TimeoutError):  # a request that hangs has the file
                with suppress(OSError):
                    file.close()
            raise
        file.close()

    @contextmanager
    def _staging_folder(self, place: Path, content: bytes, *, durable: bool = True) -> Iterator[str]:
        """Give a directory's path in which there is only ``file``, with a content; it goes at the end."""
        parent = path_of(place).rpartition("/")[0]
        name = uuid.uuid4().hex
        outer = f"{parent}/{HIDDEN}{name}"
        self._make_directory(f"{outer}/{name}")
        try:
            with self._new_file(f"{outer}/{name}/file", durable=durable) as file:
                file.write(content)
            yield f"{outer}/{name}"
        finally:
            with suppress(OSError):
                self._delete(outer, below=True)

    def _move(self, source: str, place: Path, content: bytes, *, overwrite: bool) -> None:
        """Rename a file with a content to its place. Only we rename it, and who breaks the lock in which it is.

        :raises FileExistsError: there is a file at the place, and it is not to be replaced
        :raises OSError: it was not renamed, nor will be
        :raises OutcomeUnknownError: nobody knows whether it was renamed
        """
        try:
            self._rename(source, path_of(place), overwrite=overwrite)
        except OSError as error:
            for _ in range(_ATTEMPTS):  # to take it back: what is not there any more is not renamed later either
                with suppress(OSError):
                    self._rename(source, f"{source}-back")
                if self._is_there(f"{source}-back"):
                    raise
            stored = self.read(place)
            if self._is_there(source) or stored is None or stored.content != content:
                raise OutcomeUnknownError(f"nobody knows whether {place} was written: {error}") from error

    @contextmanager
    def _locking(self, place: Path, folder: str) -> Iterator[str]:
        """Hold a place's lock with a directory of :meth:`_staging_folder`; gives the directory's path meanwhile."""
        parent, _, name = path_of(place).rpartition("/")
        outer, _, holder = folder.rpartition("/")
        lock = f"{parent}/{HIDDEN}lock-{name}"
        other_holder, held_since, empty_since = "", 0.0, 0.0
        while not self._try_lock(outer, lock, holder):
            names = [str(status.path).rpartition("/")[2] for status in self._listed(lock)]
            error = None if names else self._unlock(lock)
            empty_since = 0.0 if error is None else empty_since or time.monotonic()
            if error is not None and time.monotonic() - empty_since > self.held_seconds:
                raise OSError(
                    f"{place} was not changed: nobody holds its lock, the empty directory {lock}, and HDFS has refused "
                    f"to delete it for {self.held_seconds:g} s: {error}. Delete it, or let this user delete it"
                ) from error
            if not names:
                pass
            elif names[0] != other_holder:
                other_holder, held_since = names[0], time.monotonic()
            elif time.monotonic() - held_since > self.held_seconds:
                self._delete(f"{lock}/{other_holder}", below=True)
            time.sleep(_LOCK_POLL_SECONDS)
        try:
            yield f"{lock}/{holder}"
        finally:
            with suppress(OSError):
                self._delete(f"{lock}/{holder}", below=True)
            self._unlock(lock)

    def _try_lock(self, outer: str, lock: str, holder: str) -> bool:
        try:
            self._rename(outer, lock)
        except OSError as error:
            is_ours = self._is_there(f"{lock}/{holder}")
            if not is_ours and not isinstance(error, FileExistsError):
                raise
            return is_ours
        return True

    def _unlock(self, lock: str) -> OSError | None:
        """Remove a lock that nobody holds; returns why not, as when somebody does again."""
        try:
            self._delete(lock)
        except OSError as error:
            return error
        return None

    def _listed(self, directory: str, *, below: bool = False) -> list[Any]:
        try:
            statuses = list(self._connection.listed(directory, below=below))
        except FileNotFoundError:
            if below and self._is_there(directory):  # what is in it went while it was listed
                raise
            return []
        return [status for status in statuses if str(status.path) != directory]  # which a file's listing has

    def _is_there(self, path: str) -> bool:
        return self._status(path) is not None

    def _status(self, path: str) -> Any:
        try:
            return self._connection.ask(lambda client: client.get_file_info(path))
        except FileNotFoundError:
            return None

    def _make_directory(self, path: str) -> None:
        self._connection.ask(lambda client: client.mkdirs(path, 0o700, True))

    def _rename(self, source: str, target: str, *, overwrite: bool = False) -> None:
        self._connection.ask(lambda client: client.rename(source, target, overwrite))

    def _delete(self, path: str, *, below: bool = False) -> None:
        """Delete a file, an empty directory, or a directory with all that is below."""
        self._connection.ask(lambda client: client.delete(path, below))

"""A pipeline's home: its one directory.

::

    <home>/home.json                      identity of the home
    <home>/current                        which lineage is in use; or where the home was moved to, see control/moving.py
    <home>/lineages/<id>/lineage.json     which ledger the lineage belongs to
    <home>/lineages/<id>/progress.json    the last commit that its driver has seen
    <home>/lineages/<id>/checkpoint/      Spark's checkpoint, Spark's query id is <id>
    <home>/lineages/<id>/jobs/            descriptions of the jobs that ran in it, by version
    <home>/savepoints/<id>/               see checkpoint/savepoints.py
    <home>/control/lease.json, standby.json, status.json, intent.json, commands/, logs/

What a process writes by itself, its output, is on its host where the home is not on a mounted file system.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.codec import Rewritten
from airflow_provider_exactlyonce.control import json_store, moving
from airflow_provider_exactlyonce.control.moving import SCHEMA, HomeDocument
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.storage.opening import is_local, location_of, place_of, store_of
from airflow_provider_exactlyonce.storage.store import Stored, is_no_answer


@dataclass(frozen=True, kw_only=True)
class Lineage(Rewritten):
    """A lineage's own document: the ledger that it belongs to, and where its batches are in it.

    Batch ``base_batch`` left the state of commit ``base_commit``; from there on each batch is one commit. A restored
    lineage begins with commits of its parent, which it runs again without writing.

    :param id: Spark's query id
    :param cluster_id: the Kafka cluster of the ledger, None before the first claim
    :param ledger_topic_id: the ledger topic's id, None before the first claim
    :param last_commit: number of the last commit that the driver has seen, 0 for none
    :param savepoint: the savepoint that it was restored from, None for none
    :param parent: the lineage of the newest run when it was restored, None for none
    :param parent_run: the newest run when it was restored
    :param parent_commit: the newest commit when it was restored
    :param reemits: its first commit's output is a repetition: it was restored at this commit in mode ``reemit``
    :param accept_nondeterminism: rows that differ when they are run again don't stop the replay
    :param abandoned_for: the lineage that replaced it
    """

    id: str
    cluster_id: str | None = None
    ledger_topic_id: str | None = None
    last_commit: int = 0
    base_batch: int = -1
    base_commit: int = 0
    savepoint: str | None = None
    parent: str | None = None
    parent_run: int = 0
    parent_commit: int = 0
    reemits: int | None = None
    accept_nondeterminism: bool = False
    abandoned_for: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the body of ``lineage.json``."""
        return {"schema": SCHEMA, **codec.dump(self)}

    def batch_of(self, commit: int) -> int:
        """Return the batch that is, or would be, a commit."""
        return self.base_batch + commit - self.base_commit

    def commit_of(self, batch: int) -> int:
        """Return the commit that a batch is, or would be."""
        return self.base_commit + batch - self.base_batch

    def state_of(self, batch: int) -> int:
        """Return the commit of a batch's state: an older one than the batch's own after a ``reemit``."""
        return self.commit_of(batch) if self.reemits is None or batch != self.base_batch else self.reemits


@dataclass(frozen=True, kw_only=True)
class _Pointer:
    """The body of ``current``.

    :param change: tells two that name one lineage apart
    :param deleted: nothing goes on in the lineage: its checkpoint is deleted, or is about to be
    """

    schema: int = SCHEMA
    lineage: str
    deleted: bool = False
    change: str = field(default_factory=lambda: uuid.uuid4().hex)


class Home:
    """Reads and writes the documents of one pipeline's home.

    :param location: a local path, a ``file:`` URI, ``s3://bucket/directory``, ``gs://bucket/directory`` or
        ``abfss://container@account.dfs.core.windows.net/directory`` with the environment's credentials, or
        ``hdfs://host:port/directory``
    :param place: where that is, when it takes more than the location to open it: it names an Airflow connection
    :raises RefusedError: when the location is of another kind
    """

    def __init__(self, location: str | Path, place: Path | None = None) -> None:
        self.path: Final = place_of(location) if place is None else place
        self.location: Final = str(self) if place is None else str(location)  # opens it again, in the same half
        self.lineages: Final = self.path / "lineages"
        self.control: Final = self.path / "control"
        self.lease: Final = self.control / "lease.json"
        self.standby: Final = self.control / "standby.json"
        self.status: Final = self.control / "status.json"
        self.intent: Final = self.control / "intent.json"
        self.restarts: Final = self.control / "restarts.json"
        self.commands: Final = self.control / "commands"
        self.here: Final = self.control if is_local(self.path) else _host_directory(str(self))
        self.logs: Final = self.here / "logs"
        #: Where the ends of outputs are kept whose files are elsewhere.
        self.kept_logs: Final = self.control / "logs" if self.here != self.control else None
        self.savepoints: Final = self.path / "savepoints"
        self.backfills: Final = self.path / "backfills"

    def __str__(self) -> str:
        """Return its location without a connection; it opens again where the environment has the credentials."""
        return location_of(self.path)

    def __repr__(self) -> str:
        return f"Home({str(self)!r})"

    def look_every(self, seconds: float, *, reads: int = 1) -> float:
        """Return how often a watcher looks at the home.

        :param seconds: how often it would like to
        :param reads: how many documents one look reads
        """
        return max(seconds, reads * store_of(self.path).seconds_per_read)

    def check_can_be_made(self) -> None:
        """Check that the directory can be made, or written to; leaves nothing there.

        :raises RefusedError: when it can't, for good
        :raises ExactlyOnceError: when it can't now
        """
        place = self.path
        try:
            if is_local(place):
                while not os.path.lexists(place):
                    place = place.parent
                with contextlib.suppress(FileNotFoundError):
                    os.lstat(self.path)  # it may be no name that a file can have
                probe = place / f".exactlyonce-{uuid.uuid4()}"
                probe.mkdir(exist_ok=True)  # on NFS it may be there, or gone, by the same request sent before
                with contextlib.suppress(FileNotFoundError):
                    probe.rmdir()
            else:  # its directories need not be made
                self.identity()
        except OSError as error:
            action = "written to" if place == self.path else f"made below {place}"
            kind = ExactlyOnceError if is_no_answer(error) else RefusedError  # a full disk may be emptied
            raise kind(
                f"home {self} can't be {action}: {error.strerror or error}; name another directory, or allow it"
            ) from error

    def identity(self) -> str | None:
        """Return the home's id, None when the directory is no home (yet).

        :raises HomeMovedError: when it was moved, or is a copy that is not finished
        """
        body = self._document()
        return str(body["id"]) if body else None

    def pipeline(self) -> str | None:
        """Return the name of the home's pipeline; raises as :meth:`identity` does."""
        body = self._document()
        return str(body["pipeline"]) if body else None

    def _document(self) -> dict[str, Any] | None:
        moving.check_here(self.path)
        return _whole(self.path / "home.json")

    def current(self) -> Lineage | None:
        """Return the lineage in use, None when there is none yet.

        :raises RefusedError: when the pointer is there and its lineage isn't
        :raises HomeMovedError: when the home was moved
        """
        pointer = _whole(self.path / "current")
        if pointer is None:
            return None
        lineage = self.lineage(str(pointer["lineage"]))
        if lineage is None:
            raise RefusedError(
                f"{self}/current points to lineage {pointer['lineage']}, whose lineage.json is missing or torn: "
                "put it back from a copy of the home, or restore a savepoint: exactlyonce restore"
            )
        return lineage

    def lineage(self, lineage_id: str) -> Lineage | None:
        """Return a lineage's document, None when it is missing or torn."""
        return read_lineage(self.lineages / lineage_id)

    def uses(self, lineage_id: str) -> bool | None:
        """Whether a start may go on in a lineage: ``current`` points to it, and does not say that it is deleted.

        In a home that was moved it points to none. None when it is missing or torn, which tells nothing.
        """
        pointer = json_store.read(self.path / "current", moving.READABLE)
        if pointer is None:
            return None
        return "move" not in pointer and pointer["lineage"] == lineage_id and not pointer.get("deleted", False)

    def use(self, lineage_id: str) -> None:
        """Point ``current`` to a lineage that is whole; a :meth:`switch` by a process that read it before fails."""
        json_store.overwrite(self.path / "current", _Pointer(lineage=lineage_id))

    def switch(self, lineage_id: str, pointer: Stored | None, *, deleted: bool = False) -> None:
        """Point ``current`` to a lineage that is whole, unless it was written since.

        :param pointer: as of when it was decided, None when there was none
        :param deleted: its checkpoint is about to be deleted, and no start goes on from it any more
        :raises ChangedError: when it was
        """
        json_store.swap(self.path / "current", pointer, _Pointer(lineage=lineage_id, deleted=deleted))

    def checkpoint(self, lineage_id: str) -> Path:
        """Return Spark's checkpoint directory of a lineage."""
        return self.lineages / lineage_id / "checkpoint"

    def create(self, pipeline: str) -> Lineage:
        """Make the home and its first lineage; goes on where an earlier call was killed.

        The pointer is written last and once: before it the directory counts as empty, and of two drivers that create
        the same home at the same time both get the lineage of the first.

        :raises RefusedError: when it is on a file system on which two could
        """
        if self.identity() is None:
            store_of(self.path).check(self.path)
            document = HomeDocument(id=str(uuid.uuid4()), pipeline=pipeline)
            with contextlib.suppress(FileExistsError):
                json_store.write(self.path / "home.json", codec.dump(document), exclusive=True)
        lineage = Lineage(id=str(uuid.uuid4()))
        self.begin_checkpoint(lineage)
        self.remember(lineage)
        with contextlib.suppress(FileExistsError):
            json_store.write(self.path / "current", codec.dump(_Pointer(lineage=lineage.id)), exclusive=True)
        return self.current() or lineage

    def begin_checkpoint(self, lineage: Lineage) -> None:
        """Make the empty checkpoint of a lineage that begins with nothing."""
        metadata = self.checkpoint(lineage.id) / "metadata"
        store_of(metadata).create(metadata, json.dumps({"id": lineage.id}, separators=(",", ":")).encode())

    def remember(self, lineage: Lineage) -> None:
        """Write the lineage's document."""
        json_store.write(self.lineages / lineage.id / "lineage.json", lineage.document())

    def final_status_path(self, token: str) -> Path:
        """Return where a driver leaves its last status, which no successor overwrites."""
        return self.commands / f"account-{token}.json"

    def note_commit(self, lineage_id: str, commit: int) -> None:
        """Note the number of the newest commit. Not flushed: after a power failure it may be older, never newer."""
        path = self.lineages / lineage_id / "progress.json"
        json_store.write(path, {"last_commit": commit}, durable=False)


def is_deleted(home: Home, lineage_id: str) -> bool:
    """Whether ``current`` points to a lineage and says that its checkpoint is deleted, or is about to be."""
    pointer = json_store.read(home.path / "current", moving.READABLE) or {}
    return pointer.get("lineage") == lineage_id and bool(pointer.get("deleted"))


def read_lineage(directory: Path) -> Lineage | None:
    """Return the document of the lineage in a directory, of a home or a copy; None when it is missing or torn."""
    body = json_store.read(directory / "lineage.json")
    if body is None:
        return None
    progress = json_store.read(directory / "progress.json") or {"last_commit": 0}
    newest = max(body["last_commit"], progress["last_commit"])
    return codec.load(Lineage, {**body, "last_commit": newest}, f"{directory}/lineage.json")


def _whole(path: Path) -> dict[str, Any] | None:
    """Read a document that a home can't do without; None when it was never written."""
    body = json_store.read(path, moving.READABLE)
    if body is None and store_of(path).facts(path) is not None:
        raise RefusedError(f"{path} is torn or was changed by hand; put it back from a copy of the home")
    if body is not None:
        moving.check_open(body, path)
    return body


def _host_directory(location: str) -> Path:
    """Return the directory of this host for the processes of a home that is elsewhere."""
    # The XDG specification says to ignore a relative path.
    state = os.environ.get("XDG_STATE_HOME", "")
    state_home = Path(state) if os.path.isabs(state) else Path.home() / ".local" / "state"
    return state_home / "exactlyonce" / hashlib.sha256(location.encode()).hexdigest()[:16]

"""Savepoints: immutable copies of a checkpoint at a commit.

::

    <home>/savepoints/<id>/taking.json     who takes it; gone when it is whole
    <home>/savepoints/<id>/checkpoint/     the files that a restart after the batch needs, laid out as Spark does
    <home>/savepoints/<id>/manifest.json   written last: what it is, and every file's size and checksum
    <home>/savepoints/<id>/deleting.json   it is being deleted
    <home>/savepoints/.verify-…/           a copy whose state is read; its taking.json says by whom

A directory is a savepoint when it has a manifest and isn't being deleted. Spark replaces files and never changes them
in place, so the files of state are hard links where the file system has them: a savepoint costs no space until Spark
deletes its own copies. Its directory may be moved, and its name changed: nothing depends on its place.
"""

from __future__ import annotations

import math
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce import failpoints, process_identity
from airflow_provider_exactlyonce.checkpoint import checksums, integrity, lineages
from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import READABLE, Savepoint, decode, describe, encode
from airflow_provider_exactlyonce.checkpoint.state import STATE_DATA, Defect
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.storage import trees
from airflow_provider_exactlyonce.storage.opening import is_link, store_of

_ID: Final = re.compile(r"(\d+)(-[0-9a-z]+)+")
_COPY: Final = ".verify-"
#: The name says that the bytes never change: RocksDB's tables and logs, and all state of checkpoint format 2.
_UNIQUE: Final = re.compile(r"state/.*[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(sst|log|zip|changelog)(\.crc)?")
#: After so long a directory that was begun on another machine, and never got a manifest, is a leftover.
_FOREIGN_LEFTOVER_SECONDS: Final = 24 * 60 * 60.0
#: In ``deleting.json``: bytes are gone, a pin comes too late.
_BEGUN: Final = "begun"
_FRESH_SECONDS: Final = 60.0
_DAY_MILLISECONDS: Final = 24 * 60 * 60 * 1000


class BatchGoneError(ExactlyOnceError):
    """Spark has removed files of the batch while they were saved; a newer batch can be saved."""


@dataclass(frozen=True, kw_only=True)
class SavepointRetention:
    """A savepoint is deleted only when count and age both allow it. The newest and the pinned ones always stay.

    :param count: the newest so many
    :param days: everything younger
    :raises RefusedError: when a value is negative
    """

    count: int = 10
    days: float = 1.0

    def __post_init__(self) -> None:
        if self.count < 0 or self.days < 0:
            raise RefusedError(f"{self}: neither count nor days may be negative")


DEFAULT_RETENTION: Final = SavepointRetention()


class Savepoints:
    """The savepoints in one directory.

    :param directory: a home's ``savepoints``, or a directory on any file system that keeps the contract of
        :class:`~airflow_provider_exactlyonce.storage.store.Store`
    """

    def __init__(self, directory: Path) -> None:
        self.directory: Final = directory
        self._store: Final = store_of(directory)

    def checkpoint(self, savepoint_id: str) -> Checkpoint:
        """Return the checkpoint that a savepoint holds."""
        return Checkpoint(self.directory / savepoint_id / "checkpoint")

    def list(self) -> Sequence[Savepoint]:
        """Return all savepoints, oldest commit first."""
        savepoints = [savepoint for name in self._names() if (savepoint := self._read(name))]
        return sorted(savepoints, key=lambda savepoint: (savepoint.commit, savepoint.created))

    def get(self, savepoint_id: str) -> Savepoint:
        """Return one savepoint.

        :raises RefusedError: when there is none of this id, or its manifest is torn
        """
        savepoint = self._read(savepoint_id)
        if savepoint is not None:
            return savepoint
        if self._has(savepoint_id, "manifest.json"):
            raise RefusedError(
                f"the manifest of savepoint {savepoint_id} in {self.directory} is torn, was changed by hand, or the "
                "savepoint is being deleted; use another one"
            )
        known = ", ".join(other.id for other in self.list()) or "none"
        raise RefusedError(f"there is no savepoint {savepoint_id!r} in {self.directory}; there are: {known}")

    def oldest_commit(self) -> int | None:
        """Return the oldest commit that a savepoint holds, or one that is being taken; cheap."""
        commits = []
        for name in self._names():
            if match := _ID.fullmatch(name):
                commits.append(int(match[1]))
            elif savepoint := self._read(name):  # somebody has renamed it
                commits.append(savepoint.commit)
        return min(commits, default=None)

    def take(
        self,
        checkpoint: Checkpoint,
        batch: int,
        record: CommitRecord,
        job: JobDescription | None,
        *,
        label: str | None = None,
        request: str | None = None,
    ) -> Savepoint:
        """Take a savepoint of a batch that is committed in the ledger and in Spark; the query may go on meanwhile.

        :param batch: Spark's id of the batch in this checkpoint
        :param record: its commit in the ledger; of a restored lineage, the parent's commit
        :param job: the description of the job that committed it, None when there is none
        :param request: hexadecimal digits that end the id, None for a request that is not repeated; a savepoint that
            exists with this end is returned and none is taken
        :raises RefusedError: when the batch isn't whole, or ends elsewhere in the source than the record
        :raises BatchGoneError: when Spark has removed its files meanwhile
        :raises ExactlyOnceError: when this process was frozen for so long that others have deleted its files
        """
        for name in self._names() if request else ():
            if name.endswith(f"-{request}") and (taken := self._read(name)):
                return taken
        needed = integrity.files_of(checkpoint, batch)
        if needed.defects:
            raise RefusedError(
                f"batch {batch} of {checkpoint.path} is not whole, so no savepoint is taken of it: "
                + "; ".join(map(str, needed.defects[:3]))
            )
        # Two may serve one request, when the first is frozen or cut off: each has a directory to itself.
        savepoint_id = "-".join(filter(None, (str(record.commit), uuid.uuid4().hex[:8], request)))
        directory = self.directory / savepoint_id
        failpoints.reach("before-savepoint")
        json_store.write(directory / "taking.json", _this_process(), durable=False)
        try:
            known_sums = _KnownSums(self._newest_first())
            _copy(checkpoint.path, directory / "checkpoint", needed.files, known_sums.newest)
            files = {
                path: _size_and_sum(checkpoint.path / path, directory / "checkpoint" / path, path, known_sums)
                for path in needed.files
            }
            savepoint = describe(Checkpoint(directory / "checkpoint"), batch, files, record, job)
            savepoint = replace(savepoint, id=savepoint_id, label=label)
        except BaseException:
            self._store.remove(directory)
            raise
        failpoints.reach("before-savepoint-manifest")
        self._write(savepoint)
        self._store.flush([self.directory])
        if self._is_lost(savepoint_id):
            raise ExactlyOnceError(
                f"savepoint {savepoint_id} in {self.directory} was deleted as the leftover of a process that had died: "
                "its own was frozen for too long. Ask again"
            )
        self._store.delete(directory / "taking.json")
        failpoints.reach("after-savepoint-manifest")
        return savepoint

    def pin(self, savepoint_id: str, *, pinned: bool = True) -> Savepoint:
        """Keep a savepoint whatever retention says, or no longer.

        :raises RefusedError: when there is none of this id, or it is being deleted
        """
        savepoint, directory = replace(self.get(savepoint_id), pinned=pinned), self.directory / savepoint_id
        manifest = self._manifest(savepoint_id) or encode(
            savepoint
        )  # a newer release may have written more than we read
        json_store.write(directory / "manifest.json", {**manifest, "pinned": pinned})
        if self._is_lost(savepoint_id):
            raise RefusedError(f"savepoint {savepoint_id} in {self.directory} is being deleted; pin another one")
        return savepoint

    def delete(self, savepoint_id: str) -> None:
        """Delete a savepoint: from its first step on it is none, its record goes last.

        :raises RefusedError: when there is none of this id, or it is pinned
        """
        if self.get(savepoint_id).pinned or not self._delete(savepoint_id):
            raise RefusedError(f"savepoint {savepoint_id} is pinned: exactlyonce savepoint unpin it before")

    def clean_up(self, retention: SavepointRetention = DEFAULT_RETENTION) -> Sequence[str]:
        """Delete expired savepoints, and the remains of interrupted ones; returns their ids."""
        removed = [*self.remove_leftovers()]
        savepoints = self.list()
        oldest_kept = int(time.time() * 1000 - retention.days * _DAY_MILLISECONDS)
        for savepoint in savepoints[: -max(retention.count, 1)]:
            if not savepoint.pinned and savepoint.created < oldest_kept and self._delete(savepoint.id):
                removed.append(savepoint.id)
        return removed

    def leftovers(self) -> Sequence[str]:
        """Return the names of the remains of interrupted saves, reads of the state and deletes."""
        return [name for name in self._names() if self._is_leftover(name)]

    def remove_leftovers(self) -> Sequence[str]:
        """Remove the remains of interrupted saves, reads of the state and deletes; returns their names."""
        return [name for name in self.leftovers() if self._remove(name)]

    def torn(self) -> Sequence[str]:
        """Return the names of savepoints with a torn manifest: they can't be used any more."""
        return [
            name
            for name in self._names()
            if self._has(name, "manifest.json")
            and not self._has(name, "deleting.json")
            and self._manifest(name) is None
        ]

    def verify(self, savepoint_id: str) -> Sequence[Defect]:
        """Read all bytes of a savepoint and compare them with its manifest; returns the defects.

        :raises RefusedError: when there is none of this id
        """
        savepoint = self.get(savepoint_id)
        checkpoint = self.checkpoint(savepoint_id)
        needed = integrity.files_of(checkpoint, savepoint.batch)
        defects = {defect.path: defect for defect in needed.defects}
        for path in needed.files:
            if path not in savepoint.files:
                defects.setdefault(path, Defect(path=path, reason="is not in the manifest"))
        for path, (size, checksum) in savepoint.files.items():
            if path not in defects and (reason := _difference(checkpoint.path / path, size, checksum)):
                defects[path] = Defect(path=path, reason=reason)
        return [defects[path] for path in sorted(defects)]

    @contextmanager
    def copying(self, savepoint: Savepoint) -> Iterator[Path]:
        """Give the checkpoint that a restore would make, to read its state; it goes at the end, or as a leftover."""
        directory = self.directory / f"{_COPY}{uuid.uuid4().hex[:8]}"
        json_store.write(directory / "taking.json", _this_process(), durable=False)
        try:
            copy = directory / savepoint.id
            lineages.make(copy, self.checkpoint(savepoint.id).path, savepoint.files, Lineage(id=str(uuid.uuid4())))
            yield copy / "checkpoint"
        finally:
            self._store.remove(directory)

    def newest_good(self) -> tuple[Savepoint | None, dict[str, Sequence[Defect]]]:
        """Return the newest savepoint without a defect, None for none, and the defects of newer ones."""
        bad_savepoints: dict[str, Sequence[Defect]] = {}
        for savepoint in reversed(self.list()):
            defects = self.verify(savepoint.id)
            if not defects:
                return savepoint, bad_savepoints
            bad_savepoints[savepoint.id] = defects
        return None, bad_savepoints

    def _names(self) -> Sequence[str]:
        return self._store.names(self.directory)

    def _has(self, name: str, document: str) -> bool:
        return self._store.facts(self.directory / name / document) is not None

    def _read(self, name: str) -> Savepoint | None:
        if self._has(name, "deleting.json"):
            return None
        body = self._manifest(name)
        return decode({**body, "id": name}) if body else None

    def _manifest(self, name: str) -> dict[str, Any] | None:
        return json_store.read(self.directory / name / "manifest.json", READABLE)

    def _write(self, savepoint: Savepoint) -> None:
        json_store.write(self.directory / savepoint.id / "manifest.json", encode(savepoint))

    def _is_lost(self, name: str) -> bool:
        """Whether a removal began before the manifest was written; one that begins later sees the manifest."""
        directory = self.directory / name
        is_marked, is_gone = self._has(name, "deleting.json"), not self._store.files(directory / "checkpoint")
        if is_gone:
            self._store.remove(directory)
        return is_marked or is_gone

    def _delete(self, name: str) -> bool:
        json_store.write(self.directory / name / "deleting.json", _this_process())
        failpoints.reach("during-savepoint-delete")
        return self._remove(name)

    def _remove(self, name: str) -> bool:
        """Remove a leftover or a savepoint marked as deleted: bytes first, then records; returns whether it is gone.

        It stays a savepoint if it was pinned before its first byte was removed, or got its manifest before the mark.
        """
        directory = self.directory / name
        is_unfinished = not self._has(name, "deleting.json")
        if is_unfinished:
            json_store.write(directory / "deleting.json", _this_process())
        if (manifest := self._manifest(name)) is not None:
            mark = json_store.read(directory / "deleting.json") or {}
            if is_unfinished or (manifest.get("pinned") and not mark.get(_BEGUN)):
                self._store.delete(directory / "deleting.json")
                return False
            json_store.write(directory / "deleting.json", {**mark, _BEGUN: True})
        self._store.remove(directory / "checkpoint")
        self._store.delete(directory / "manifest.json")
        self._store.remove(directory)
        return True

    def _is_leftover(self, name: str) -> bool:
        if self._has(name, "deleting.json"):
            return True
        taker = json_store.load(self.directory / name / "taking.json", _Taker)
        # After taking.json: that document is deleted when the manifest is there.
        if self._has(name, "manifest.json") or not (_ID.fullmatch(name) or name.startswith(_COPY)):
            return False
        age = self._age(name)
        if taker is None:
            return age > _FRESH_SECONDS and (age < math.inf or bool(self._store.files(self.directory / name)))
        if taker.machine != process_identity.this_machine():
            return age > _FOREIGN_LEFTOVER_SECONDS
        return process_identity.process_start(taker.pid) != taker.process_started

    def _age(self, name: str) -> float:
        """Return how many seconds ago something happened in a directory; it was begun with ``taking.json``."""
        directory = self.directory / name
        facts = self._store.facts(directory) or self._store.facts(directory / "taking.json")
        return math.inf if facts is None else time.time() - facts.modified

    def _newest_first(self) -> Iterator[Savepoint]:
        """Yield the savepoints, newest commit first as far as their names tell; each is read when it is asked for."""
        commits = {name: int(match[1]) if (match := _ID.fullmatch(name)) else -1 for name in self._names()}
        for name in sorted(commits, key=lambda name: commits[name], reverse=True):
            if savepoint := self._read(name):
                yield savepoint


class _KnownSums:
    """Sizes and checksums of files whose bytes never change, as savepoints have them.

    A file that the newest savepoint of a lineage lacks is new, or was restored from an older savepoint: older ones are
    read only for files without any other checksum.

    :param savepoints: newest first
    """

    def __init__(self, savepoints: Iterator[Savepoint]) -> None:
        self._older: Final = (
            {p: facts for p, facts in savepoint.files.items() if _UNIQUE.fullmatch(p)} for savepoint in savepoints
        )
        self.newest: Final = next(self._older, {})
        self._files_read: dict[str, tuple[int, str]] = {}

    def older(self, path: str) -> tuple[int, str] | None:
        """Return a file's size and checksum from an older savepoint, None when none has the file."""
        while path not in self._files_read and _UNIQUE.fullmatch(path):
            more = next(self._older, None)
            if more is None:
                return None
            self._files_read |= more
        return self._files_read.get(path)


@dataclass(frozen=True, kw_only=True)
class _Taker:
    """The process that makes or deletes a savepoint; ``taking.json`` and ``deleting.json``.

    :param process_started: as :func:`process_identity.process_start` gives it
    """

    machine: str
    pid: int
    process_started: int


def _this_process() -> dict[str, Any]:
    pid = os.getpid()
    started = process_identity.process_start(pid) or 0
    return asdict(_Taker(machine=process_identity.this_machine(), pid=pid, process_started=started))


def _copy(source: Path, target: Path, paths: Iterable[str], known_files: Mapping[str, tuple[int, str]]) -> None:
    """Link or copy files, and flush those that the savepoint before has not flushed.

    :param known_files: those that it has
    """
    store, directories = store_of(target), {target, *((target / path).parent for path in paths)}
    for number, path in enumerate(paths):
        try:
            trees.copy(source / path, target / path, final=STATE_DATA.fullmatch(path) is not None)
        except FileNotFoundError as error:
            raise BatchGoneError(
                f"{source / path} is gone: Spark keeps fewer batches than pass while a savepoint is taken; raise "
                "spark.sql.streaming.minBatchesToRetain"
            ) from error
        if number == 0:
            failpoints.reach("during-savepoint")
    copied = [target / path for path in paths if not (path in known_files and is_link(target / path))]
    store.flush([*copied, *directories])


def _size_and_sum(source: Path, copy: Path, path: str, known_sums: _KnownSums) -> tuple[int, str]:
    """Return size and checksum of a file; the file is read only where no writer has left a checksum."""
    copy_facts = store_of(copy).facts(copy)
    if copy_facts is None:
        raise FileNotFoundError(f"{copy} was copied, and is gone")
    size = copy_facts.size
    facts = known_sums.newest.get(path)
    if facts is None and (checksum := checksums.left_by_writers(source, size)):
        return size, checksum
    facts = facts or known_sums.older(path)
    return facts if facts is not None and facts[0] == size else (size, checksums.read(copy))


def _difference(file: Path, size: int, checksum: str) -> str | None:
    facts = store_of(file).facts(file)
    if facts is None:
        return "is missing"
    if facts.size != size:
        return f"has {facts.size} bytes, and {size} were saved"
    actual = checksums.read(file, checksum)
    return f"has checksum {actual}, and {checksum} was saved" if actual != checksum else None

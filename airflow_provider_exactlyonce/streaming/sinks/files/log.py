"""The ledger of a sink that writes files: numbered JSON files, each created once and never changed.

``log/<position>.json`` is a *claim*, a *commit* or a *compaction*. All who write create the position after the last one
that they know, and of two who create the same one loses. So a run that has claimed a position has fenced every lower
run: whatever such a run still wants to commit, it finds a claim where it would have to write.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.files.storage import Storage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_SCHEMA: Final = 1
_RECORD: Final = re.compile(r"\d{20}\.json")
_FORGOTTEN_AT_ONCE: Final = 200  # each is a request or two of an object store
CLAIM: Final = "claim"
COMMIT: Final = "commit"
COMPACTION: Final = "compaction"


def folder_of(pipeline: str, sink: str) -> str:
    """Return where all of a sink lies; readers that list a directory skip names that begin so."""
    return f"_exactlyonce/{pipeline}.{sink}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One committed file.

    :param name: relative to the sink's path
    :param rows: rows in it
    :param size: its bytes
    :param sha256: of its content, hexadecimal
    :param partition: {column: value as text, None for null} by which it was written
    """

    name: str
    rows: int
    size: int
    sha256: str
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LogRecord:
    """One record of the log. Each repeats the newest commit, so that the last one suffices.

    :param position: its place in the log, from 1
    :param kind: :data:`CLAIM`, :data:`COMMIT` or :data:`COMPACTION`
    :param run: the highest run that has claimed
    :param entry: the newest commit, None when there is none
    :param attempt: of a commit, the attempt that wrote its files; of a compaction, the name of its directory
    :param files: of a commit, what it adds; of a compaction, all files that hold the commits up to its entry's
    :param replaced: of a compaction, the names that it takes out of use
    :param snapshot: the position of the newest compaction before this record, 0 when there is none
    :param written: seconds since the epoch
    """

    position: int
    kind: str
    run: int
    entry: SinkEntry | None = None
    attempt: str | None = None
    files: tuple[DataFile, ...] = ()
    replaced: tuple[str, ...] = ()
    snapshot: int = 0
    written: float = field(default_factory=time.time)

    def after(self, **changes: Any) -> LogRecord:
        """Return a record for the next position, which says the same of the newest commit."""
        fresh: dict[str, Any] = {"attempt": None, "files": (), "replaced": (), "written": time.time()}
        snapshot = self.position if self.kind == COMPACTION else self.snapshot
        return replace(self, **{**fresh, "position": self.position + 1, "snapshot": snapshot, **changes})

    def encoded(self) -> bytes:
        """Return its JSON."""
        entry = json.loads(self.entry.to_json()) if self.entry else None
        files = [vars(file) for file in self.files]
        body = {"schema": _SCHEMA, **vars(self), "entry": entry, "files": files}
        return json.dumps(body, separators=(",", ":")).encode()


class FileLog:
    """Reads and appends records.

    :param folder: the directory of the records, relative to the storage's root
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage: Final = storage
        self._folder: Final = folder

    def positions(self) -> list[int]:
        """Return the positions that are there, in order."""
        return [int(name[:20]) for name in self._storage.names(self._folder) if _RECORD.fullmatch(name)]

    def last(self) -> LogRecord | None:
        """Return the last record, None when the log is empty."""
        positions = self.positions()
        return self.read(positions[-1]) if positions else None

    def read(self, position: int) -> LogRecord:
        """Return a record.

        :raises FileNotFoundError: when there is none
        :raises RefusedError: when it can't be read
        """
        text = self._storage.read(self._name(position))
        try:
            body = json.loads(text)
            codec.check_schema(body, self.place(position), (_SCHEMA,))
            entry = SinkEntry.from_json(json.dumps(body["entry"])) if body["entry"] else None
            return codec.load(LogRecord, {**body, "entry": entry}, self.place(position))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{self.place(position)} is no record of a sink's log: {error}. Put it back from a backup"
            ) from error

    def following(self, position: int) -> Iterator[LogRecord]:
        """Yield the records after a position up to the last one, without a look at the directory."""
        while True:
            position += 1
            try:
                record = self.read(position)
            except FileNotFoundError:
                return
            yield record

    def append(self, record: LogRecord) -> None:
        """Write a record at its position.

        :raises FileExistsError: when that is taken
        :raises OSError: nobody knows whether it was written
        """
        self._storage.create(self._name(record.position), record.encoded())

    def forget(self, before: int, *, compacted: float) -> None:
        """Remove some of the oldest records that neither readers nor audits need.

        :param before: commits before this one are forgotten
        :param compacted: only records behind a compaction that was written before this time, in seconds since the epoch
        """
        positions = self.positions()
        place = positions[-1] if positions else 0
        while place:
            record = self.read(place)
            if record.kind == COMPACTION and record.written < compacted:
                break
            place = record.snapshot
        for position in positions[:_FORGOTTEN_AT_ONCE]:
            if position >= place or ((entry := self.read(position).entry) and entry.commit >= before):
                return
            self.remove(position)

    def remove(self, position: int) -> None:
        """Remove a record, which nobody must need any more."""
        self._storage.remove(self._name(position))

    def place(self, position: int) -> str:
        """Return the path or URL of a record."""
        return self._storage.place(self._name(position))

    def _name(self, position: int) -> str:
        return f"{self._folder}/{position:020d}.json"


def live_files(log: FileLog, last: LogRecord, oldest: int = 1) -> list[DataFile]:
    """Return the files that hold all rows up to a record, oldest first.

    :param oldest: the first position that is still there
    """
    records = reversed([last, *_back(log, last, oldest)])
    return [file for record in records for file in record.files]


def _back(log: FileLog, last: LogRecord, oldest: int) -> Iterator[LogRecord]:
    """Yield the records before one, newest first, down to the newest compaction."""
    if last.kind == COMPACTION:
        return
    for position in range(last.position - 1, max(last.snapshot, oldest) - 1, -1):
        yield log.read(position)

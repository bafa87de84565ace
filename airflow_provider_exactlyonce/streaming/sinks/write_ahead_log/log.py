"""The log: numbered files, each a line of JSON, and behind a commit's line its rows in Arrow's stream format.

A position is created once: of two processes one loses. So a frozen process that goes on finds its position taken,
and a claim knows everything that can take place before it.

Release 0.1.0 wrote the same positions. Its commits name Parquet files instead of having their rows behind them, and the
log of its file sink has compactions, too; both are read here.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pyarrow as pa

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import Storage

#: Of records that 0.1.0 can read: claims, so that a process of it that is superseded says so.
_SCHEMA: Final = 1
_ROWS_SCHEMA: Final = 2
_RECORD: Final = re.compile(r"(\d{20})\.json")
CLAIM: Final = "claim"
COMMIT: Final = "commit"
COMPACTION: Final = "compaction"


def folder_of(pipeline: str, sink: str) -> str:
    """Return where all of a sink lies; readers that list a directory skip names that begin so."""
    return f"_exactlyonce/{pipeline}.{sink}"


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One committed Parquet file of 0.1.0.

    :param name: relative to the sink's path
    :param rows: rows in it
    :param size: its bytes
    :param sha256: of its content, hexadecimal
    :param partition: {column: value as text, None for null} of its rows
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
    :param kind: :data:`CLAIM` or :data:`COMMIT`; in the log of a file sink :data:`COMPACTION`, too
    :param run: the highest run that has claimed
    :param entry: the newest commit, None when there is none
    :param claim: what tells the newest claim from others of its run; None when an older release made it
    :param attempt: of a commit, the attempt that wrote it
    :param files: in a record of 0.1.0: of a commit, what it adds; of a compaction, all that hold the commits up to it
    :param snapshot: in the log of a file sink, the position of the newest compaction before this record, 0 for none:
        readers of 0.1.0 go back to it
    :param holds_rows: whether the log has its commits' rows itself; 0.1.0 had not
    :param sha256: of the rows behind the line, hexadecimal; None when there are none
    :param written: seconds since the epoch
    """

    position: int
    kind: str
    run: int
    entry: SinkEntry | None = None
    claim: str | None = None
    attempt: str | None = None
    files: tuple[DataFile, ...] = ()
    snapshot: int = 0
    holds_rows: bool = False
    sha256: str | None = None
    written: float = field(default_factory=time.time)

    def encoded(self) -> bytes:
        """Return its line."""
        entry = json.loads(self.entry.to_json()) if self.entry else None
        schema = _SCHEMA if self.sha256 is None else _ROWS_SCHEMA
        body = {"schema": schema, **vars(self), "entry": entry, "files": [vars(file) for file in self.files]}
        return json.dumps(body, separators=(",", ":")).encode() + b"\n"


class FileLog:
    """Reads and appends records.

    :param folder: the directory of the records, relative to the storage's root
    """

    def __init__(self, storage: Storage, folder: str) -> None:
        self._storage: Final = storage
        self._folder: Final = folder

    def positions(self) -> list[int]:
        """Return the positions that are there, in order."""
        return [int(match[1]) for name in self._storage.names(self._folder) if (match := _RECORD.fullmatch(name))]

    def last(self) -> LogRecord | None:
        """Return the last record, None when the log is empty."""
        positions = self.positions()
        return self.read(positions[-1]) if positions else None

    def read(self, position: int) -> LogRecord:
        """Return a record.

        :raises FileNotFoundError: when there is none
        :raises RefusedError: when it can't be read
        """
        line = self._storage.first_line(self._name(position))
        try:
            body = json.loads(line)
            codec.check_schema(body, self.place(position), (_SCHEMA, _ROWS_SCHEMA))
            entry = SinkEntry.from_json(json.dumps(body["entry"])) if body["entry"] else None
            return codec.load(LogRecord, {**body, "entry": entry}, self.place(position))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(
                f"{self.place(position)} is no record of a sink's log: {error}. Put it back from a backup"
            ) from error

    def rows(self, record: LogRecord) -> Iterator[pa.RecordBatch]:
        """Yield a commit's rows, in the order in which the tasks wrote them."""
        import pyarrow.parquet as pq

        for data_file in record.files:
            with self._storage.open(data_file.name) as opened, pq.ParquetFile(opened) as parquet:
                yield from parquet.iter_batches()
        if record.sha256 is not None:
            with self._storage.open(self._name(record.position)) as file:
                file.readline()
                with pa.ipc.open_stream(file) as stream:
                    yield from stream

    def changed(self, record: LogRecord) -> Iterator[str]:
        """Yield the paths or URLs of files with the record's rows that are missing or not as they were written."""
        parts = [(file.name, file.sha256) for file in record.files]
        if record.sha256 is not None:
            parts.append((self._name(record.position), record.sha256))
        for name, expected in parts:
            try:
                with self._storage.open(name) as file:
                    if name == self._name(record.position):
                        file.readline()
                    checksum = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
            except FileNotFoundError:
                checksum = None
            if checksum != expected:
                yield self._storage.place(name)

    def following(self, position: int) -> Iterator[LogRecord]:
        """Yield the records after a position up to the last one, without listing the directory."""
        while True:
            position += 1
            try:
                record = self.read(position)
            except FileNotFoundError:
                return
            yield record

    def append(self, record: LogRecord, rows: bytes = b"") -> None:
        """Write a record at its position.

        :param rows: what its checksum is of
        :raises FileExistsError: when that is taken
        :raises OSError: it is unknown whether it was written
        """
        self._storage.create(self._name(record.position), record.encoded() + rows)

    def remove(self, record: LogRecord) -> None:
        """Remove a record with its rows, which must not be needed any more."""
        for file in record.files:
            self._storage.remove(file.name)
        self._storage.remove(self._name(record.position))

    def remove_unfinished(self, position: int) -> None:
        """Remove the remains that dead processes have left of records up to an existing one."""
        self._storage.remove_unfinished(self._folder, f"{position:020d}")

    def place(self, position: int) -> str:
        """Return the path or URL of a record."""
        return self._storage.place(self._name(position))

    def _name(self, position: int) -> str:
        return f"{self._folder}/{position:020d}.json"

"""The audit of a sink's files: log against the pipeline's ledger, files against the log."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.files.log import (
    COMMIT,
    COMPACTION,
    DataFile,
    FileLog,
    LogRecord,
    live_files,
)
from airflow_provider_exactlyonce.streaming.sinks.files.storage import Storage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_PIECE_BYTES = 2**20


def audit(storage: Storage, log: FileLog, commits: Iterable[SinkEntry]) -> Iterator[str]:
    """Yield what contradicts the pipeline's ledger, the log's own order, or the log's word on a file.

    :param commits: what the pipeline's ledger has for the sink, in order
    """
    try:
        records = [log.read(position) for position in log.positions()]
    except RefusedError as error:
        yield str(error)
        return
    yield from _gaps(log, records)
    committed = {record.entry.commit: record for record in records if record.kind == COMMIT and record.entry}
    for known in commits:
        found = committed.get(known.commit)
        if found is None or found.entry is None:
            yield f"commit {known.commit}: the log has no record of it"
        elif not found.entry.is_same_output(known):
            yield f"commit {known.commit}: {log.place(found.position)} has {found.entry}, the ledger {known}"
    if records:
        try:
            live = live_files(log, records[-1], records[0].position)
        except FileNotFoundError:
            return  # a gap, which is told above
        for file in live:
            yield from _differences(storage, file)


def _gaps(log: FileLog, records: list[LogRecord]) -> Iterator[str]:
    """Yield where the log's records do not follow upon each other."""
    rows = 0 if records and records[0].position == 1 else None  # None: unknown, as long as older records are forgotten
    for before, record in zip([None, *records], records, strict=False):
        place = log.place(record.position)
        if before is None:
            continue
        if record.position != before.position + 1:
            yield f"{place}: the record before it is missing; there is {before.position}"
        if record.run < before.run:
            yield f"{place}: run {record.run} comes after run {before.run}"
        newest, older = record.entry, before.entry
        if record.kind != COMMIT and newest != older:
            yield f"{place}: it says that the newest commit is {newest}, the record before it {older}"
        if record.kind == COMMIT and newest and older and newest.commit != older.commit + 1:
            yield f"{place}: commit {newest.commit} comes after commit {older.commit}"
        given = sum(file.rows for file in record.files)
        if record.kind == COMMIT and newest:
            rows = None if rows is None else rows + newest.rows
            if given != newest.rows:
                yield f"{place}: commit {newest.commit} has {newest.rows} rows, and its files {given}"
        if record.kind == COMPACTION and rows is None:
            rows = given
        elif record.kind == COMPACTION and given != rows:
            yield f"{place}: the commits before it have {rows} rows, and the files of the compaction {given}"


def _differences(storage: Storage, file: DataFile) -> Iterator[str]:
    """Yield what a file differs in from what the log says of it."""
    import pyarrow.parquet as pq

    place = storage.place(file.name)
    try:
        with storage.open(file.name) as opened:
            found = hashlib.sha256()
            while piece := opened.read(_PIECE_BYTES):
                found.update(piece)
            if found.hexdigest() != file.sha256:
                yield f"{place}: its checksum is {found.hexdigest()}, and was {file.sha256} when it was committed"
                return
            opened.seek(0)
            if (rows := pq.read_metadata(opened).num_rows) != file.rows:
                yield f"{place}: it has {rows} rows, and the log says {file.rows}"
    except FileNotFoundError:
        yield f"{place}: a committed file with {file.rows} rows is missing"

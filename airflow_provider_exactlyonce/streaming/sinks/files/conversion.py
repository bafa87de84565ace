"""From the log and the Parquet files of 0.1.0's file sink to one version of a Delta table, with the sink's ledger.

Three things happen, each once and each durable: the old log is ended, so that no process of 0.1.0 can commit any more;
the rows are written as a Delta sink writes them; one version of the table's log names the new files and has the newest
commit's entry. A Delta sink of the same name goes on after it. The old files stay as they are.

A conversion that was killed is repeated as it is: the log is ended already, and the Delta sink's own claim removes what
was written and not committed.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, BatchFailedError, RefusedError, required
from airflow_provider_exactlyonce.streaming.sinks.delta.committer import DeltaCommitter
from airflow_provider_exactlyonce.streaming.sinks.delta.sink import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta.unconverted import LAST_RUN
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import NULL
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkEntry, never
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.delivery import has_notes
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.log import (
    CLAIM,
    COMMIT,
    COMPACTION,
    DataFile,
    FileLog,
    LogRecord,
)
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import Storage, open_storage

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_SINKS: Final = "_exactlyonce"


@dataclass(frozen=True, kw_only=True)
class OldFiles:
    """The commits of a file sink of 0.1.0 below a path.

    :param log: its log
    :param records: the newest compaction and all that follow it, oldest first; all records when there is no compaction
    :param columns: of the newest file, and those that only older ones have
    """

    path: str
    pipeline: str
    sink: str
    log: FileLog
    records: Sequence[LogRecord]
    columns: pa.Schema

    @property
    def entry(self) -> SinkEntry:
        """The newest commit."""
        return required(self.records[-1].entry, "a log without a commit is refused")

    @property
    def files(self) -> list[DataFile]:
        """The files with the rows of all commits, oldest first."""
        return [file for record in self.records for file in record.files]

    @property
    def rows(self) -> int:
        """How many rows they have."""
        return sum(file.rows for file in self.files)

    @property
    def partition_by(self) -> list[str]:
        """The columns by which the newest file is partitioned."""
        return list(self.files[-1].partition)


def find(path: str) -> OldFiles:
    """Return the files to convert, after checking that log and files agree. Nothing is changed.

    :param path: the sink's
    :raises RefusedError: naming what can't be converted, and the way out
    """
    storage = open_storage(path, {})
    logs = {}
    for folder in storage.names(_SINKS):
        log = FileLog(storage, f"{_SINKS}/{folder}/log")
        if (last := log.last()) is not None and not last.holds_rows and not has_notes(storage, f"{_SINKS}/{folder}"):
            logs[folder] = (log, last)
    if len(logs) != 1:
        raise RefusedError(_one_sink(path, list(logs)))
    ((folder, (log, last)),) = logs.items()
    pipeline, _, sink = folder.rpartition(".")
    if last.entry is None:
        raise RefusedError(f"sink {sink} of pipeline {pipeline} has committed nothing to {path}: remove {folder}")
    records = _live_records(log)
    old = OldFiles(path=path, pipeline=pipeline, sink=sink, log=log, records=records, columns=pa.schema([]))
    _check(old)
    if not old.files:
        raise RefusedError(
            f"no commit of sink {sink} of pipeline {pipeline} in {path} has a row, and nothing tells the table's "
            f"columns: remove {folder} below {_SINKS}, and give the Delta sink a name of its own"
        )
    return replace(old, columns=_columns(old, storage))


def check(old: OldFiles, partition_by: Sequence[str]) -> tuple[DeltaSink, StructType]:
    """Return the sink that writes the new table and its columns, once they fit; nothing is changed.

    :param partition_by: of the new table; columns of the old ``partition_by``
    :raises RefusedError: naming what does not fit a Delta table
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    columns: StructType = from_arrow_schema(old.columns, prefer_timestamp_ntz=True)
    sink = DeltaSink(name=old.sink, path=old.path, partition_by=partition_by)
    sink.check_columns(columns)
    _check_partitions(old, partition_by)
    return sink, columns


def convert(old: OldFiles, partition_by: Sequence[str]) -> bool:
    """Convert; returns whether there was anything left to do.

    :param partition_by: of the new table; columns of the old ``partition_by``
    :raises RefusedError: naming what does not fit a Delta table; nothing is changed
    :raises AlreadyRunningError: when a run of 0.1.0 has just written to the log
    """
    sink, columns = check(old, partition_by)
    earlier_rows = old.rows - old.entry.rows
    opened = DeltaCommitter(sink, old.pipeline, stop_requested=never, earlier_rows=earlier_rows)
    with closing(opened) as committer:
        committer.expect_columns(columns)
        if (newest := committer.tail()) is not None and newest.commit >= old.entry.commit:
            return False
        _end(old)
        failpoints.reach("convert-closed")
        committer.claim(old.entry.run)
        name = uuid.uuid4().hex
        attempt = SinkAttempt(name=name, pipeline=old.pipeline, commit=old.entry.commit, run=old.entry.run)
        committer.begin(attempt)
        committer.pre_commit([_write_rows(old, committer.open_writer(), attempt)])
        failpoints.reach("convert-written")
        committer.commit(old.entry)
        failpoints.reach("convert-committed")
    return True


def _write_rows(old: OldFiles, open_writer: OpenWriter, attempt: SinkAttempt) -> Mapping[str, Any]:
    """Write all rows; returns the description of the files for the committer, with the newest commit's rows."""
    try:
        with closing(open_writer(attempt, 0)) as writer:
            for rows in _rows(old):
                writer.write(rows)
            return {**writer.finish(), "rows": old.entry.rows}  # the others are of earlier commits
    except OSError as error:
        raise BatchFailedError(f"{old.path} can't be converted: {error}. Do it again; nothing is lost") from error


def _one_sink(path: str, folders: list[str]) -> str:
    if not folders:
        return f"{path} has nothing that a file sink of 0.1.0 has committed; a write-ahead log goes on as it is"
    return (
        f"{path} has the files of several sinks, {', '.join(folders)}, and each becomes a table of its own: move the "
        f"others from {path}/{_SINKS} to the same place below paths of their own"
    )


def _live_records(log: FileLog) -> list[LogRecord]:
    """Return the records that have all rows, oldest first.

    :raises RefusedError: when one is missing
    """
    records: list[LogRecord] = []
    for position in reversed(log.positions()):
        if records and position != records[-1].position - 1:
            raise RefusedError(f"{log.place(records[-1].position - 1)} is missing: put it back from a backup")
        records.append(log.read(position))
        if records[-1].kind == COMPACTION:
            break
    else:
        if records[-1].position != 1:
            raise RefusedError(f"{log.place(records[-1].position - 1)} is missing: put it back from a backup")
    return records[::-1]


def _check(old: OldFiles) -> None:
    """Check that each record has the rows that it says, in files as they were committed."""
    newest = 0
    for record in old.records:
        place, counted = old.log.place(record.position), sum(file.rows for file in record.files)
        if record.kind == COMMIT and record.entry is not None and counted != record.entry.rows:
            raise RefusedError(f"{place} says {record.entry.rows} rows, and its files have {counted}")
        if record.kind == COMMIT and record.entry is not None and newest and record.entry.commit != newest + 1:
            raise RefusedError(f"{place} has commit {record.entry.commit}, and the one before it is {newest}")
        newest = record.entry.commit if record.entry else 0
        for name in old.log.changed(record):
            raise RefusedError(f"{name} is missing or not as it was committed: put it back from a backup")


def _columns(old: OldFiles, storage: Storage) -> pa.Schema:
    """Return the columns of all files, with the newest types, once all values fit these."""
    schemas = []
    for file in old.files:
        with storage.open(file.name) as opened:
            schemas.append(pq.read_schema(opened))
    fields: dict[str, pa.Field] = {}
    for schema in reversed(schemas):
        for field in schema:
            fields.setdefault(field.name, field.with_nullable(True).remove_metadata())
    columns = pa.schema(fields.values())
    if any(schema.field(name).type != fields[name].type for schema in schemas for name in schema.names):
        for _ in _rows(replace(old, columns=columns)):  # each value is cast
            pass
    return columns


def _rows(old: OldFiles) -> Iterator[pa.RecordBatch]:
    """Yield all rows, with all columns."""
    for record in old.records:
        for rows in old.log.rows(record):
            arrays = []
            for field in old.columns:
                if field.name not in rows.schema.names:
                    arrays.append(pa.nulls(rows.num_rows, field.type))
                    continue
                try:
                    arrays.append(rows[field.name].cast(field.type))
                except pa.ArrowException as error:
                    raise RefusedError(
                        f"column {field.name!r} of {old.log.place(record.position)} is {rows[field.name].type}, and "
                        f"the newest files have it as {field.type}: {error}. Rewrite these files, or start a new table"
                    ) from error
            yield pa.RecordBatch.from_arrays(arrays, schema=old.columns)


def _check_partitions(old: OldFiles, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in old.partition_by:
            raise RefusedError(
                f"partition_by={list(partition_by)}: {name!r} is none of the columns by which the files were written, "
                f"{', '.join(old.partition_by) or 'which are none'}"
            )
        for file in old.files:
            if file.partition.get(name) in ("", NULL):
                columns = ",".join(column for column in partition_by if column != name)
                raise RefusedError(
                    f"column {name!r} of partition_by is the text {file.partition[name]!r} in {file.name}, which "
                    f"readers of Delta take for null: convert without it, --partition-by '{columns}', and declare the "
                    "Delta sink so"
                )


def _end(old: OldFiles) -> None:
    """Append a claim that no run is above, so that nobody else can append to the log."""
    last = old.records[-1]
    if last.run == LAST_RUN:
        return
    oldest = old.records[0]
    snapshot = oldest.position if oldest.kind == COMPACTION else 0
    end = LogRecord(position=last.position + 1, kind=CLAIM, run=LAST_RUN, entry=last.entry, snapshot=snapshot)
    try:
        old.log.append(end)
    except FileExistsError as error:
        raise AlreadyRunningError(
            f"{old.log.place(end.position)} was just written: a run of pipeline {old.pipeline} lives. Stop it first"
        ) from error

"""Reads an Iceberg table for a sink's audit: its snapshots, one by one, and its entry of each file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.row_deletes import RowDeletes
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import ListedFile, TableHistory

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table.snapshots import Snapshot


@dataclass(frozen=True, kw_only=True)
class _Changes:
    """The changes of a snapshot.

    :param added: files with rows
    :param removed: files with rows
    :param deletes: added files that say which rows of others are deleted
    """

    added: list[ManifestEntry]
    removed: list[ManifestEntry]
    deletes: list[ManifestEntry]


def read_history(table: IcebergTable, ledger: SinkLedger, *, replaces: bool) -> TableHistory:
    """Read main's snapshots that are still kept.

    :param replaces: whether the sink's rows are there to be replaced, by other pipelines' as well
    """
    history = TableHistory()  # commits before the oldest snapshot that is left are unknown by now
    snapshots = list(table.history())
    row_deletes = RowDeletes(table, history, (snapshots[-1].sequence_number or 0) if snapshots else 0)
    for snapshot in reversed(snapshots):
        changes = _changes(snapshot, table.io)
        added, removed = changes.added, changes.removed
        committed, name = ledger.committed_by(snapshot), _shown(snapshot)
        history.exchange(name, _paths(removed), _paths(added))
        row_deletes.place(added)
        if committed is not None:
            entry = committed.entry
            history.take(name, entry)
            history.count(name, entry, ledger.rows_of(snapshot, entry), sum(_rows(added)) - sum(_rows(removed)))
            history.hold(_paths(added), [frozenset({entry.commit}), *history.held(_paths(removed))])
        elif not (replaces and ledger.is_commit(snapshot)):
            row_deletes.follow(name, changes.deletes)
            if removed:
                _follow(history, snapshot, changes, [row_deletes.rows_left(entry.data_file) for entry in removed])
        if ledger.is_first(snapshot):
            history.since = 0
    return history


def _follow(history: TableHistory, snapshot: Snapshot, changes: _Changes, removed_rows: list[int | None]) -> None:
    """Note the changes of another writer's snapshot.

    :param removed_rows: the number of rows of each removed file
    """
    summary, name = snapshot.summary, _shown(snapshot)
    added, removed = changes.added, _paths(changes.removed)
    if summary is None or summary.operation != Operation.REPLACE:
        history.lose(name, removed)
    else:
        history.rewrite(name, removed_rows, _rows(added))
    history.hold(_paths(added), history.held(removed))


def _shown(snapshot: Snapshot) -> str:
    """Return a snapshot for messages."""
    operation = snapshot.summary.operation.value if snapshot.summary is not None else "an unnamed operation"
    return f"snapshot {snapshot.snapshot_id} ({operation})"


def _changes(snapshot: Snapshot, io: FileIO) -> _Changes:
    entries: dict[tuple[bool, ManifestEntryStatus], list[ManifestEntry]] = {
        (is_data, status): [] for is_data in (True, False) for status in ManifestEntryStatus
    }
    for manifest in snapshot.manifests(io):
        if manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.snapshot_id == snapshot.snapshot_id:
                    entries[manifest.content == ManifestContent.DATA, entry.status].append(entry)
    added, removed = ManifestEntryStatus.ADDED, ManifestEntryStatus.DELETED
    return _Changes(added=entries[True, added], removed=entries[True, removed], deletes=entries[False, added])


def _paths(entries: Iterable[ManifestEntry]) -> list[str]:
    return [entry.data_file.file_path for entry in entries]


def _rows(entries: Iterable[ManifestEntry]) -> list[int]:
    return [entry.data_file.record_count for entry in entries]


def listed_files(table: IcebergTable) -> Iterator[ListedFile]:
    """Yield the files with rows of main's newest snapshot."""
    for file in current_files(table):
        name = file.file_path
        is_parquet = name.endswith(".parquet")
        yield ListedFile(name=name, size=file.file_size_in_bytes, rows=file.record_count, is_parquet=is_parquet)

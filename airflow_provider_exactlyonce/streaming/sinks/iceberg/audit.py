"""The audit of an Iceberg sink: the table's snapshots against the pipeline's ledger, and the files against both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFileContent, ManifestContent, ManifestEntryStatus
from pyiceberg.table.snapshots import Operation

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table.snapshots import Snapshot

_REMOVED_DELETES: Final = "removed-delete-files"


@dataclass
class _History:
    """What main's snapshots say that are still kept.

    :ivar entries: the sink's commits
    :ivar commits: of each file with rows of the sink only, their commits
    :ivar findings: what contradicts itself
    :ivar is_whole: whether nothing of the sink is older than what is kept
    """

    entries: dict[int, SinkEntry] = field(default_factory=dict)
    commits: dict[str, frozenset[int]] = field(default_factory=dict)
    findings: list[str] = field(default_factory=list)
    is_whole: bool = False


def audit(table: IcebergTable | None, ledger: SinkLedger, where: str, commits: Iterable[SinkEntry]) -> Iterator[str]:
    """Yield what contradicts the pipeline's ledger, or the table's word on a file.

    :param table: as it is now; None when there is none
    :param where: the table, for messages
    :param commits: what the pipeline's ledger has for the sink, in order
    """
    if table is None:
        yield from (f"commit {expected.commit}: there is no {where}" for expected in commits)
        return
    try:
        newest = ledger.newest()
        history = _read(table, ledger)
    except RefusedError as error:
        yield str(error)
        return
    yield from history.findings
    entries = history.entries
    if newest is not None:
        entries.setdefault(newest.entry.commit, newest.entry)
    # What was committed before the oldest snapshot that is left, nobody can tell any more.
    oldest = 0 if history.is_whole else min(entries, default=0)
    judged = 0
    for expected in commits:
        judged, entry = expected.commit, entries.get(expected.commit)
        if entry is None:
            if expected.commit >= oldest:
                yield f"commit {expected.commit}: {where} has no snapshot with it"
        elif not entry.is_same_output(expected):
            yield f"commit {expected.commit}: {where} has {entry}, the pipeline's ledger {expected}"
    yield from (
        f"commit {number}: {where} has it, the pipeline's ledger not"
        for number in sorted(entries)
        if judged and number > judged + 1  # the next one may be under way
    )
    yield from _differences(table)


def _read(table: IcebergTable, ledger: SinkLedger) -> _History:
    history = _History()
    for snapshot in reversed(list(table.history())):
        added, removed = _changed_files(snapshot, table.io)
        committed = ledger.committed_by(snapshot)
        if committed is not None:
            _take(history, snapshot, committed.entry, added)
        history.is_whole = history.is_whole or ledger.is_first(snapshot)
        history.findings += _changes(history, snapshot, added, removed)
    return history


def _changed_files(snapshot: Snapshot, io: FileIO) -> tuple[list[DataFile], list[DataFile]]:
    """Return the files with rows that a snapshot has added, and those that it has removed."""
    files: dict[ManifestEntryStatus, list[DataFile]] = {status: [] for status in ManifestEntryStatus}
    for manifest in snapshot.manifests(io):
        if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
            for entry in manifest.fetch_manifest_entry(io, discard_deleted=False):
                if entry.snapshot_id == snapshot.snapshot_id:
                    files[entry.status].append(entry.data_file)
    return files[ManifestEntryStatus.ADDED], files[ManifestEntryStatus.DELETED]


def _take(history: _History, snapshot: Snapshot, entry: SinkEntry, added: list[DataFile]) -> None:
    """Note a commit of the sink."""
    name = f"snapshot {snapshot.snapshot_id}"
    if entry.commit in history.entries:
        history.findings.append(f"commit {entry.commit}: {name} has it once more")
    if history.entries and entry.commit < max(history.entries):
        history.findings.append(f"commit {entry.commit}: {name} comes after commit {max(history.entries)}")
    counted = sum(file.record_count for file in added)
    if counted != entry.rows:
        history.findings.append(f"commit {entry.commit}: {name} says {entry.rows} rows, and its files have {counted}")
    history.entries[entry.commit] = entry
    history.commits.update({file.file_path: frozenset({entry.commit}) for file in added})


def _changes(history: _History, snapshot: Snapshot, added: list[DataFile], removed: list[DataFile]) -> Iterator[str]:
    """Yield what a snapshot has changed of rows that are committed."""
    if not removed:
        return
    summary = snapshot.summary
    operation = summary.operation.value if summary is not None else "an unnamed operation"
    name = f"snapshot {snapshot.snapshot_id} ({operation})"
    touched = [history.commits.get(file.file_path, frozenset()) for file in removed]
    if operation != Operation.REPLACE.value:
        for file, commits in zip(removed, touched, strict=True):
            if commits:
                which = f"commit {min(commits)}" if len(commits) == 1 else f"commits {min(commits)} to {max(commits)}"
                yield f"{which}: {name} has changed or removed rows of {file.file_path}"
    elif summary is None or _REMOVED_DELETES not in summary.additional_properties:  # else they were carried out
        before, after = (sum(file.record_count for file in files) for files in (removed, added))
        if before != after:
            yield f"{name} has {after} rows in the place of {before}, and says that it has changed none"
    if all(touched):  # else rows of others are among them, which may be changed
        held = frozenset().union(*touched)
        history.commits.update({file.file_path: held for file in added})


def _differences(table: IcebergTable) -> Iterator[str]:
    """Yield which of the table's files differ from what its manifests say of them."""
    for file in table.current_files():
        if file.content != DataFileContent.DATA:
            continue
        size = table.files.size(file.file_path)
        if size is None:
            yield f"{file.file_path}: a file of the table with {file.record_count} rows is missing"
            continue
        if size != file.file_size_in_bytes:
            yield f"{file.file_path}: it has {size} bytes, and the table says {file.file_size_in_bytes}"
            continue
        if not file.file_path.endswith(".parquet"):
            continue
        with table.files.open(file.file_path) as opened:
            try:
                counted = pq.read_metadata(opened).num_rows
            except (OSError, pa.ArrowException) as error:
                yield f"{file.file_path}: it can't be read: {error}"
                continue
        if counted != file.record_count:
            yield f"{file.file_path}: it has {counted} rows, and the table says {file.record_count}"

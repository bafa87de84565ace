"""Reads a Delta table for a sink's audit: its log, version by version, and its entry of each file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote

from airflow_provider_exactlyonce.streaming.sinks.delta.ledger import EARLIER_ROWS, SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, LogEntry, standing_entries
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import ListedFile, TableHistory
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from airflow_provider_exactlyonce.tables.delta_log import is_elsewhere

_Rows = dict[str, int | None]


def read_history(files: DeltaFiles, ledger: SinkLedger, newest: int, *, replaces: bool) -> TableHistory:
    """Read the log.

    :param newest: the version to which it is read
    :param replaces: whether the sink's rows are there to be replaced, by other pipelines' as well
    :raises RefusedError: when an entry of it can't be read
    """
    history, rows, converted = TableHistory(), _Rows(), 0
    versions = [entry.version for entry in standing_entries(files, newest) if not entry.is_restore]
    is_whole = versions[-1:] == [0]
    for number in reversed(versions):
        try:
            log_entry = LogEntry.read(files, number)
        except FileNotFoundError:  # cleaned up meanwhile, after all that were before it
            history, rows, is_whole = TableHistory(), _Rows(), False
            continue
        information, added, removed = log_entry.information, log_entry.bodies("add"), log_entry.bodies("remove")
        metadata = information.get(METADATA, {})
        name = f"version {number} ({information.get('operation', 'an unnamed operation')})"
        history.exchange(name, _paths(removed), _paths(added))
        rows.update({unquote(body["path"]): _rows(body) for body in added})
        if "entry" in metadata and ledger.is_mine(metadata):
            entry = SinkEntry.from_json(json.dumps(metadata["entry"]))
            if EARLIER_ROWS in metadata:
                converted = entry.commit
            history.take(f"version {number}", entry)
            removed_rows = [rows.get(path) for path in _paths(removed)]
            if (expected := metadata.get("rows", entry.rows)) is not None and None not in removed_rows:
                counted = sum(_rows(body) or 0 for body in added) - sum(filter(None, removed_rows))
                history.count(f"version {number}", entry, expected, counted)
            history.hold(_paths(added), [frozenset({entry.commit}), *history.held(_paths(removed))])
        elif "entry" not in metadata or not replaces:
            _follow(history, rows, name, added, removed)
    # Commits before the oldest version that is left, or before a conversion, are unknown by now.
    history.since = converted if is_whole else None
    return history


def _follow(
    history: TableHistory,
    rows: Mapping[str, int | None],
    name: str,
    added: Sequence[Mapping[str, Any]],
    removed: Sequence[Mapping[str, Any]],
) -> None:
    """Note the changes of another writer's version."""
    history.lose(name, _paths(body for body in removed if body.get("dataChange", True)))
    history.hold(_paths(added), history.held(_paths(removed)))
    if removed and not any(body.get("dataChange", True) or "deletionVector" in body for body in (*added, *removed)):
        history.rewrite(name, [rows.get(path) for path in _paths(removed)], [_rows(body) for body in added])


def _paths(bodies: Iterable[Mapping[str, Any]]) -> list[str]:
    return [unquote(body["path"]) for body in bodies]


def _rows(added: Mapping[str, Any]) -> int | None:
    """Return how many rows the log says that a file has."""
    if not (text := added.get("stats")):
        return None
    count = json.loads(text).get("numRecords")
    return None if count is None else int(count)


def listed_files(log: DeltaLog) -> Iterator[ListedFile]:
    """Yield the files of the version last read that are the table's own."""
    for file in log.files():
        if not is_elsewhere(file.path):
            yield ListedFile(name=file.path, size=file.size, rows=file.rows)

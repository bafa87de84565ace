"""The audit of a Delta sink: the table's log against the pipeline's ledger, and the files against the log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.declaration import APPEND, DeltaDeclaration
from airflow_provider_exactlyonce.streaming.sinks.delta.ledger import EARLIER_ROWS, SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, actions, versions
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_ELSEWHERE: Final = "://"  # in the path of a file that a clone of the table refers to


@dataclass
class _History:
    """What the versions say that are still in the log.

    :ivar entries: the sink's commits
    :ivar rows: of each file that was added, by its path, None when nobody has said
    :ivar commits: of each file with rows of the sink only, their commits, or more when others have written it
    :ivar converted: the commit that took those before it along, 0 when none did
    :ivar findings: what contradicts itself
    """

    entries: dict[int, SinkEntry] = field(default_factory=dict)
    rows: dict[str, int | None] = field(default_factory=dict)
    commits: dict[str, frozenset[int]] = field(default_factory=dict)
    converted: int = 0
    findings: list[str] = field(default_factory=list)


def audit(
    log: DeltaLog | None, files: TableFiles, ledger: SinkLedger, sink: DeltaDeclaration, commits: Iterable[SinkEntry]
) -> Iterator[str]:
    """Yield what contradicts the pipeline's ledger, or the log's word on a file.

    :param log: the table's, as it is now; None when there is no table
    :param commits: what the pipeline's ledger has for the sink, in order
    """
    where = sink.where
    if log is None:
        yield from (f"commit {expected.commit}: there is no {where}" for expected in commits)
        return
    try:
        newest = ledger.newest()
        kept_versions = versions(files)
        history = _read(files, ledger, kept_versions, replaces=sink.mode != APPEND)
    except RefusedError as error:
        yield str(error)
        return
    yield from history.findings
    entries = history.entries
    if newest is not None and newest.entry is not None:
        entries.setdefault(newest.commit, newest.entry)
    # What was committed before the oldest version that is left, or before a conversion, nobody can tell any more.
    oldest = history.converted if kept_versions[:1] == [0] else min(entries, default=0)
    judged = 0
    for expected in commits:
        judged, entry = expected.commit, entries.get(expected.commit)
        if entry is None:
            if expected.commit >= oldest:
                yield f"commit {expected.commit}: {where} has no version with it"
        elif not entry.is_same_output(expected):
            yield f"commit {expected.commit}: {where} has {entry}, the pipeline's ledger {expected}"
    yield from (
        f"commit {number}: {where} has it, the pipeline's ledger not"
        for number in sorted(entries)
        if judged and number > judged + 1  # the next one may be under way
    )
    yield from _differences(log, files)


def _read(files: TableFiles, ledger: SinkLedger, kept_versions: Iterable[int], *, replaces: bool) -> _History:
    """Read the log.

    :param replaces: whether the sink's rows are there to be replaced, by other pipelines' as well
    """
    history = _History()
    for version in kept_versions:
        version_actions = list(actions(files, version))
        information = next((body for kind, body in version_actions if kind == "commitInfo"), {})
        added = [body for kind, body in version_actions if kind == "add"]
        removed = [body for kind, body in version_actions if kind == "remove"]
        metadata = information.get(METADATA, {})
        for body in added:
            history.rows[unquote(body["path"])] = _rows(body)
        if "entry" in metadata and ledger.is_mine(metadata):
            entry = SinkEntry.from_json(json.dumps(metadata["entry"]))
            if EARLIER_ROWS in metadata:
                history.converted = entry.commit
            _take(history, version, entry, metadata.get("rows", entry.rows), added, removed)
        elif "entry" not in metadata or not replaces:
            operation = information.get("operation", "an unnamed operation")
            history.findings += _changes(history, version, operation, added, removed)
    return history


def _take(
    history: _History,
    version: int,
    entry: SinkEntry,
    more: int | None,
    added: list[dict[str, Any]],
    removed: list[dict[str, Any]],
) -> None:
    """Note a commit of the sink.

    :param more: how many more rows the table should have by it, None when it does not say
    """
    if entry.commit in history.entries:
        history.findings.append(f"commit {entry.commit}: version {version} has it once more")
    if history.entries and entry.commit < max(history.entries):
        history.findings.append(f"commit {entry.commit}: version {version} comes after commit {max(history.entries)}")
    gone = [unquote(body["path"]) for body in removed]
    before = [history.rows.get(path) for path in gone]
    counted = sum(_rows(body) or 0 for body in added) - sum(rows or 0 for rows in before)
    if more is not None and None not in before and counted != more:
        history.findings.append(
            f"commit {entry.commit}: version {version} says {more} rows, and its files have {counted}"
        )
    history.entries[entry.commit] = entry
    _hold(history, added, [frozenset({entry.commit}), *(history.commits.get(path, frozenset()) for path in gone)])


def _hold(history: _History, added: list[dict[str, Any]], held: list[frozenset[int]]) -> None:
    """Note whose rows are in the files that a version adds, unless rows of others may be among them, too."""
    if held and all(held):
        commits = frozenset().union(*held)
        history.commits.update({unquote(body["path"]): commits for body in added})


def _changes(
    history: _History, version: int, operation: str, added: list[dict[str, Any]], removed: list[dict[str, Any]]
) -> Iterator[str]:
    """Yield what a version has changed of rows that are committed."""
    touched = [history.commits.get(unquote(body["path"]), frozenset()) for body in removed]
    for body, commits in zip(removed, touched, strict=True):
        if commits and body.get("dataChange", True):
            which = f"commit {min(commits)}" if len(commits) == 1 else f"commits {min(commits)} to {max(commits)}"
            yield f"{which}: version {version} ({operation}) has changed or removed rows of {unquote(body['path'])}"
    _hold(history, added, touched)
    if not removed or any(body.get("dataChange", True) or "deletionVector" in body for body in (*added, *removed)):
        return
    before = [history.rows.get(unquote(body["path"])) for body in removed]
    after = [_rows(body) for body in added]
    if None not in (*before, *after) and sum(filter(None, before)) != sum(filter(None, after)):
        yield (
            f"version {version} ({operation}) has {sum(filter(None, after))} rows in the place of "
            f"{sum(filter(None, before))}, and says that it has changed none"
        )


def _rows(added: Mapping[str, Any]) -> int | None:
    """Return how many rows the log says that a file has."""
    if not (text := added.get("stats")):
        return None
    count = json.loads(text).get("numRecords")
    return None if count is None else int(count)


def _differences(log: DeltaLog, files: TableFiles) -> Iterator[str]:
    """Yield which of the table's files differ from what the log says of them."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for row in pa.table(log.table.get_add_actions(flatten=False)).to_pylist():
        path, size, rows = unquote(row["path"]), row["size_bytes"], row["num_records"]
        if _ELSEWHERE in path:
            continue
        place = files.place(path)
        actual_size = files.size(path)
        if actual_size is None:
            yield f"{place}: a file of the table with {rows} rows is missing"
            continue
        if actual_size != size:
            yield f"{place}: it has {actual_size} bytes, and the log says {size}"
            continue
        with files.open(path) as opened:
            try:
                counted = pq.read_metadata(opened).num_rows
            except (OSError, pa.ArrowException) as error:
                yield f"{place}: it can't be read: {error}"
                continue
        if rows is not None and counted != rows:
            yield f"{place}: it has {counted} rows, and the log says {rows}"

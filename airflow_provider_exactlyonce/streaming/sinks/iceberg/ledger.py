"""The sink's own ledger in a table: in the summaries of its snapshots, and in a property of the table.

The summary of every snapshot of the sink has the run that wrote it, that run's claim, and the newest commit of then.
A property of the table, written with each snapshot, has the same. Snapshots expire, and the property stays; the table
is set back to an older snapshot, and the property is not. So main's snapshots are read first, and the property when
none of the sink's is left among them. The newest claim is that with the higher run of the two, and the property's if
both have the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import Committed
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.contract import SinkClaim
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

_SCHEMA: Final = 1
_PREFIX: Final = "exactlyonce"
_SINK: Final = f"{_PREFIX}.sink"
_RUN: Final = f"{_PREFIX}.run"
_CLAIM: Final = f"{_PREFIX}.claim"
_COMMIT: Final = f"{_PREFIX}.commit"
_ATTEMPT: Final = f"{_PREFIX}.attempt"
_ENTRY: Final = f"{_PREFIX}.entry"
_ROWS: Final = f"{_PREFIX}.rows"


@dataclass(frozen=True, kw_only=True)
class LedgerProperty:
    """The content of the table's property.

    :param run: the highest that has claimed
    :param highest: the highest number that was ever committed; it stays when the table is set back
    :param snapshot: the snapshot that the property was written with
    :param sequence: its sequence number
    :param newest: the newest commit, None when there was none
    :param claim_id: distinguishes the newest claim from others of its run
    """

    run: int
    highest: int
    snapshot: int
    sequence: int
    newest: Committed | None = None
    claim_id: int | None = None

    def encoded(self) -> str:
        """Return its JSON."""
        newest = _summary(self.newest) if self.newest else None
        return json.dumps({"schema": _SCHEMA, **vars(self), "newest": newest}, separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str, what: str) -> LedgerProperty:
        """Read the result of :meth:`encoded`.

        :param what: names it in messages
        :raises RefusedError: when it can't be read
        """
        try:
            body = json.loads(text)
            codec.check_schema(body, what, (_SCHEMA,))
            newest = _committed(body["newest"]) if body["newest"] else None
            return codec.load(cls, {**body, "newest": newest}, what)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{what} is not what this sink writes: {error}. Put it back from a backup") from error


class SinkLedger:
    """The ledger of one sink of one pipeline in a table.

    :param where: sink and table, for messages
    """

    def __init__(self, table: IcebergTable, pipeline: str, sink: str, where: str) -> None:
        self._table: Final = table
        self._where: Final = where
        self._name: Final = f"{pipeline}/{sink}"
        self._property: Final = f"{_PREFIX}.{pipeline}.{sink}"

    @property
    def record(self) -> LedgerProperty | None:
        """The table's property, as of the metadata last read."""
        text = self._table.metadata.properties.get(self._property)
        return None if text is None else self._decoded(self._property, text)

    def named_snapshots(self) -> set[int]:
        """Return the snapshots that the properties of all sinks name; as of the metadata last read."""
        properties = self._table.metadata.properties.items()
        return {self._decoded(name, text).snapshot for name, text in properties if name.startswith(f"{_PREFIX}.")}

    @property
    def claim(self) -> SinkClaim:
        """The newest claim of the highest run that has claimed; as of the metadata last read."""
        record, snapshot = self.record, self._snapshot()
        summary = _additional_properties(snapshot) if snapshot else {}
        run = int(summary.get(_RUN, 0))
        if record is not None and record.run >= run:
            return SinkClaim(run=record.run, number=record.claim_id)
        return SinkClaim(run=run, number=int(summary[_CLAIM]) if _CLAIM in summary else None)

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none; as of the metadata last read."""
        return newest.entry.commit if (newest := self.newest()) else 0

    def has(self, attempt: str) -> bool:
        """Tell whether the newest commit was made by an attempt; as of the metadata last read."""
        return (newest := self.newest()) is not None and newest.attempt == attempt

    def knows(self, attempt: str) -> bool:
        """Tell whether a snapshot that is kept is an attempt's, in main or not; as of the metadata last read."""
        return any(
            _additional_properties(snapshot).get(_ATTEMPT) == attempt for snapshot in self._table.metadata.snapshots
        )

    may_have = knows

    @property
    def highest(self) -> int:
        """The highest number that was ever committed; as of the metadata last read."""
        return max(record.highest if (record := self.record) else 0, self.commit)

    def newest(self) -> Committed | None:
        """Return the newest commit, None when there is none; as of the metadata last read.

        :raises RefusedError: when the table was set back so far that nobody knows, or may have been
        """
        if (snapshot := self._snapshot()) is not None:
            return _committed(_additional_properties(snapshot))
        record = self.record
        if record is None or record.newest is None:
            return None
        self._check_was_not_set_back(record, record.newest)
        return record.newest

    def _decoded(self, name: str, text: str) -> LedgerProperty:
        return LedgerProperty.decoded(text, f"property {name} of {self._where}")

    def _check_was_not_set_back(self, record: LedgerProperty, newest: Committed) -> None:
        """Check that main has no snapshot of the sink because they have expired."""
        commit, statement = newest.entry.commit, f"CALL catalog.system.set_current_snapshot(table, {record.snapshot})"
        oldest = next(reversed(list(self._table.history())), None)
        if oldest is None or (oldest.sequence_number or 0) <= record.sequence:
            # What is older than the commit is not built on it.
            raise RefusedError(
                f"{self._where} was set back behind its commit {commit}, to where no snapshot says which commit is the "
                f"newest. Set it forward again: {statement}; or to an older one that has {_ENTRY} in its summary"
            )
        if any(snapshot.snapshot_id == record.snapshot for snapshot in self._table.metadata.snapshots):
            raise RefusedError(
                f"{self._where} has commit {commit} in snapshot {record.snapshot}, and main does not lead there any "
                f"more: it was set back and written to by others, or what is between has expired. If it was set back, "
                f"set it forward again: {statement}. If not, drop the tag or branch that keeps it, and expire it"
            )

    def claim_of(self, run: int, claim_id: int | None) -> tuple[dict[str, str], Any]:
        """Return the summary of a claim's snapshot, and the properties that are written with it."""
        return self._summary_and_properties(run, claim_id, self.newest(), {})

    def commit_of(self, attempt: str, entry: SinkEntry, rows: int | None) -> tuple[dict[str, str], Any]:
        """Return the summary of a commit's snapshot, and the properties that are written with it.

        :param rows: how many more rows the table has then; Iceberg's manifests always say it
        """
        facts = {_COMMIT: str(entry.commit), _ROWS: str(rows)}
        return self._summary_and_properties(
            entry.run, self.claim.number, Committed(attempt=attempt, entry=entry), facts
        )

    def _summary_and_properties(
        self, run: int, claim_id: int | None, newest: Committed | None, facts: Mapping[str, str]
    ) -> tuple[dict[str, str], Any]:
        claim = {} if claim_id is None else {_CLAIM: str(claim_id)}
        summary = {_SINK: self._name, _RUN: str(run), **claim, **facts, **(_summary(newest) if newest else {})}
        highest = max(self.highest, newest.entry.commit if newest else 0)

        def properties(snapshot: int, sequence: int) -> dict[str, str]:
            record = LedgerProperty(
                run=run, highest=highest, snapshot=snapshot, sequence=sequence, newest=newest, claim_id=claim_id
            )
            return {self._property: record.encoded()}

        return summary, properties

    def _is_mine(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot is of this sink."""
        return _additional_properties(snapshot).get(_SINK) == self._name

    def is_first(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot is of this sink, and before all of its commits."""
        return self._is_mine(snapshot) and _ENTRY not in _additional_properties(snapshot)

    def committed_by(self, snapshot: Snapshot) -> Committed | None:
        """Return the commit of a snapshot, None for a claim and for others' snapshots."""
        if self._is_mine(snapshot) and self.is_commit(snapshot):
            return _committed(_additional_properties(snapshot))
        return None

    def rows_of(self, snapshot: Snapshot, entry: SinkEntry) -> int:
        """Return how many more rows a commit's snapshot says that the table has; 0.1.0 says it in the entry only."""
        return int(_additional_properties(snapshot).get(_ROWS, entry.rows))

    def is_commit(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot is a commit of this or of another sink."""
        return _COMMIT in _additional_properties(snapshot)

    def _snapshot(self) -> Snapshot | None:
        """Return main's newest snapshot of this sink that is kept."""
        return next((snapshot for snapshot in self._table.history() if self._is_mine(snapshot)), None)


def _additional_properties(snapshot: Snapshot) -> Mapping[str, str]:
    """Return a snapshot's properties besides those of Iceberg itself."""
    return snapshot.summary.additional_properties if snapshot.summary is not None else {}


def _summary(committed: Committed) -> dict[str, str]:
    """Return a commit as a snapshot's properties."""
    return {_ATTEMPT: committed.attempt, _ENTRY: committed.entry.to_json()}


def _committed(summary: Mapping[str, str]) -> Committed | None:
    """Read the result of :func:`_summary`, None when there was no commit yet."""
    if _ENTRY not in summary:
        return None
    return Committed(attempt=summary[_ATTEMPT], entry=SinkEntry.from_json(summary[_ENTRY]))

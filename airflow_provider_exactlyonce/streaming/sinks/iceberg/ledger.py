"""The sink's own ledger in a table: what its snapshots say, a property of the table, and a note for each attempt.

Every snapshot of the sink says in its summary which run wrote it, and what the newest commit was then. A property of
the table, written with each of them, says the same. Snapshots expire, and the property stays; the table is set back to
an older snapshot, and the property is not. So main's snapshots are asked first, and the property when none of the
sink's is left among them. That a higher run has claimed is known from whichever says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

if TYPE_CHECKING:
    from pyiceberg.table.snapshots import Snapshot

_SCHEMA: Final = 1
_SUFFIX: Final = ".json"
_PREFIX: Final = "exactlyonce"
_SINK: Final = f"{_PREFIX}.sink"
_RUN: Final = f"{_PREFIX}.run"
_COMMIT: Final = f"{_PREFIX}.commit"
_ATTEMPT: Final = f"{_PREFIX}.attempt"
_ENTRY: Final = f"{_PREFIX}.entry"


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A commit that the table has.

    :param attempt: which made it
    """

    attempt: str
    entry: SinkEntry

    @property
    def summary(self) -> dict[str, str]:
        """What a snapshot says of it."""
        return {_ATTEMPT: self.attempt, _ENTRY: self.entry.to_json()}

    @classmethod
    def from_summary(cls, summary: Mapping[str, str]) -> Committed | None:
        """Read what :attr:`summary` gave, None when there was no commit yet."""
        if _ENTRY not in summary:
            return None
        return cls(attempt=summary[_ATTEMPT], entry=SinkEntry.from_json(summary[_ENTRY]))


@dataclass(frozen=True, kw_only=True)
class Record:
    """What the table's property says.

    :param run: the highest that has claimed
    :param highest: the highest number that was ever committed; it stays when the table is set back
    :param snapshot: which the property was written with
    :param sequence: its sequence number
    :param newest: the newest commit, None when there was none
    """

    run: int
    highest: int
    snapshot: int
    sequence: int
    newest: Committed | None = None

    def encoded(self) -> str:
        """Return its JSON."""
        newest = self.newest.summary if self.newest else None
        return json.dumps({"schema": _SCHEMA, **vars(self), "newest": newest}, separators=(",", ":"))

    @classmethod
    def decoded(cls, text: str, what: str) -> Record:
        """Read what :meth:`encoded` gave.

        :param what: how people find it
        :raises RefusedError: when it can't be read
        """
        try:
            body = json.loads(text)
            codec.check_schema(body, what, (_SCHEMA,))
            newest = Committed.from_summary(body["newest"]) if body["newest"] else None
            return codec.load(cls, {**body, "newest": newest}, what)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{what} is not what this sink writes: {error}. Put it back from a backup") from error


@dataclass(frozen=True, kw_only=True)
class AttemptNote:
    """What the sink knows of one attempt.

    :param attempt: its name
    :param commit: the commit that it would be
    :param run: the run that made it
    :param files: what its commit adds to the table; None as long as nobody has tried to commit it
    """

    attempt: str
    commit: int
    run: int
    files: tuple[str, ...] | None = None

    def encoded(self) -> bytes:
        """Return its JSON."""
        return json.dumps({"schema": _SCHEMA, **asdict(self)}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, content: bytes, what: str) -> AttemptNote:
        """Read what :meth:`encoded` gave.

        :param what: how people find it
        :raises RefusedError: when it can't be read
        """
        try:
            body = json.loads(content)
            codec.check_schema(body, what, (_SCHEMA,))
            return codec.load(cls, body, what)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{what} is no note of an attempt: {error}. Remove it") from error


class SinkLedger:
    """What one sink of one pipeline has in a table, and beside it.

    :param where: sink and table, for messages
    """

    def __init__(self, table: IcebergTable, pipeline: str, sink: str, where: str) -> None:
        self._table: Final = table
        self._where: Final = where
        self._name: Final = f"{pipeline}/{sink}"
        self._folder: Final = f"{pipeline}/{sink}"  # some stores take no dot in the name of a folder
        self._property: Final = f"{_PREFIX}.{pipeline}.{sink}"

    @property
    def data(self) -> str:
        """The location of the sink's attempts."""
        return f"{self._table.data_location}/{_PREFIX}/{self._folder}"

    @property
    def record(self) -> Record | None:
        """What the table's property says; as of the metadata last looked at."""
        text = self._table.metadata.properties.get(self._property)
        return None if text is None else Record.decoded(text, f"property {self._property} of {self._where}")

    @property
    def claimed(self) -> int:
        """The highest run that has claimed, 0 when none has; as of the metadata last looked at."""
        record, snapshot = self.record, self._snapshot()
        told = int(self.summary_of(snapshot)[_RUN]) if snapshot else 0
        return max(told, record.run if record else 0)

    @property
    def highest(self) -> int:
        """The highest number that was ever committed; as of the metadata last looked at."""
        record, newest = self.record, self.newest()
        return max(record.highest if record else 0, newest.entry.commit if newest else 0)

    def newest(self) -> Committed | None:
        """Return the newest commit, None when there is none; as of the metadata last looked at.

        :raises RefusedError: when the table was set back so far that nobody knows
        """
        if (snapshot := self._snapshot()) is not None:
            return Committed.from_summary(self.summary_of(snapshot))
        record = self.record
        if record is None or record.newest is None:
            return None
        oldest = next(reversed(list(self._table.history())), None)
        kept = any(one.snapshot_id == record.snapshot for one in self._table.metadata.snapshots)
        # Main has no snapshot of the sink: they have expired, or the table was set back behind them. What is kept but
        # is none of main's, or is younger than the oldest that main has left, is none that main has had before.
        if kept or oldest is None or (oldest.sequence_number or 0) <= record.sequence:
            raise RefusedError(
                f"{self._where} was set back behind its commit {record.newest.entry.commit}, to where no snapshot says "
                f"which commit is the newest. Set it forward again: CALL catalog.system.set_current_snapshot(table, "
                f"{record.snapshot}); or to an older one that has {_ENTRY} in its summary"
            )
        return record.newest

    def claim_of(self, run: int) -> tuple[dict[str, str], Any]:
        """Return the summary of a claim's snapshot, and the properties that are written with it."""
        return self._told(run, self.newest(), {})

    def commit_of(self, note: AttemptNote, entry: SinkEntry) -> tuple[dict[str, str], Any]:
        """Return the summary of a commit's snapshot, and the properties that are written with it."""
        return self._told(note.run, Committed(attempt=note.attempt, entry=entry), {_COMMIT: str(entry.commit)})

    def _told(self, run: int, newest: Committed | None, more: Mapping[str, str]) -> tuple[dict[str, str], Any]:
        summary = {_SINK: self._name, _RUN: str(run), **more, **(newest.summary if newest else {})}
        highest = max(self.highest, newest.entry.commit if newest else 0)

        def properties(snapshot: int, sequence: int) -> dict[str, str]:
            record = Record(run=run, highest=highest, snapshot=snapshot, sequence=sequence, newest=newest)
            return {self._property: record.encoded()}

        return summary, properties

    def summary_of(self, snapshot: Snapshot) -> Mapping[str, str]:
        """Return what a snapshot says beside what Iceberg has it say."""
        return snapshot.summary.additional_properties if snapshot.summary is not None else {}

    def is_mine(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot is of this sink."""
        return self.summary_of(snapshot).get(_SINK) == self._name

    def is_first(self, snapshot: Snapshot) -> bool:
        """Tell whether a snapshot is of this sink, and before all of its commits."""
        return self.is_mine(snapshot) and _ENTRY not in self.summary_of(snapshot)

    def committed_by(self, snapshot: Snapshot) -> Committed | None:
        """Return what a snapshot has committed, None for a claim and for others' snapshots."""
        if self.is_mine(snapshot) and _COMMIT in self.summary_of(snapshot):
            return Committed.from_summary(self.summary_of(snapshot))
        return None

    def _snapshot(self) -> Snapshot | None:
        """Return main's newest snapshot of this sink that is kept."""
        return next((snapshot for snapshot in self._table.history() if self.is_mine(snapshot)), None)

    # The notes

    def notes(self, files: TableFiles) -> list[AttemptNote]:
        """Return the notes that are there.

        :raises RefusedError: when one can't be read
        """
        found = []
        for name in files.below(self._notes):
            if name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):  # a run that lives has just removed it
                    found.append(AttemptNote.decoded(files.read(name), name))
        return found

    def write(self, files: TableFiles, note: AttemptNote) -> None:
        """Write an attempt's note over the one that is there, durably."""
        files.replace(self._note(note.attempt), note.encoded())

    def remove_note(self, files: TableFiles, attempt: str) -> None:
        """Remove the note of an attempt, if it is there."""
        files.remove(self._note(attempt))

    def remove_attempt(self, files: TableFiles, attempt: str) -> None:
        """Remove all of an attempt that is not committed, and can't be any more."""
        files.remove_below(f"{self.data}/{attempt}")
        self.remove_note(files, attempt)

    def tidy(self, files: TableFiles, note: AttemptNote) -> None:
        """Remove what is beside the files of a commit, of tasks that ran twice, and then its note."""
        if note.files is not None:
            for name in files.below(f"{self.data}/{note.attempt}"):
                if name not in note.files:
                    files.remove(name)
        self.remove_note(files, note.attempt)

    @property
    def _notes(self) -> str:
        # Iceberg's removal of orphan files leaves alone what begins with an underscore.
        return f"{self._table.metadata.location}/_{_PREFIX}/{self._folder}"

    def _note(self, attempt: str) -> str:
        return f"{self._notes}/{attempt}{_SUFFIX}"

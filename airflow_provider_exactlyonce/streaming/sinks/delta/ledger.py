"""The sink's own ledger in a table: four transactions of Delta's log, and a note beside the log for each attempt.

A version of the log names, as transactions of applications, the number of the newest commit (``<pipeline>/<sink>``),
the highest run that has claimed (``…/run``), a random number of its claim (``…/claim``), and the attempt that the
newest commit was made by (``…/attempt``).
Transactions outlive checkpoints and the clean-up of old versions. The entry of the newest commit would not: it is in
the metadata of its version, which goes when the log is cleaned up. So it is in the attempt's note, too, which is
written before the version, and stays until the next commit.

A ``RESTORE`` takes rows out and leaves transactions. So it is looked for before each version of the sink, and from one
on the newest commit is that which the restored version had. The next claim then corrects the transactions, and writes
``<pipeline>/<sink>/highest``, which no ``RESTORE`` and no claim sets back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, LogEntry, standing_entries
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.contract import SinkClaim
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

if TYPE_CHECKING:
    from deltalake import DeltaTable

#: In the metadata of the version of a conversion.
EARLIER_ROWS: Final = "earlier_rows"
#: In the metadata of a claim that corrects the transactions.
_STANDING: Final = "standing"
#: Versions that are read for what only lineage wants to know.
_LINEAGE_VERSIONS: Final = 100


@dataclass(frozen=True, kw_only=True)
class _Standing:
    """The sink's newest commit, by the versions that make up a table.

    :param newest: None when there is none
    """

    newest: Committed | None


class SinkLedger:
    """The ledger of one sink of one pipeline: in a table's log and beside it.

    :param log: the table's log
    :param files: the table's directory
    :ivar of_sink: metadata in each of its versions
    """

    def __init__(self, log: DeltaLog, files: DeltaFiles, pipeline: str, sink: str) -> None:
        self._log: Final = log
        self._files: Final = files
        self._application: Final = f"{pipeline}/{sink}"
        self._run: Final = f"{self._application}/run"
        self._claim: Final = f"{self._application}/claim"
        self._attempt: Final = f"{self._application}/attempt"
        self._highest: Final = f"{self._application}/highest"
        self.of_sink: Final = {"pipeline": pipeline, "sink": sink}
        self._standing: _Standing | None = None
        self._looked_at: tuple[DeltaTable | None, int] = None, 0  # the handle and the version
        folder = f"exactlyonce/{pipeline}.{sink}"
        self.attempts: Final = Attempts(files, notes=f"_{folder}", data=folder)  # VACUUM leaves alone what begins so

    @property
    def claim(self) -> SinkClaim:
        """The newest claim of the highest run that has claimed; as of the version last read."""
        return SinkClaim(run=self._log.transaction(self._run) or 0, number=self._log.transaction(self._claim))

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none; as of the version last read."""
        if (standing := self._correction()) is not None:
            return standing.newest.entry.commit if standing.newest else 0
        return self._log.transaction(self._application) or 0

    @property
    def highest(self) -> int:
        """The highest number that was ever committed; as of the version last read."""
        return max(self._log.transaction(self._application) or 0, self._log.transaction(self._highest) or 0)

    def has(self, attempt: str) -> bool:
        """Tell whether the newest commit was made by an attempt; as of the version last read."""
        if (standing := self._correction()) is not None:
            return standing.newest is not None and standing.newest.attempt == attempt
        return self.knows(attempt)

    def knows(self, attempt: str) -> bool:
        """Tell whether the transactions name an attempt, whatever was restored since."""
        return self._log.transaction(self._attempt) == _identity(attempt)

    def may_have(self, attempt: str) -> bool:
        """Tell whether a version that was restored over may be an attempt's, at the number of the newest commit."""
        return self._log.transaction(self._highest) is not None or self._correction() is not None or self.knows(attempt)

    def claim_of(self, run: int, claim_id: int) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the transactions and the metadata of a claim's version."""
        transactions, metadata = {self._run: run, self._claim: claim_id}, {**self.of_sink, "claim": run}
        if (standing := self._correction()) is None:
            return transactions, metadata
        newest = standing.newest
        corrections = {
            self._application: newest.entry.commit if newest else 0,
            self._attempt: _identity(newest.attempt) if newest else 0,
            self._highest: self.highest,
        }
        return {**transactions, **corrections}, {**metadata, _STANDING: None if newest is None else _described(newest)}

    def commit_of(
        self, note: AttemptNote, entry: SinkEntry, rows: int | None, earlier_rows: int | None
    ) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the transactions and the metadata of a commit's version.

        :param rows: how many more rows the table has then, None when nobody knows
        :param earlier_rows: those of earlier commits among them, which this one takes along; None when it takes none
        """
        transactions = {
            self._application: entry.commit,
            self._run: entry.run,
            self._attempt: _identity(note.attempt),
        }
        facts = {"attempt": note.attempt, "entry": json.loads(entry.to_json()), "rows": rows}
        conversion = {} if earlier_rows is None else {EARLIER_ROWS: earlier_rows}
        return transactions, {**self.of_sink, **facts, **conversion}

    def is_mine(self, metadata: Mapping[str, Any]) -> bool:
        """Tell whether a version's metadata is of this sink."""
        return all(metadata.get(key) == value for key, value in self.of_sink.items())

    def newest(self) -> Committed | None:
        """Return the newest commit, None when there is none; as of the version last read.

        :raises RefusedError: when it is neither in a note beside the log nor in the log
        """
        if (standing := self._correction()) is not None:
            return standing.newest
        if not self.commit:
            return None
        if (newest := self._noted()) is not None:
            return newest
        if (found := self._in_log()) is not None and found[1].newest is not None:
            return found[1].newest
        raise RefusedError(
            f"the note of commit {self.commit} of {self._application} is missing in {self.attempts.place}, and the log "
            "was cleaned up since: it was not copied with the table. Put it back from a backup"
        )

    def committed_in(self) -> int | None:
        """Return the version that says which commit is the newest, None when it was cleaned up."""
        return found[0].version if (found := self._in_log()) is not None else None

    def version_of(self, attempt: str) -> int | None:
        """Return the version with which an attempt has committed, None when it is not the newest commit or far back."""
        for entry in islice(standing_entries(self._files, self._log.version), _LINEAGE_VERSIONS):
            metadata = entry.information.get(METADATA) or {}
            if self.is_mine(metadata) and "entry" in metadata:
                return entry.version if metadata["attempt"] == attempt else None
        return None

    def keep_note(self) -> None:
        """Write the note of the newest commit if it is not there: its version may be cleaned up, as may a claim's."""
        if self._correction() is None and self._noted() is not None:
            return
        newest = self.newest()
        if newest is not None and all(note.attempt != newest.attempt for note in self.attempts.notes()):
            entry = newest.entry
            self.attempts.write(
                AttemptNote(attempt=newest.attempt, commit=entry.commit, run=entry.run, entry=entry, files=newest.files)
            )

    def _noted(self) -> Committed | None:
        """Return the commit that the transactions name from its note, None when that is not there."""
        number = self._log.transaction(self._application)
        for note in self.attempts.notes():
            if note.entry is not None and note.commit == number and self.knows(note.attempt):
                return Committed(attempt=note.attempt, entry=note.entry, files=note.files)
        return None

    def _in_log(self) -> tuple[LogEntry, _Standing] | None:
        """Return the version that names the newest commit, and the commit, if it is still in the log."""
        for entry in standing_entries(self._files, self._log.version):
            if (standing := self._standing_of(entry)) is not None:
                return entry, standing
        return None

    def _correction(self) -> _Standing | None:
        """Return the right newest commit, None when the transactions name it; as of the version last read.

        :raises RefusedError: when that is unknown
        """
        looked_at = self._log.table, self._log.version
        if looked_at[0] is not self._looked_at[0] or looked_at[1] != self._looked_at[1]:  # all handles are equal
            is_known = looked_at[0] is self._looked_at[0] and self._standing is None
            if not is_known or any(map(self._is_restore, self._log.foreign_versions(self._looked_at[1]))):
                self._standing = self._look_back()
            self._looked_at = looked_at
        return self._standing

    def _is_restore(self, version: int) -> bool:
        try:
            return LogEntry.read(self._files, version).is_restore
        except FileNotFoundError:  # cleaned up, so it was there long ago
            return False

    def _look_back(self) -> _Standing | None:
        if not self.highest or self._is_as_noted():
            return None
        restored: list[LogEntry] = []
        for entry in standing_entries(self._files, self._log.version):
            if entry.is_restore:
                restored.append(entry)
            elif (standing := self._standing_of(entry)) is not None:
                return None if self._agrees(standing, self._log) else standing
        return self._restored_to(restored[-1]) if restored else None

    def _is_as_noted(self) -> bool:
        """Tell cheaply whether the table still has the commit that the transactions name: the log may be long.

        Once it was set back, the files of a commit may be there again by another ``RESTORE``.
        """
        noted = self._noted() if self._log.transaction(self._highest) is None else None
        return bool(noted and noted.files and {file.path for file in self._log.files()}.issuperset(noted.files))

    def _restored_to(self, entry: LogEntry) -> _Standing | None:
        """Return the newest commit as of the version that the table was restored to; older log entries are gone.

        :raises RefusedError: when that is unknown
        """
        restored_log = self._log.at(entry.restored) if entry.restored is not None else None
        if restored_log is not None:
            if not restored_log.transaction(self._application):
                return _Standing(newest=None)
            if (noted := self._noted()) is not None and self._agrees(_Standing(newest=noted), restored_log):
                return None
        way_out = "Put the table's directory back from a backup, or use another table"
        if self._log.at(entry.version - 1) is not None:
            way_out = (
                f"Set it forward again: RESTORE TABLE … TO VERSION AS OF {entry.version - 1}; or restore it to a "
                "version whose log has a commit"
            )
        raise RefusedError(
            f"{entry.place} restores the table, and nobody knows which commit of {self._application} it had then. "
            f"{way_out}"
        )

    def _agrees(self, standing: _Standing, log: DeltaLog) -> bool:
        """Tell whether the transactions of a version name the same commit."""
        number = log.transaction(self._application)
        if standing.newest is None:
            return not number
        is_attempt = log.transaction(self._attempt) == _identity(standing.newest.attempt)
        return is_attempt and number == standing.newest.entry.commit

    def _standing_of(self, entry: LogEntry) -> _Standing | None:
        """Return the newest commit as an entry in the log names it, None when it names none."""
        metadata = entry.information.get(METADATA) or {}
        if not self.is_mine(metadata):
            return None
        if "entry" in metadata:
            files = [unquote(body["path"]) for body in entry.bodies("add")]
            return _Standing(newest=_committed({**metadata, "files": files}))
        if _STANDING in metadata:
            return _Standing(newest=_committed(metadata[_STANDING]) if metadata[_STANDING] else None)
        return None


def _described(committed: Committed) -> dict[str, Any]:
    """Return a commit as a version's metadata."""
    entry = json.loads(committed.entry.to_json())
    return {"attempt": committed.attempt, "entry": entry, "files": committed.files}


def _committed(described: Mapping[str, Any]) -> Committed:
    """Read the result of :func:`_described`."""
    entry, files = SinkEntry.from_json(json.dumps(described["entry"])), described["files"]
    return Committed(attempt=described["attempt"], entry=entry, files=None if files is None else tuple(files))


def _identity(attempt: str) -> int:
    """Return the number that stands for an attempt where only a number can."""
    return int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big") >> 1

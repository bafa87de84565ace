"""The sink's own ledger in a table: three transactions of Delta's log, and a note beside the log for each attempt.

A version of the log names, as transactions of applications, the number of the newest commit (``<pipeline>/<sink>``),
the highest run that has claimed (``…/run``), and the attempt that the newest commit was made by (``…/attempt``).
Transactions outlive checkpoints and the clean-up of old versions. The entry of the newest commit would not: it is in
the metadata of its version, which goes when the log is cleaned up. So it is in the attempt's note, too, which is
written before the version, and stays until the next commit.

A ``RESTORE`` takes rows out and leaves transactions. So it is looked for before each version of the sink, and from one
on the newest commit is that which the restored version had. The next claim then writes the transactions anew, and
``<pipeline>/<sink>/highest``, which no ``RESTORE`` and no claim sets back.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, LogEntry, standing_entries
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

#: In the metadata of the version of a conversion.
EARLIER_ROWS: Final = "earlier_rows"
#: In the metadata of a claim after a ``RESTORE``.
_LEFT: Final = "left"


@dataclass(frozen=True, kw_only=True)
class _Left:
    """What a ``RESTORE`` has left of the sink's commits: the newest one, None when it has left none."""

    newest: Committed | None


class SinkLedger:
    """What one sink of one pipeline has in a table's log and beside it.

    :param log: the table's log
    :param files: the table's directory
    """

    def __init__(self, log: DeltaLog, files: DeltaFiles, pipeline: str, sink: str) -> None:
        self._log: Final = log
        self._files: Final = files
        self._application: Final = f"{pipeline}/{sink}"
        self._described: Final = {"pipeline": pipeline, "sink": sink}
        self._left: _Left | None = None
        self._looked_through = -1  # the version up to which a RESTORE was looked for
        folder = f"exactlyonce/{pipeline}.{sink}"
        self.attempts: Final = Attempts(files, notes=f"_{folder}", data=folder)  # VACUUM leaves alone what begins so

    @property
    def claimed(self) -> int:
        """The highest run that has claimed, 0 when none has; as of the version last looked at."""
        return self._log.transaction(f"{self._application}/run") or 0

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none; as of the version last looked at."""
        if (left := self._left_by_restore()) is not None:
            return left.newest.entry.commit if left.newest else 0
        return self._log.transaction(self._application) or 0

    @property
    def highest(self) -> int:
        """The highest number that was ever committed; as of the version last looked at."""
        return max(self._log.transaction(name) or 0 for name in (self._application, f"{self._application}/highest"))

    def has(self, attempt: str) -> bool:
        """Tell whether the newest commit was made by an attempt; as of the version last looked at."""
        if (left := self._left_by_restore()) is not None:
            return left.newest is not None and left.newest.attempt == attempt
        return self._log.transaction(f"{self._application}/attempt") == _identity(attempt)

    def claim_of(self, run: int) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the transactions and the metadata of a claim's version."""
        claim: dict[str, Any] = {**self._described, "claim": run}
        if (left := self._left_by_restore()) is None:
            return {f"{self._application}/run": run}, claim
        newest = left.newest
        transactions = {
            self._application: newest.entry.commit if newest else 0,
            f"{self._application}/run": run,
            f"{self._application}/attempt": _identity(newest.attempt) if newest else 0,
            f"{self._application}/highest": self.highest,
        }
        return transactions, {**claim, _LEFT: None if newest is None else _described(newest)}

    def commit_of(
        self, note: AttemptNote, entry: SinkEntry, rows: int | None, earlier_rows: int | None
    ) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the transactions and the metadata of a commit's version.

        :param rows: how many more rows the table has then, None when nobody knows
        :param earlier_rows: those of earlier commits among them, which this one takes along; None when it takes none
        """
        transactions = {
            self._application: entry.commit,
            f"{self._application}/run": entry.run,
            f"{self._application}/attempt": _identity(note.attempt),
        }
        facts = {"attempt": note.attempt, "entry": json.loads(entry.to_json()), "rows": rows}
        along = {} if earlier_rows is None else {EARLIER_ROWS: earlier_rows}
        return transactions, {**self._described, **facts, **along}

    def compaction_of(self, run: int) -> dict[str, Any]:
        """Return the metadata of a compaction's version."""
        return {**self._described, "compaction": run}

    def is_mine(self, metadata: Mapping[str, Any]) -> bool:
        """Tell whether a version's metadata is of this sink."""
        return all(metadata.get(key) == value for key, value in self._described.items())

    def newest(self) -> Committed | None:
        """Return the newest commit, None when there is none; as of the version last looked at.

        :raises RefusedError: when it is neither in a note beside the log nor in the log
        """
        if (left := self._left_by_restore()) is not None:
            return left.newest
        if not self.commit:
            return None
        for note in self.attempts.notes():
            if note.entry is not None and self.has(note.attempt):
                return Committed(attempt=note.attempt, entry=note.entry, files=note.files)
        if (found := self._in_log()) is not None:
            return found[1]
        raise RefusedError(
            f"the note of commit {self.commit} of {self._application} is missing in {self.attempts.place}, and the log "
            "was cleaned up since: it was not copied with the table. Put it back from a backup"
        )

    def committed_in(self) -> int | None:
        """Return the version with the newest commit, None when it was cleaned up; as of the version last looked at."""
        return found[0] if (found := self._in_log()) is not None else None

    def keep_note(self) -> None:
        """Write the note of the newest commit if it is not there: its version may be cleaned up, as may a claim's."""
        newest = self.newest()
        if newest is not None and all(note.attempt != newest.attempt for note in self.attempts.notes()):
            entry = newest.entry
            self.attempts.write(
                AttemptNote(attempt=newest.attempt, commit=entry.commit, run=entry.run, entry=entry, files=newest.files)
            )

    def _in_log(self) -> tuple[int, Committed] | None:
        """Return the version that says what the newest commit is, and that commit, if it is still in the log."""
        for entry in standing_entries(self._files, self._log.version):
            if (told := self._told_by(entry)) is not None:
                return (entry.version, told.newest) if told.newest else None
        return None

    def _left_by_restore(self) -> _Left | None:
        """Return what a ``RESTORE`` has left, None when the transactions are right; as of the version last looked at.

        :raises RefusedError: when nobody knows
        """
        newest = self._log.version
        if newest != self._looked_through:
            is_restored = self._looked_through < 0 or self._left is not None or self._has_restore_since()
            self._left = self._look_back(newest) if is_restored and self.highest else None
            self._looked_through = newest
        return self._left

    def _has_restore_since(self) -> bool:
        for version in self._log.foreign_versions(self._looked_through):
            with suppress(FileNotFoundError):  # cleaned up, so it was there long ago
                if LogEntry.read(self._files, version).restored is not None:
                    return True
        return False

    def _look_back(self, newest: int) -> _Left | None:
        restored_by, oldest = None, newest
        for entry in standing_entries(self._files, newest):
            oldest = entry.version
            if entry.restored is not None:
                restored_by = restored_by or entry
            elif (told := self._told_by(entry)) is not None:
                return told if restored_by else None
        if restored_by is None:
            return None
        if oldest:
            raise RefusedError(
                f"{restored_by.place} restores the table to a version from where the log does not say any more which "
                f"commit of {self._application} is the newest. Set the table forward again: RESTORE TABLE … TO VERSION "
                f"AS OF {restored_by.version - 1}; or to another version whose log has a commit"
            )
        return _Left(newest=None)

    def _told_by(self, entry: LogEntry) -> _Left | None:
        """Return what an entry in the log says of the newest commit, None when it says nothing."""
        metadata = entry.information.get(METADATA) or {}
        if not self.is_mine(metadata):
            return None
        if "entry" in metadata:
            files = [unquote(body["path"]) for body in entry.bodies("add")]
            return _Left(newest=_committed({**metadata, "files": files}))
        if _LEFT in metadata:
            return _Left(newest=_committed(metadata[_LEFT]) if metadata[_LEFT] else None)
        return None


def _described(committed: Committed) -> dict[str, Any]:
    """Return what a version's metadata says of a commit."""
    entry = json.loads(committed.entry.to_json())
    return {"attempt": committed.attempt, "entry": entry, "files": committed.files}


def _committed(described: Mapping[str, Any]) -> Committed:
    """Read what :func:`_described` gave."""
    entry, files = SinkEntry.from_json(json.dumps(described["entry"])), described["files"]
    return Committed(attempt=described["attempt"], entry=entry, files=None if files is None else tuple(files))


def _identity(attempt: str) -> int:
    """Return the number that stands for an attempt where only a number can."""
    return int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big") >> 1

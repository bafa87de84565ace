"""The sink's own ledger in a table: three transactions of Delta's log, and a note beside the log for each attempt.

A version of the log names, as transactions of applications, the number of the newest commit (``<pipeline>/<sink>``),
the highest run that has claimed (``…/run``), and the attempt that the newest commit was made by (``…/attempt``).
Transactions outlive checkpoints and the clean-up of old versions. The entry of the newest commit would not: it is in
the metadata of its version, which goes when the log is cleaned up. So it is in the attempt's note, too, which is
written before the version, and stays until the next commit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import unquote

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, actions, versions
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

#: In the metadata of the version of a conversion.
EARLIER_ROWS: Final = "earlier_rows"


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
        folder = f"exactlyonce/{pipeline}.{sink}"
        self.attempts: Final = Attempts(files, notes=f"_{folder}", data=folder)  # VACUUM leaves alone what begins so

    @property
    def claimed(self) -> int:
        """The highest run that has claimed, 0 when none has; as of the version last looked at."""
        return self._log.transaction(f"{self._application}/run") or 0

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none; as of the version last looked at."""
        return self._log.transaction(self._application) or 0

    @property
    def highest(self) -> int:
        """The highest number that was ever committed, which no writer sets back."""
        return self.commit

    def has(self, attempt: str) -> bool:
        """Tell whether the newest commit was made by an attempt; as of the version last looked at."""
        return self._log.transaction(f"{self._application}/attempt") == _identity(attempt)

    def claim_of(self, run: int) -> tuple[dict[str, int], dict[str, Any]]:
        """Return the transactions and the metadata of a claim's version."""
        return {f"{self._application}/run": run}, {**self._described, "claim": run}

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
        if not self.commit:
            return None
        for note in self.attempts.notes():
            if note.entry is not None and self.has(note.attempt):
                return Committed(attempt=note.attempt, entry=note.entry, files=note.files)
        for _, committed in self._in_log():
            return committed
        raise RefusedError(
            f"the note of commit {self.commit} of {self._application} is missing in {self.attempts.place}, and the log "
            "was cleaned up since: it was not copied with the table. Put it back from a backup"
        )

    def committed_in(self) -> int | None:
        """Return the version with the newest commit, None when it was cleaned up; as of the version last looked at."""
        return next((version for version, _ in self._in_log()), None)

    def _in_log(self) -> Iterator[tuple[int, Committed]]:
        """Yield the version with the newest commit and what it says of it, if it is still there."""
        for version in reversed(versions(self._files)):
            committed, added = None, []
            for kind, body in actions(self._files, version):
                metadata = body.get(METADATA, {}) if kind == "commitInfo" else {}
                if metadata and self.is_mine(metadata) and self.has(metadata.get("attempt", "")):
                    entry = SinkEntry.from_json(json.dumps(metadata["entry"]))
                    committed = Committed(attempt=metadata["attempt"], entry=entry)
                if kind == "add":
                    added.append(unquote(body["path"]))
            if committed is not None:
                yield version, replace(committed, files=tuple(added))


def _identity(attempt: str) -> int:
    """Return the number that stands for an attempt where only a number can."""
    return int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big") >> 1

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
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Final
from urllib.parse import unquote

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import METADATA, DeltaLog, actions, versions
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

#: In the metadata of the version of a conversion.
EARLIER_ROWS: Final = "earlier_rows"
_SCHEMA: Final = 1
_SUFFIX: Final = ".json"


@dataclass(frozen=True, kw_only=True)
class AttemptNote:
    """What the sink knows of one attempt.

    :param attempt: its name
    :param commit: the commit that it would be
    :param run: the run that made it
    :param entry: what it was to commit; None as long as nobody has tried to
    :param files: what the commit adds to the table, relative to it
    """

    attempt: str
    commit: int
    run: int
    entry: SinkEntry | None = None
    files: tuple[str, ...] = ()

    def encoded(self) -> bytes:
        """Return its JSON."""
        entry = json.loads(self.entry.to_json()) if self.entry else None
        return json.dumps({"schema": _SCHEMA, **asdict(self), "entry": entry}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, content: bytes, what: str) -> AttemptNote:
        """Read what :meth:`encoded` gave.

        :param what: how people find it
        :raises RefusedError: when it can't be read
        """
        try:
            body = json.loads(content)
            codec.check_schema(body, what, (_SCHEMA,))
            entry = SinkEntry.from_json(json.dumps(body["entry"])) if body["entry"] else None
            return codec.load(cls, {**body, "entry": entry}, what)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{what} is no note of an attempt: {error}. Put it back from a backup") from error


class SinkLedger:
    """What one sink of one pipeline has in a table's log and beside it.

    :param log: the table's log
    :param files: the table's directory
    """

    def __init__(self, log: DeltaLog, files: TableFiles, pipeline: str, sink: str) -> None:
        self._log: Final = log
        self._files: Final = files
        self._application: Final = f"{pipeline}/{sink}"
        self._described: Final = {"pipeline": pipeline, "sink": sink}
        self._notes: Final = f"_exactlyonce/{pipeline}.{sink}"  # VACUUM leaves alone what begins so
        self.data: Final = f"exactlyonce/{pipeline}.{sink}"

    @property
    def claimed(self) -> int:
        """The highest run that has claimed, 0 when none has; as of the version last looked at."""
        return self._log.transaction(f"{self._application}/run") or 0

    @property
    def commit(self) -> int:
        """The number of the newest commit, 0 when there is none; as of the version last looked at."""
        return self._log.transaction(self._application) or 0

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

    def is_mine(self, metadata: Mapping[str, Any]) -> bool:
        """Tell whether a version's metadata is of this sink."""
        return all(metadata.get(key) == value for key, value in self._described.items())

    def newest(self) -> AttemptNote | None:
        """Return the note of the newest commit, None when there is no commit; as of the version last looked at.

        :raises RefusedError: when it is neither beside the log nor in it
        """
        if not self.commit:
            return None
        newest = next((note for note in self.notes() if self.has(note.attempt)), None)
        if newest is None:
            newest = next((note for _, note in self._noted_in_log()), None)
        if newest is None or newest.entry is None:
            raise RefusedError(
                f"the note of commit {self.commit} of {self._application} is missing in "
                f"{self._files.place(self._notes)}, and the log was cleaned up since: it was not copied with the "
                "table. Put it back from a backup"
            )
        return newest

    def committed_in(self) -> int | None:
        """Return the version with the newest commit, None when it was cleaned up; as of the version last looked at."""
        return next((version for version, _ in self._noted_in_log()), None)

    def notes(self) -> list[AttemptNote]:
        """Return the notes that are there.

        :raises RefusedError: when one can't be read
        """
        notes = []
        for name in self._files.names(self._notes):
            if name.endswith(_SUFFIX):
                place = f"{self._notes}/{name}"
                with suppress(FileNotFoundError):  # a run that lives has just removed it
                    notes.append(AttemptNote.decoded(self._files.read(place), self._files.place(place)))
        return notes

    def write(self, note: AttemptNote) -> None:
        """Write an attempt's note over the one that is there, durably."""
        self._files.replace(f"{self._notes}/{note.attempt}{_SUFFIX}", note.encoded())

    def remove_note(self, attempt: str) -> None:
        """Remove the note of an attempt, if it is there."""
        self._files.remove(f"{self._notes}/{attempt}{_SUFFIX}")

    def remove_attempt(self, attempt: str) -> None:
        """Remove all of an attempt that is not committed, and can't be any more."""
        self._files.remove(f"{self.data}/{attempt}")
        self.remove_note(attempt)

    def tidy(self, note: AttemptNote) -> None:
        """Remove what is in the directory of a committed attempt and not of the commit: of tasks that ran twice."""
        for name in self._files.below(f"{self.data}/{note.attempt}"):
            if name not in note.files:
                self._files.remove(name)

    def _noted_in_log(self) -> Iterator[tuple[int, AttemptNote]]:
        """Yield the version with the newest commit and what it says of it, if it is still there."""
        for version in reversed(versions(self._files)):
            entry, added = None, []
            attempt = ""
            for kind, body in actions(self._files, version):
                metadata = body.get(METADATA, {}) if kind == "commitInfo" else {}
                if metadata and self.is_mine(metadata) and self.has(metadata.get("attempt", "")):
                    entry, attempt = SinkEntry.from_json(json.dumps(metadata["entry"])), metadata["attempt"]
                if kind == "add":
                    added.append(unquote(body["path"]))
            if entry is not None:
                files = tuple(added)
                yield (
                    version,
                    AttemptNote(attempt=attempt, commit=entry.commit, run=entry.run, entry=entry, files=files),
                )


def _identity(attempt: str) -> int:
    """Return the number that stands for an attempt where only a number can."""
    return int.from_bytes(hashlib.sha256(attempt.encode()).digest()[:8], "big") >> 1

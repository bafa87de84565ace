"""The attempts of a sink beside a table: a note of each that may still matter, and the files of each."""

from __future__ import annotations

import json
from collections.abc import Collection
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry

_SCHEMA: Final = 1
_SUFFIX: Final = ".json"


@dataclass(frozen=True, kw_only=True)
class AttemptNote:
    """The sink's note of one attempt.

    :param attempt: its name
    :param commit: the commit that it would be; 0 for a compaction, which is none
    :param run: the run that made it
    :param table: the id of the table, where another may be in its place later
    :param entry: the entry to commit, for a compaction the newest commit before it; None before the first try
    :param files: the files that its commit adds to the table
    """

    attempt: str
    commit: int
    run: int
    table: str | None = None
    entry: SinkEntry | None = None
    files: tuple[str, ...] | None = None

    @property
    def was_tried(self) -> bool:
        """Whether a commit was tried: Iceberg's notes of 0.1.0 have the files then, and no entry."""
        return self.entry is not None or (self.table is not None and self.files is not None)

    def encoded(self) -> bytes:
        """Return its JSON."""
        entry = json.loads(self.entry.to_json()) if self.entry else None
        return json.dumps({"schema": _SCHEMA, **asdict(self), "entry": entry}, separators=(",", ":")).encode()

    @classmethod
    def decoded(cls, content: bytes, what: str) -> AttemptNote:
        """Read the result of :meth:`encoded`.

        :param what: names it in messages
        :raises RefusedError: when it can't be read
        """
        try:
            body = json.loads(content)
            codec.check_schema(body, what, (_SCHEMA,))
            entry = SinkEntry.from_json(json.dumps(body["entry"])) if body.get("entry") else None
            return codec.load(cls, {**body, "entry": entry}, what)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RefusedError(f"{what} is no note of an attempt: {error}. Put it back from a backup") from error


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A commit that the table has.

    :param attempt: which made it
    :param files: what it added to the table; None when that is not known
    """

    attempt: str
    entry: SinkEntry
    files: tuple[str, ...] | None = None


class Attempts:
    """The attempts of one sink of one pipeline.

    :param files: of the table
    :param notes: the folder of the notes
    :param data: the folder below which each attempt has its files
    :param can_be_torn: a store other than this machine's file systems may show a note before it is whole, and keep it
        so when the writer dies
    """

    def __init__(self, files: TableFiles, *, notes: str, data: str, can_be_torn: bool = False) -> None:
        self._files: Final = files
        self._notes: Final = notes
        self._can_be_torn: Final = can_be_torn
        self.data: Final = data

    @property
    def place(self) -> str:
        """The path or URL of the notes, for messages."""
        return self._files.place(self._notes)

    def notes(self) -> list[AttemptNote]:
        """Return the notes that are there.

        :raises RefusedError: when one can't be read
        """
        notes = []
        for name in self._files.below(self._notes):
            is_below = "/" in name.removeprefix(f"{self._notes}/")  # as the log of 0.1.0's file sink is
            if name.endswith(_SUFFIX) and not is_below:
                with suppress(FileNotFoundError):  # a run that lives has just removed it
                    notes.append(self._read(name))
        return notes

    def write(self, note: AttemptNote) -> None:
        """Write an attempt's note over the one that is there, durably."""
        self._files.replace(self._note(note.attempt), note.encoded())

    def forget(self, attempt: str) -> None:
        """Remove the note of an attempt, if it is there."""
        self._files.remove(self._note(attempt))

    def remove(self, attempt: str) -> None:
        """Remove all of an attempt that is not committed, and can't be any more."""
        self._files.remove_below(f"{self.data}/{attempt}")
        self.forget(attempt)

    def tidy(self, attempt: str, files: Collection[str] | None) -> None:
        """Remove an attempt's files that its commit lacks: of tasks that ran twice.

        :param files: the commit's; None when they are not known
        """
        if files is not None:
            for name in self._files.below(f"{self.data}/{attempt}"):
                if name not in files:
                    self._files.remove(name)

    def _read(self, name: str) -> AttemptNote:
        content = self._files.read(name)
        if self._can_be_torn and self._files.local(name) is None and not _is_whole(content):
            # Nobody knows whether it was tried, nor in which table: its files stay.
            attempt = name.removeprefix(f"{self._notes}/").removesuffix(_SUFFIX)
            return AttemptNote(attempt=attempt, commit=0, run=0, table="", files=())
        return AttemptNote.decoded(content, self._files.place(name))

    def _note(self, attempt: str) -> str:
        return f"{self._notes}/{attempt}{_SUFFIX}"


def _is_whole(content: bytes) -> bool:
    """Tell whether a note was written to its end: the beginning of a JSON object is no JSON."""
    try:
        json.loads(content)
    except ValueError:
        return False
    return True

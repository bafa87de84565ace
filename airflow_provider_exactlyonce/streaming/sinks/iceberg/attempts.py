"""The attempts of a sink in a table's location: a note of each that is not settled, and the files of each."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce import codec
from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
    from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import TableFiles

_SCHEMA: Final = 1
_SUFFIX: Final = ".json"
_FOLDER: Final = "exactlyonce"


@dataclass(frozen=True, kw_only=True)
class AttemptNote:
    """What the sink knows of one attempt.

    :param attempt: its name
    :param commit: the commit that it would be
    :param run: the run that made it
    :param table: the id of the table; another may be at its location later
    :param files: what its commit adds to the table; None as long as nobody has tried to commit it
    """

    attempt: str
    commit: int
    run: int
    table: str
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


class Attempts:
    """The attempts of one sink of one pipeline, in the location of a table as it was when it was last looked at."""

    def __init__(self, table: IcebergTable, pipeline: str, sink: str) -> None:
        self._table: Final = table
        self._folder: Final = f"{pipeline}/{sink}"  # some stores take no dot in the name of a folder

    @property
    def data(self) -> str:
        """The location below which each has its files."""
        return f"{self._table.data_location}/{_FOLDER}/{self._folder}"

    def notes(self) -> list[AttemptNote]:
        """Return the notes that are there.

        :raises RefusedError: when one can't be read
        """
        notes = []
        for name in self._files.below(self._notes):
            if name.endswith(_SUFFIX):
                with suppress(FileNotFoundError):  # a run that lives has just removed it
                    notes.append(AttemptNote.decoded(self._files.read(name), name))
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

    def tidy(self, note: AttemptNote) -> None:
        """Remove what is beside the files of a commit, of tasks that ran twice, and then its note."""
        if note.files is not None:
            for name in self._files.below(f"{self.data}/{note.attempt}"):
                if name not in note.files:
                    self._files.remove(name)
        self.forget(note.attempt)

    @property
    def _files(self) -> TableFiles:
        return self._table.files

    @property
    def _notes(self) -> str:
        # Iceberg's removal of orphan files leaves alone what begins with an underscore.
        return f"{self._table.metadata.location}/_{_FOLDER}/{self._folder}"

    def _note(self, attempt: str) -> str:
        return f"{self._notes}/{attempt}{_SUFFIX}"

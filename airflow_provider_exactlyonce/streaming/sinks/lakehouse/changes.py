"""What a commit changes of a table: worked out of the staged rows and the version that it comes after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from typing_extensions import override

#: A file of a table, as its library has it.
File = TypeVar("File")


@dataclass(frozen=True, kw_only=True)
class Change(Generic[File]):
    """What one version adds to a table, and removes from it.

    :param added: files, as the tasks describe theirs
    :param removed: files of the version before
    :param rows: how many more rows the table has then, or less; None when it is not known how many it had
    """

    added: Sequence[Mapping[str, Any]]
    removed: Sequence[File] = ()
    rows: int | None


class StagedRows(Protocol[File]):
    """The rows of an attempt, durable and not committed."""

    def change(self) -> Change[File]:
        """Return what they change of the version last looked at; asked again when others were faster.

        :raises RefusedError: when that version has what can't be changed, naming it
        """


class AppendedRows(StagedRows[Any]):
    """Rows that come beside those that are there.

    :param files: theirs
    """

    def __init__(self, files: Sequence[Mapping[str, Any]]) -> None:
        self._files: Final = files

    @override
    def change(self) -> Change[Any]:
        return Change(added=self._files, rows=sum(file["rows"] for file in self._files))

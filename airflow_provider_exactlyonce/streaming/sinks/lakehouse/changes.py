"""A commit's changes of a table: computed from the staged rows and the version before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from typing_extensions import override

#: A file of a table, as its library has it.
File = TypeVar("File")


@dataclass(frozen=True, kw_only=True)
class Change(Generic[File]):
    """The files that one version adds to a table and removes from it.

    :param added: files, as the tasks describe theirs
    :param removed: files of the version before
    :param rows: the growth of the table's rows, perhaps negative; None when their number before is unknown
    """

    added: Sequence[Mapping[str, Any]]
    removed: Sequence[File] = ()
    rows: int | None


class StagedRows(Protocol[File]):
    """The rows of an attempt, durable and not committed."""

    def change(self) -> Change[File]:
        """Return their change of the version last read; called again when others were faster.

        :raises RefusedError: when that version has a part that can't be changed, naming it
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

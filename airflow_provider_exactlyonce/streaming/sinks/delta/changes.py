"""What a commit changes of a table: worked out of the staged rows and the version that it comes after."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from deltalake.transaction import AddAction, RemoveAction
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog, LoggedFile, is_elsewhere


@dataclass(frozen=True, kw_only=True)
class Change:
    """What one version adds to a table, and takes out of it.

    :param added: files, as the tasks describe theirs
    :param removed: files of the version before
    :param rows: how many more rows the table has then, or less; None when the log does not say how many it had
    :param changes_rows: whether who reads the versions one by one gets what is added
    """

    added: Sequence[Mapping[str, Any]]
    removed: Sequence[LoggedFile] = ()
    rows: int | None
    changes_rows: bool = True

    def actions(self) -> list[AddAction | RemoveAction]:
        """Return it in the log's words."""
        now = int(time.time() * 1000)
        return [
            *(
                AddAction(
                    path=file["path"],
                    size=file["size"],
                    partition_values=file["partition"],
                    modification_time=now,
                    data_change=self.changes_rows,
                    stats=file["statistics"],
                )
                for file in self.added
            ),
            *(
                RemoveAction(file.path, self.changes_rows, now, file.size, dict(file.partition))
                for file in self.removed
            ),
        ]


class StagedRows(Protocol):
    """The rows of an attempt, durable and not committed."""

    def change(self, log: DeltaLog) -> Change:
        """Return what they change of the version last looked at; asked again when others were faster."""


class AppendedRows(StagedRows):
    """Rows that come beside those that are there.

    :param files: theirs
    """

    def __init__(self, files: Sequence[Mapping[str, Any]]) -> None:
        self._files: Final = files

    @override
    def change(self, log: DeltaLog) -> Change:
        return Change(added=self._files, rows=sum(file["rows"] for file in self._files))


class RowsOfPartitions(StagedRows):
    """Rows that come in the place of all that are in their partitions.

    :param files: theirs
    :param where: the table, for messages
    """

    def __init__(self, files: Sequence[Mapping[str, Any]], where: str) -> None:
        self._files: Final = files
        self._where: Final = where

    @override
    def change(self, log: DeltaLog) -> Change:
        replaced = {frozenset(file["partition"].items()) for file in self._files}
        removed = [file for file in log.files() if frozenset(file.partition.items()) in replaced]
        check_here(removed, self._where)
        rows = sum(file["rows"] for file in self._files)
        before = [file.rows for file in removed]
        more = None if None in before else rows - sum(filter(None, before))
        return Change(added=self._files, removed=removed, rows=more)


def check_here(files: Sequence[LoggedFile], where: str) -> None:
    """Check that files are in the table's own directory.

    :raises RefusedError: naming one that is not
    """
    for file in files:
        if is_elsewhere(file.path):
            raise RefusedError(
                f"{where} is a clone, and its file {file.path} is another table's, which this sink does not take out: "
                "write to a table of its own"
            )

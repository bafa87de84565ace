"""A commit's changes of a Delta table: as actions of its log, and by whole partitions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from deltalake.transaction import AddAction, RemoveAction
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog, LoggedFile, escaped
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import Change, StagedRows
from airflow_provider_exactlyonce.tables.delta_log import is_elsewhere


def actions(
    added: Sequence[Mapping[str, Any]], removed: Sequence[LoggedFile], *, changes_rows: bool = True
) -> list[AddAction | RemoveAction]:
    """Return the log's actions for the files that a version adds and removes.

    :param added: files, as the tasks describe theirs
    :param changes_rows: whether readers of single versions get the added rows
    """
    now = int(time.time() * 1000)
    return [
        *(
            AddAction(
                path=file["path"],
                size=file["size"],
                partition_values=file["partition"],
                modification_time=now,
                data_change=changes_rows,
                stats=file["statistics"],
            )
            for file in added
        ),
        *(RemoveAction(file.path, changes_rows, now, file.size, dict(file.partition)) for file in removed),
    ]


class RowsOfPartitions(StagedRows[LoggedFile]):
    """Rows that replace all that are in their partitions.

    :param files: theirs
    :param where: the table, for messages
    """

    def __init__(self, log: DeltaLog, files: Sequence[Mapping[str, Any]], where: str) -> None:
        self._log: Final = log
        self._files: Final = files
        self._where: Final = where

    @override
    def change(self) -> Change[LoggedFile]:
        replaced = {frozenset(file["partition"].items()) for file in self._files}
        removed = [file for file in self._log.files() if frozenset(file.partition.items()) in replaced]
        for file in removed:
            check_removable(file, self._where)
        rows = sum(file["rows"] for file in self._files)
        removed_rows = [file.rows for file in removed]
        growth = None if None in removed_rows else rows - sum(filter(None, removed_rows))
        return Change(added=self._files, removed=removed, rows=growth)


def check_here(file: LoggedFile, where: str) -> None:
    """Check that a file is in the table's own directory.

    :raises RefusedError: when it is not
    """
    if is_elsewhere(file.path):
        raise RefusedError(
            f"{where} is a clone, and its file {file.path} is another table's, which this sink does not remove: "
            "write to a table of its own"
        )


def check_removable(file: LoggedFile, where: str) -> None:
    """Check that a version can remove a file.

    A reader of the log knows a file by the text of its path. Spark leaves letters such as ü as they are, where delta-rs
    escapes them: the file would stay in the table, and its rows be there beside those that come in their place.

    :raises RefusedError: when it can't
    """
    check_here(file, where)
    if file.logged != escaped(file.path):
        raise RefusedError(
            f"{where} has the file {file.logged}, which delta-rs would remove by another name, "
            f"{escaped(file.path)}, so that it stays in the table: have Spark rewrite it with "
            "delta.randomizeFilePrefixes=true, or use another table"
        )

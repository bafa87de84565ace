"""The driver's half of an upsert: files with rows of the batch's keys are written anew without them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import Change, File, StagedRows
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import KeyColumns, among, shown


class UpsertTarget(ABC, Generic[File]):
    """The table that the rows of an attempt go to. Derive from it for a kind of table.

    :param files: of the table
    :param key: by what rows replace each other
    :param columns: of the rows
    :param sink: the sink's class, for messages
    :param where: the table, for messages
    """

    def __init__(self, *, files: TableFiles, key: KeyColumns, columns: pa.Schema, sink: str, where: str) -> None:
        self.key: Final = key
        self.sink: Final = sink
        self.where: Final = where
        self._files: Final = files
        self._columns: Final = columns

    @property
    def compared(self) -> pa.Schema:
        """The columns that tell which row of a key is the last."""
        return pa.schema([self._columns.field(name) for name in self.key.compared])

    def read_deletions(self, path: str) -> pa.Table:
        """Read the keys to delete that a task has written."""
        with self._files.open(path) as opened:
            return pq.read_table(opened).cast(self.compared)

    @abstractmethod
    def written(self, file: Mapping[str, Any]) -> File:
        """Return a file that a task has written as one of the table."""

    @abstractmethod
    def current_files(self) -> Iterable[File]:
        """Return the files of the version last read.

        :raises RefusedError: when it has what can't be written anew as it is, naming it
        """

    @abstractmethod
    def name(self, file: File) -> str:
        """Return a file's unique name, which never changes."""

    def check_removable(self, file: File) -> None:
        """Check that a version can take a file out.

        :raises RefusedError: naming why it can't
        """

    @abstractmethod
    def filter(self, keys: pa.Table) -> Callable[[File], bool]:
        """Return a predicate: whether a file may have rows with some keys, by the table's entry of the file."""

    @abstractmethod
    def read(self, file: File, names: Sequence[str]) -> pa.Table:
        """Read some columns of a file, in the rows' types; null where it lacks one."""

    @abstractmethod
    def copy(self, file: File, kept: pa.Array) -> list[Mapping[str, Any]]:
        """Rewrite some rows of a file, at least one; returns the new files' descriptions, as a task's."""


class UpsertedRows(StagedRows[File]):
    """Rows that replace those with the same keys, and keys of rows to delete.

    :param written: the tasks' descriptions
    :param commit: the number of the commit, for messages
    :raises RecordRefusedError: when the last row of a key is unknown
    """

    def __init__(self, target: UpsertTarget[File], written: Sequence[Mapping[str, Any]], commit: int) -> None:
        self._target: Final = target
        files = [file for task in written for file in task["files"]]
        parts = [target.read(target.written(file), target.key.compared) for file in files]
        parts += [target.read_deletions(file["path"]) for task in written for file in task["deletions"]]
        rows = pa.concat_tables([target.compared.empty_table(), *parts])
        self._keys: Final = rows.select(target.key.key)
        self._may_have_keys: Final = target.filter(self._keys)
        self._files: Final = list(self._without_older(files, rows, commit))
        self._copies: Final[dict[str, tuple[int, Sequence[Mapping[str, Any]]]]] = {}

    @override
    def change(self) -> Change[File]:
        added, removed = list(self._files), []
        rows = sum(file["rows"] for file in added)
        for file in self._target.current_files():
            replaced, copy = self._copy(file) if self._keys.num_rows and self._may_have_keys(file) else (0, ())
            if replaced:
                self._target.check_removable(file)
                removed.append(file)
                added += copy
                rows -= replaced
        return Change(added=added, removed=removed, rows=rows)

    def _copy(self, file: File) -> tuple[int, Sequence[Mapping[str, Any]]]:
        """Write a file anew without the rows that are replaced, and count those; once, as no file ever changes."""
        target, name = self._target, self._target.name(file)
        if name not in self._copies:
            replaced = among(target.read(file, target.key.key), self._keys)
            has_some = 0 < replaced.true_count < len(replaced)
            self._copies[name] = replaced.true_count, target.copy(file, pc.invert(replaced)) if has_some else ()
        return self._copies[name]

    def _without_older(
        self, files: Sequence[Mapping[str, Any]], rows: pa.Table, commit: int
    ) -> Iterator[Mapping[str, Any]]:
        """Yield the files of the tasks without the rows that are not the last of their key in the batch."""
        target = self._target
        last, ambiguous = target.key.last_of_each(rows, None)
        if ambiguous is not None:
            order = target.key.order
            raise RecordRefusedError(
                f"commit {commit} has several rows for {shown(ambiguous)} of {target.where}"
                + (
                    ", which different tasks have written: name the column that tells which is the last, "
                    f"{target.sink}(order=…)"
                    if order is None
                    else f" with its greatest {order}: let that column tell them apart"
                )
            )
        first_row = 0
        for file in files:
            kept = last.slice(first_row, file["rows"])
            first_row += file["rows"]
            if kept.true_count == file["rows"]:
                yield file
            elif kept.true_count:
                yield from target.copy(target.written(file), kept)

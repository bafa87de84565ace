"""The driver's half of an upsert: files with rows of the batch's keys are written anew without them."""

from __future__ import annotations

import uuid
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.changes import Change, StagedRows, check_here
from airflow_provider_exactlyonce.streaming.sinks.delta.keys import KeyColumns, among, shown
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog, LoggedFile
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.delta.table_rows import opened_parquet, with_columns
from airflow_provider_exactlyonce.streaming.sinks.delta.writer import DeltaFile

_ROWS: Final = 2**16  # that are copied at a time


@dataclass(frozen=True, kw_only=True)
class UpsertTarget:
    """Where the rows of an attempt go.

    :param files: the table's directory
    :param folder: the attempt's, relative to the table
    :param columns: of the rows
    :param where: the table, for messages
    """

    files: DeltaFiles
    folder: str
    columns: pa.Schema
    key: KeyColumns
    partition_by: tuple[str, ...]
    compression: str
    where: str

    @property
    def compared(self) -> pa.Schema:
        """The columns that tell which row of a key is the last."""
        return pa.schema([self.columns.field(name) for name in self.key.compared])

    @property
    def bounded(self) -> list[str]:
        """Columns of the key whose bounds in the log are exact enough to leave files out by them."""
        return [
            name
            for name in self.key.key
            if name not in self.partition_by and _has_exact_bounds(self.columns.field(name).type)
        ]

    def read(self, path: str, partition: Mapping[str, str | None], names: Sequence[str]) -> pa.Table:
        """Read some columns of a file, those of the table's partition included; null where it lacks one."""
        with self.files.open(path) as opened:
            parquet = opened_parquet(opened)
            there = [name for name in names if name in parquet.schema_arrow.names]
            table = parquet.read(columns=there) if there else None
            count = parquet.metadata.num_rows
        return with_columns(table, pa.schema([self.columns.field(name) for name in names]), partition, count)

    def copy(self, path: str, partition: Mapping[str, str | None], kept: pa.Array) -> list[dict[str, Any]]:
        """Write a file of some rows of another one, if there are any; returns what the log says of it."""
        if not kept.true_count:
            return []
        name, begun = f"{self.folder}/{uuid.uuid4().hex}.parquet", 0
        with self.files.open(path) as opened:
            parquet = opened_parquet(opened)
            schema = parquet.schema_arrow.remove_metadata()
            copy = DeltaFile(self.files, name, schema, self.compression, partition)
            try:
                for rows in parquet.iter_batches(batch_size=_ROWS):
                    copy.write(rows.replace_schema_metadata(None).filter(kept.slice(begun, rows.num_rows)))
                    begun += rows.num_rows
                return [copy.finish()]
            except BaseException:
                copy.abandon()
                raise


class UpsertedRows(StagedRows):
    """Rows that come in the place of those with their keys, and keys whose rows go.

    :param written: what the tasks have told
    :param commit: the number of the commit, for messages
    :raises RecordRefusedError: when nobody knows which row of a key is the last
    """

    def __init__(self, target: UpsertTarget, written: Sequence[Mapping[str, Any]], commit: int) -> None:
        self._target: Final = target
        self._commit: Final = commit
        files = [file for task in written for file in task["files"]]
        parts = [target.read(file["path"], file["partition"], target.key.compared) for file in files]
        parts += [target.read(file["path"], {}, target.key.compared) for task in written for file in task["deletions"]]
        rows = pa.concat_tables([target.compared.empty_table(), *parts])
        self._keys: Final = rows.select(target.key.key)
        self._files: Final = list(self._without_older(files, rows))
        self._copies: Final[dict[str, tuple[int, list[dict[str, Any]]]]] = {}

    @override
    def change(self, log: DeltaLog) -> Change:
        added, removed = list(self._files), []
        rows = sum(file["rows"] for file in added)
        for file in self._candidates(log):
            replaced, copy = self._copy(file)
            if replaced:
                removed.append(file)
                added += copy
                rows -= replaced
        return Change(added=added, removed=removed, rows=rows)

    def _copy(self, file: LoggedFile) -> tuple[int, list[dict[str, Any]]]:
        """Write a file anew without the rows that are replaced, and count those; once, as no file ever changes."""
        if file.path not in self._copies:
            check_here([file], self._target.where)
            replaced = among(self._target.read(file.path, file.partition, self._target.key.key), self._keys)
            copy = self._target.copy(file.path, file.partition, pc.invert(replaced)) if replaced.true_count else []
            self._copies[file.path] = replaced.true_count, copy
        return self._copies[file.path]

    def _without_older(self, files: Sequence[Mapping[str, Any]], rows: pa.Table) -> Iterator[Mapping[str, Any]]:
        """Yield the files of the tasks without the rows that are not the last of their key in the batch."""
        last, ambiguous = self._target.key.last_of_each(rows, None)
        if ambiguous is not None:
            order = self._target.key.order
            raise RecordRefusedError(
                f"commit {self._commit} has several rows for {shown(ambiguous)} of {self._target.where}"
                + (
                    ", which different tasks have written: name the column that tells which is the last, "
                    "DeltaSink(order=…)"
                    if order is None
                    else f" with its greatest {order}: let that column tell them apart"
                )
            )
        begun = 0
        for file in files:
            kept = last.slice(begun, file["rows"])
            begun += file["rows"]
            if kept.true_count == file["rows"]:
                yield file
            else:
                yield from self._target.copy(file["path"], file["partition"], kept)

    def _candidates(self, log: DeltaLog) -> Iterator[LoggedFile]:
        """Yield the table's files that may have one of the keys."""
        if not self._keys.num_rows:
            return
        target = self._target
        for file in log.files(bounds_of=target.bounded):
            in_partition = all(file.partition[name] in texts for name, texts in self._partitions.items())
            if in_partition and all(self._may_be_within(name, *bounds) for name, bounds in file.bounds.items()):
                yield file

    def _may_be_within(self, name: str, least: Any, greatest: Any) -> bool:
        values = self._ordered[name]
        place = bisect_left(values, least)
        return place < len(values) and values[place] <= greatest

    @cached_property
    def _partitions(self) -> dict[str, set[str]]:
        """Of the columns of the key that are the table's partition's: the values."""
        names = [name for name in self._target.key.key if name in self._target.partition_by]
        return {name: set(pc.cast(self._keys[name], pa.string()).to_pylist()) for name in names}

    @cached_property
    def _ordered(self) -> dict[str, list[Any]]:
        """Of the columns of the key that have bounds: the values, in order."""
        return {name: sorted(pc.unique(self._keys[name]).to_pylist()) for name in self._target.bounded}


def _has_exact_bounds(kind: pa.DataType) -> bool:
    """Tell whether all writers give bounds that hold: those of times are cut by some, and those of decimals rounded."""
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_date(kind))

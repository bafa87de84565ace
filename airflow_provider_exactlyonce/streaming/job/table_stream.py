"""A table as a stream of Spark's: a Python data source with positions in the table's versions as offsets.

Spark asks the reader in a process of its own for a batch's end and files; tasks read them. The offset has the form of
Spark's Kafka source: a topic, the table, with one partition.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxFiles, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, TableChangedError
from airflow_provider_exactlyonce.streaming.job import table_rows
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark
from airflow_provider_exactlyonce.tables.offsets import open_log
from airflow_provider_exactlyonce.tables.positions import PARTITION, Position
from airflow_provider_exactlyonce.tables.retention import dangers
from airflow_provider_exactlyonce.tables.table_log import (
    TableFile,
    TableLog,
    TableStore,
    TableVersion,
    batch_end,
    check_appends,
    files_between,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")

_LOGGER: Final = logging.getLogger(__name__)
#: A query without new data asks without a pause, and a look costs two requests to a store.
_LOOK_SECONDS: Final = 1.0
#: Of the files of one task; opening one costs as much as some of it.
_TASK_BYTES: Final = 64 * 2**20
_OPENING_BYTES: Final = 4 * 2**20


@dataclass(frozen=True, kw_only=True)
class TableReading:
    """How a table is read.

    :param name: the table's, as ledgers have it
    :param columns: that are read
    :param start: where a new query begins
    :param files: at most so many a batch, None for all
    :param skips: versions that take rows out are passed over
    :param options: of the table's store or catalog
    :param complete: the newest version when the start found all columns, None when it has not looked
    """

    name: str
    columns: StructType
    start: Position
    files: int | None
    skips: bool
    options: Mapping[str, str] = field(repr=False)
    complete: int | None = None


class TablePartition(InputPartition):
    """The input of one task.

    :param parts: of files
    :param store: opens them
    :param field_ids: the ids of columns and their parts where files have them
    """

    def __init__(self, parts: Sequence[table_rows.FilePart], store: TableStore, field_ids: Mapping[str, int]) -> None:
        super().__init__(None)
        self.parts: Final = tuple(parts)
        self.store: Final = store
        self.field_ids: Final = dict(field_ids)


def stream(spark: SparkSession, reading: TableReading) -> DataFrame:
    """Return a table's stream.

    :raises RefusedError: when the table is not there, or its columns are not those that are read
    """
    columns = reading.columns
    log = open_log(reading.name, reading.options)
    if log.identity() is None:
        raise RefusedError(f"table {reading.name} does not exist: create it first, or name it as it is")
    reading = replace(reading, complete=log.end().version - 1)  # before the columns are read: none may be lost since
    if (mismatch := table_rows.mismatch(columns, log.columns(), needs_all=True)) is not None:
        raise RefusedError(f"the source's schema does not fit table {reading.name}: {mismatch}. Declare what it has")
    for danger in dangers(log.properties, "source"):
        _LOGGER.warning("table %s has %s", reading.name, danger)
    return stand_in(spark, reading)


def stand_in(spark: SparkSession, reading: TableReading) -> DataFrame:
    """Return the same stream without reading the table, which it opens when a query asks it for a batch."""
    columns = reading.columns
    format_name = f"exactlyonce_table_{hashlib.sha256(reading.name.encode()).hexdigest()[:12]}"

    class TableDataSource(DataSource):  # travels to Spark's processes with its closure
        @classmethod
        @override
        def name(cls) -> str:
            return format_name

        @override
        def schema(self) -> StructType:
            return columns

        @override
        def streamReader(self, schema: StructType) -> DataSourceStreamReader:
            return TableStreamReader(reading)

    spark.dataSource.register(TableDataSource)
    return spark.readStream.format(format_name).load()


class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans a batch's files, in Spark's process for that, and reads them, in tasks."""

    def __init__(self, reading: TableReading) -> None:
        self._reading: Final = reading
        self._opened: TableLog | None = None
        self._available_now_end: Position | None = None
        self._quiet: tuple[Position, float] | None = None
        # Of versions that say which columns the table has.
        self._names: Final[dict[int, Collection[str]]] = {}
        if reading.complete is not None:
            self._names[reading.complete] = reading.columns.names

    @override
    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._reading.start)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._reading.files is None else ReadMaxFiles(self._reading.files)

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._available_now_end = _marked(self._log.end)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = self._position(start)
        if self._quiet is not None and self._quiet[0] == position and time.monotonic() < self._quiet[1]:
            return start
        files = limit.max_files if isinstance(limit, ReadMaxFiles) else None
        end = _marked(partial(self._end, position, files))
        if end <= position:
            self._quiet = position, time.monotonic() + _LOOK_SECONDS
            return start
        return self._offset(end)

    def _end(self, position: Position, files: int | None) -> Position:
        end = self._available_now_end
        versions = (
            version for version in self._log.versions(position) if end is None or Position(version.version) < end
        )
        return batch_end(versions, position, files, self._check)

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = self._position(start), self._position(end)
        if first == last:
            return []
        return _marked(partial(self._planned, first, last))

    def _planned(self, first: Position, last: Position) -> list[InputPartition]:
        log = self._log
        store, field_ids = log.store, log.field_ids()
        files = files_between(map(self._checked, log.versions(first)), first, last)
        return [TablePartition(parts, store, field_ids) for parts in tasks(files)]

    def _check(self, version: TableVersion) -> None:
        name = self._reading.name
        if not self._reading.skips:
            check_appends(name, version)
        if version.columns is not None and not version.field_ids:
            self._check_kept(version.version, version.columns)
        if version.rewrite is not None:
            return
        if version.columns is not None:
            mismatch = table_rows.mismatch(
                self._reading.columns, version.columns, needs_all=False, may_widen=bool(version.field_ids)
            )
            if mismatch is not None:
                raise TableChangedError(f"version {version.version} of table {name} changes its columns: {mismatch}")
        self._check_names(version)

    def _check_kept(self, version: int, columns: str) -> None:
        """Check that a version keeps the columns that are read, also one that is passed over; it may add them.

        Where files have no ids of columns, later rows would have nulls in place of the lost values.
        """
        by_version, names = self._names, {column["name"] for column in json.loads(columns)["fields"]}
        previous = (
            by_version[max(earlier)] if (earlier := [number for number in by_version if number < version]) else ()
        )
        by_version[version] = names
        for column in self._reading.columns.names:
            if column in previous and column not in names:
                raise TableChangedError(
                    f"version {version} of table {self._reading.name} renames or drops its column {column!r}, which is "
                    f"read; it has {', '.join(sorted(names))}. Declare the columns as the table has them"
                )

    def _check_names(self, version: TableVersion) -> None:
        """Check that each column is the one that had its name when the version was written.

        Where files have ids of columns, a name may pass to another column, or to none, without a version recording it.
        """
        field_ids = self._log.field_ids()
        for column in self._reading.columns.names if field_ids else ():
            field_id = field_ids.get(column)
            if field_id is None or version.field_ids.get(column, field_id) != field_id:
                raise TableChangedError(
                    f"version {version.version} of table {self._reading.name} can't be read: its column {column!r} was "
                    "renamed or dropped, or another one has the name now. Declare the columns as the table has them"
                )

    def _checked(self, version: TableVersion) -> TableVersion:
        self._check(version)
        return version

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TablePartition)
        name, columns = self._reading.name, self._reading.columns
        try:
            for part in partition.parts:
                yield from table_rows.rows(name, part, partition.store, columns, partition.field_ids)
        except ExactlyOnceError as error:
            raise RuntimeError(mark(type(error), str(error))) from error

    @property
    def _log(self) -> TableLog:
        if self._opened is None:
            self._opened = open_log(self._reading.name, self._reading.options)
        return self._opened

    def _offset(self, position: Position) -> dict[str, Any]:
        return {self._reading.name: {str(PARTITION): position.offset}}

    def _position(self, offset: Mapping[str, Any]) -> Position:
        return Position.of(int(offset[self._reading.name][str(PARTITION)]))


def tasks(files: Iterator[TableFile]) -> Iterator[list[table_rows.FilePart]]:
    """Yield each task's input: some small files together, or a part of a large one."""
    waiting: list[table_rows.FilePart] = []
    size = 0
    for file in files:
        parts = max(1, round(file.bytes / _TASK_BYTES))
        if parts > 1:
            yield from ([table_rows.FilePart(file, part, parts)] for part in range(parts))
            continue
        if waiting and size + file.bytes + _OPENING_BYTES > _TASK_BYTES:
            yield waiting
            waiting, size = [], 0
        waiting.append(table_rows.FilePart(file, 0, 1))
        size += file.bytes + _OPENING_BYTES
    if waiting:
        yield waiting


def _marked(ask: Callable[[], T]) -> T:
    """Return an answer; of an error Spark passes on nothing but the text."""
    try:
        return ask()
    except ExactlyOnceError as error:
        raise RuntimeError(mark(type(error), str(error))) from error

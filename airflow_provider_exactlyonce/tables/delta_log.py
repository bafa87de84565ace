"""The versions of a Delta table, from the entries of its log.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, DataLostError, RefusedError
from airflow_provider_exactlyonce.tables.positions import DELTA, SNAPSHOT, Position, name_of
from airflow_provider_exactlyonce.tables.table_log import (
    KnownVersions,
    TableFile,
    TableLog,
    TableStore,
    TableVersion,
    check_size,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

T = TypeVar("T")

#: The folder of the log in the table's directory.
LOG: Final = "_delta_log"
_MAPPING: Final = "delta.columnMapping.mode"
#: What a reader of a version's own files need not know of. Rows that a deletion vector takes out are a rewrite.
_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
)
#: What a version may say of itself that changes no row.
_SILENT: Final = frozenset({"commitInfo", "txn", "domainMetadata", "cdc"})
#: Of an absolute path, or of a URL: Spark writes ``file:/a`` and ``dbfs:/a`` with one slash.
_ELSEWHERE: Final = re.compile(r"([A-Za-z][\w+.-]*:)?/")


class DeltaStore(TableStore):
    """The directory of a Delta table, through delta-rs' own client.

    :param place: an absolute path, or a URL of delta-rs
    :param options: what delta-rs needs to know of the store
    """

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        self._place: Final = place
        self._options: Final = dict(options)
        self._opened: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    @property
    def _system(self) -> Any:
        if self._opened is None:
            from deltalake.exceptions import TableNotFoundError
            from deltalake.fs import DeltaStorageHandler
            from pyarrow.fs import PyFileSystem

            try:
                self._opened = PyFileSystem(DeltaStorageHandler(self._place, self._options))
            except TableNotFoundError as error:  # its directory is not there
                raise FileNotFoundError(str(error)) from error
        return self._opened

    @override
    def open(self, path: str) -> Any:
        return self._system.open_input_file(path)

    @override
    def is_there(self, path: str) -> bool:
        from pyarrow.fs import FileType

        try:
            return bool(self._system.get_file_info(path).type != FileType.NotFound)
        except FileNotFoundError:
            return False

    def names(self, folder: str) -> list[str]:
        """Return the names of files in a folder."""
        from pyarrow.fs import FileSelector

        return [file.base_name for file in self._system.get_file_info(FileSelector(folder))]


class DeltaTableLog(TableLog):
    """The log of one table.

    :param place: an absolute path, or a URL of delta-rs
    :param options: what delta-rs needs to know of the store
    """

    def __init__(self, place: str, options: Mapping[str, str]) -> None:
        self.name = name_of(DELTA, place)
        self._place: Final = place
        self._options: Final = dict(options)
        self._store: Final = DeltaStore(place, options)
        self._known: Final = KnownVersions()

    @property
    @override
    def store(self) -> TableStore:
        return self._store

    @property
    @override
    def location(self) -> str:
        return self._place

    @override
    def identity(self) -> str | None:
        table = self._open()
        return None if table is None else str(table.metadata().id)

    @override
    def columns(self) -> str:
        return str(self._opened().schema().to_json())

    @property
    @override
    def properties(self) -> Mapping[str, str]:
        return dict(self._opened().metadata().configuration)

    @override
    def begin(self) -> Position:
        """Return the oldest version from which on the log has every version's entry."""
        entries, _ = self._logged()
        oldest = int(self._opened().version())
        while oldest - 1 in entries:
            oldest -= 1
        return Position(oldest)

    @override
    def end(self) -> Position:
        return Position(int(self._opened().version()) + 1)

    @override
    def versions(self, start: Position) -> Iterator[TableVersion]:
        number = start.version
        if start.is_snapshot:
            yield self._whole(number)
            number += 1
        while (version := self._version(number)) is not None or not self._is_end(number):
            if version is not None:
                yield version
                number += 1

    def _is_end(self, number: int) -> bool:
        """Tell whether a version that the log lacks has not been written yet.

        Older entries are cleaned up first, so where the one before it is, it is not gone.

        :raises DataLostError: when it was cleaned up, or is of another log
        """
        if number and self._asked(lambda: self._store.is_there(entry_of(number - 1))):
            return True
        newest = int(self._opened().version())
        if newest >= number and self._version(number) is None:
            raise DataLostError(
                f"version {number} of table {self.name} is not in its log any more, and the newest is {newest}: what "
                "it added was not read yet. Keep the log longer (delta.logRetentionDuration), and begin a new "
                "pipeline with a starting_version that is there, and initial_snapshot=True to read what the table has "
                "then, too"
            )
        if newest < number - 1:
            raise DataLostError(
                f"table {self.name} is at version {newest}, and versions up to {number - 1} were read: it was made "
                "anew, or put back from a copy. Put it back as it was, or begin a new pipeline"
            )
        return newest == number - 1

    def _logged(self) -> tuple[set[int], set[int]]:
        """Return the versions with an entry in the log, and the versions with a checkpoint."""
        names = self._asked(lambda: self._store.names(LOG))
        numbered = [(int(name[:20]), name[20:]) for name in names if name[:20].isdecimal()]
        entries = {number for number, suffix in numbered if suffix == ".json"}
        return entries, {number for number, suffix in numbered if suffix.startswith(".checkpoint.")}

    def _whole(self, number: int) -> TableVersion:
        """Return the table as it is at a version.

        :raises DataLostError: when that is unknown by now
        """
        position = Position(number, SNAPSHOT)
        if position in self._known:
            return self._known[position]
        self._check_can_be_rebuilt(number)
        self._known[position] = version = self._files_of(number, self._opened(number))
        return version

    def _check_can_be_rebuilt(self, number: int) -> None:
        """Check that the log has a checkpoint, or its beginning, and all entries from there to a version."""
        (entries, checkpoints), version = self._logged(), number
        while version and version in entries - checkpoints:
            version -= 1
        if version not in checkpoints and not (version == 0 and version in entries):
            raise DataLostError(
                f"what table {self.name} had at version {number} is not known any more: its log was cleaned up. Keep "
                "the log longer (delta.logRetentionDuration), and begin a new pipeline at a newer version, up to "
                f"starting_version={self._opened().version()}, with initial_snapshot=True"
            )

    def _files_of(self, number: int, table: DeltaTable) -> TableVersion:
        import pyarrow as pa

        def has_deletions() -> bool:
            return any(batch.num_rows for batch in pa.RecordBatchReader.from_stream(table.deletion_vectors()))

        if "deletionVectors" in (table.protocol().reader_features or ()) and self._asked(has_deletions):
            raise RefusedError(
                f"table {self.name} has files without some of their rows at version {number} (deletion vectors), which "
                "can't be read: begin at a version behind a REORG TABLE … APPLY (PURGE)"
            )
        actions = self._asked(lambda: pa.table(table.get_add_actions()))
        check_size(self.name, number, actions.num_rows)
        paths, sizes, rows = (actions[name].to_pylist() for name in ("path", "size_bytes", "num_records"))
        partitions = _texts(actions["partition"]) if "partition" in actions.column_names else [{}] * len(paths)
        files = map(self._file, [number] * len(paths), paths, sizes, rows, partitions)
        return TableVersion(
            version=number,
            files=tuple(sorted(files, key=attrgetter("path"))),
            columns=str(table.schema().to_json()),
            first=SNAPSHOT,
        )

    def _version(self, number: int) -> TableVersion | None:
        """Return a version, None when the log lacks it."""
        position = Position(number)
        if position in self._known:
            return self._known[position]
        try:
            actions = self._actions(number)
        except FileNotFoundError:
            return None
        self._known[position] = version = self._parsed(number, actions)
        return version

    def _actions(self, number: int) -> Iterator[tuple[str, dict[str, Any]]]:
        entry = self._asked(lambda: self._store.open(entry_of(number)).read())
        return actions_of(entry, f"version {number} of table {self.name}")

    def _parsed(self, number: int, actions: Iterable[tuple[str, dict[str, Any]]]) -> TableVersion:
        added: list[Mapping[str, Any]] = []
        removed, columns, committed = 0, None, 0
        for kind, body in actions:
            if kind == "add" and body.get("dataChange", True):
                added.append(body)
            elif kind == "remove" and body.get("dataChange", True):
                removed += 1
            elif kind == "metaData":
                self._check_mapping(body.get("configuration") or {})
                columns = str(body["schemaString"])
            elif kind == "protocol":
                self._check_features(body.get("readerFeatures") or ())
            elif kind == "commitInfo":
                committed = int(body.get("inCommitTimestamp") or body.get("timestamp") or 0)
            elif kind not in ("add", "remove", *_SILENT):
                raise RefusedError(f"version {number} of table {self.name} has {kind!r}, which can't be read")
        check_size(self.name, number, len(added))
        return TableVersion(
            version=number,
            files=() if removed else tuple(self._added(number, body) for body in added),
            rewrite=f"takes {removed:,} files out of it" if removed else None,
            columns=columns,
            committed=committed,
        )

    def _added(self, number: int, body: Mapping[str, Any]) -> TableFile:
        if body.get("deletionVector"):
            raise RefusedError(
                f"version {number} of table {self.name} adds {body['path']} without some of its rows (a deletion "
                "vector), which can't be read"
            )
        statistics = json.loads(body["stats"]) if body.get("stats") else {}
        partition = {name: value or None for name, value in (body.get("partitionValues") or {}).items()}
        return self._file(number, body["path"], int(body["size"]), statistics.get("numRecords"), partition)

    def _file(
        self, number: int, escaped_path: str, size: int, rows: int | None, partition: Mapping[str, str | None]
    ) -> TableFile:
        path = unquote(escaped_path)
        if is_elsewhere(path):
            raise RefusedError(
                f"version {number} of table {self.name} has the file {path}, which is another table's, of which it is "
                "a clone: read that one"
            )
        return TableFile(path=path, bytes=size, rows=rows, partition=partition)

    def _open(self, number: int | None = None) -> DeltaTable | None:
        """Return the table at a version, None for its newest; None when there is none."""
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise RefusedError(
                f"table {self.name} can't be read here: {error}. pip install 'airflow-provider-exactlyonce[delta]'"
            ) from error
        try:
            table = self._asked(lambda: DeltaTable(self._place, version=number, storage_options=self._options))
        except TableNotFoundError:
            return None
        except BatchFailedError:
            self._check_protocol()  # delta-rs opens no table with a feature that it does not know
            raise
        self._check_features(table.protocol().reader_features or ())
        self._check_mapping(table.metadata().configuration)
        return table

    def _opened(self, number: int | None = None) -> DeltaTable:
        return self._existing(self._open(number))

    def _check_protocol(self) -> None:
        """Check the features that the log names last."""
        for number in sorted(self._logged()[0], reverse=True):
            for kind, body in self._actions(number):
                if kind == "protocol":
                    self._check_features(body.get("readerFeatures") or ())
                    return

    def _check_features(self, features: Any) -> None:
        if unknown := sorted(set(features) - _FEATURES):
            raise RefusedError(f"table {self.name} has the features {', '.join(unknown)}, which can't be read")

    def _check_mapping(self, configuration: Mapping[str, Any]) -> None:
        if (mode := configuration.get(_MAPPING, "none")) != "none":
            raise RefusedError(
                f"table {self.name} maps its columns ({_MAPPING}={mode!r}): its files have other names than it, which "
                "can't be read"
            )

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the store's answer.

        :raises BatchFailedError: when it does not answer
        """
        from deltalake.exceptions import TableNotFoundError

        return self._answered(ask, FileNotFoundError, TableNotFoundError)


def is_elsewhere(path: str) -> bool:
    """Tell whether a file is another table's, which this one is a clone of.

    :param path: as the log has it, not escaped
    """
    return _ELSEWHERE.match(path) is not None


def _texts(partitions: pa.ChunkedArray) -> list[dict[str, str | None]]:
    """Return values of partitions as a log has them.

    A time with a zone loses it: it is not known whether the log has one, and without it is not read.
    """
    import pyarrow as pa

    values = pa.Table.from_struct_array(partitions)
    columns = (
        column.cast(pa.timestamp("us")) if pa.types.is_timestamp(column.type) else column for column in values.columns
    )
    return pa.table([column.cast(pa.string()) for column in columns], values.column_names).to_pylist()  # type: ignore[no-any-return]


def entry_of(version: int) -> str:
    """Return the path of a version's entry in the log, below the table's directory."""
    return f"{LOG}/{version:020d}.json"


def actions_of(entry: bytes, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the actions of an entry of the log: the kind of each, and its fields.

    :param what: names the entry in messages
    :raises RefusedError: when it can't be read
    """
    for line in filter(bytes.strip, entry.splitlines()):
        try:
            yield from json.loads(line).items()
        except (ValueError, AttributeError) as error:
            raise RefusedError(f"{what} is no entry of a Delta log: {error}") from None

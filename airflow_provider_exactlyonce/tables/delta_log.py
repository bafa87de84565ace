"""The versions of a Delta table, from the entries of its log.

https://github.com/delta-io/delta/blob/master/PROTOCOL.md
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import unquote

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import DataLostError, RefusedError
from airflow_provider_exactlyonce.tables.positions import DELTA, Position, name_of
from airflow_provider_exactlyonce.tables.table_log import TableFile, TableLog, TableStore, TableVersion, check_size

if TYPE_CHECKING:
    from deltalake import DeltaTable

T = TypeVar("T")

_LOG: Final = "_delta_log"
_MAPPING: Final = "delta.columnMapping.mode"
#: What a reader of a version's own files need not know of. Rows that a deletion vector takes out are a rewrite.
_FEATURES: Final = frozenset(
    {"columnMapping", "deletionVectors", "timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
)
#: What a version may say of itself that changes no row.
_SILENT: Final = frozenset({"commitInfo", "txn", "domainMetadata", "cdc"})
_REMEMBERED: Final = 1000


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
        self._known: Final[OrderedDict[int, TableVersion]] = OrderedDict()

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

    @override
    def begin(self) -> Position:
        """Return the oldest version whose entry, and those of all after it, are in the log."""
        names = self._asked(lambda: self._store.names(_LOG))
        logged = {int(name[:20]) for name in names if name[20:] == ".json" and name[:20].isdecimal()}
        oldest = int(self._opened().version())
        while oldest - 1 in logged:
            oldest -= 1
        return Position(oldest)

    @override
    def end(self) -> Position:
        return Position(int(self._opened().version()) + 1)

    @override
    def versions(self, start: Position) -> Iterator[TableVersion]:
        number = start.version
        while (version := self._version(number)) is not None or not self._is_end(number):
            if version is not None:
                yield version
                number += 1

    def _is_end(self, number: int) -> bool:
        """Tell whether a version that the log lacks has not been written yet.

        Older entries are cleaned up first, so where the one before it is, it is not gone.

        :raises DataLostError: when it was cleaned up, or is of another log
        """
        if number and self._asked(lambda: self._store.is_there(_entry(number - 1))):
            return True
        newest = int(self._opened().version())
        if newest >= number and self._version(number) is None:
            raise DataLostError(
                f"version {number} of table {self.name} is not in its log any more, and the newest is {newest}: what "
                "it added was not read yet. Keep the log longer (delta.logRetentionDuration), and begin a new "
                "pipeline with a starting_version that is there"
            )
        if newest < number - 1:
            raise DataLostError(
                f"table {self.name} is at version {newest}, and versions up to {number - 1} were read: it was made "
                "anew, or put back from a copy. Put it back as it was, or begin a new pipeline"
            )
        return newest == number - 1

    def _version(self, number: int) -> TableVersion | None:
        """Return a version, None when the log lacks it."""
        if number in self._known:
            return self._known[number]
        try:
            text = self._asked(lambda: self._store.open(_entry(number)).read())
        except FileNotFoundError:
            return None
        version = self._parsed(number, text)
        self._known[number] = version
        if len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        return version

    def _parsed(self, number: int, text: bytes) -> TableVersion:
        files: list[TableFile] = []
        removed, columns, committed = 0, None, 0
        for kind, body in self._actions(number, text):
            if kind == "add" and body.get("dataChange", True):
                files.append(self._file(number, body))
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
        check_size(self.name, number, len(files))
        return TableVersion(
            version=number,
            files=() if removed else tuple(files),
            rewrite=f"takes {removed:,} files out of it" if removed else None,
            columns=columns,
            committed=committed,
        )

    def _actions(self, number: int, text: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        for line in text.splitlines():
            if line.strip():
                try:
                    yield from json.loads(line).items()
                except (ValueError, AttributeError) as error:
                    raise RefusedError(f"version {number} of table {self.name} is no entry of a log: {error}") from None

    def _file(self, number: int, body: Mapping[str, Any]) -> TableFile:
        path = unquote(body["path"])
        if "://" in path or path.startswith("/"):
            raise RefusedError(
                f"version {number} of table {self.name} has the file {path}, which is another table's, of which it is "
                "a clone: read that one"
            )
        if body.get("deletionVector"):
            raise RefusedError(
                f"version {number} of table {self.name} adds {path} without some of its rows (a deletion vector), "
                "which can't be read"
            )
        statistics = json.loads(body["stats"]) if body.get("stats") else {}
        return TableFile(
            path=path,
            bytes=int(body["size"]),
            rows=statistics.get("numRecords"),
            partition={name: value or None for name, value in (body.get("partitionValues") or {}).items()},
        )

    def _open(self) -> DeltaTable | None:
        """Return the table at its newest version, None when there is none."""
        try:
            from deltalake import DeltaTable
            from deltalake.exceptions import TableNotFoundError
        except ImportError as error:
            raise RefusedError(
                f"table {self.name} can't be read here: {error}. pip install 'airflow-provider-exactlyonce[delta]'"
            ) from error
        try:
            table = self._asked(lambda: DeltaTable(self._place, storage_options=self._options))
        except TableNotFoundError:
            return None
        self._check_features(table.protocol().reader_features or ())
        self._check_mapping(table.metadata().configuration)
        return table

    def _opened(self) -> DeltaTable:
        return self._there(self._open())

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
        """Return what the store answers.

        :raises BatchFailedError: when it does not answer
        """
        from deltalake.exceptions import TableNotFoundError

        return self._answered(ask, FileNotFoundError, TableNotFoundError)


def _entry(version: int) -> str:
    return f"{_LOG}/{version:020d}.json"

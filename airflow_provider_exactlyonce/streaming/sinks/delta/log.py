"""A table's log through delta-rs: the newest version, and the next one, which is written only if nobody else has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar
from urllib.parse import quote, unquote

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, required
from airflow_provider_exactlyonce.files import make_directory
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles, flush_commit, local_path
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import plain
from airflow_provider_exactlyonce.tables.delta_log import LOG, actions_of, entry_of

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable, Field, Schema
    from deltalake.transaction import AddAction, RemoveAction

T = TypeVar("T")

_CHECKPOINT_INTERVAL: Final = 100  # of delta-rs
_VERSION: Final = re.compile(r"(\d{20})\.json")
#: Characters, beside letters and digits, that delta-rs writes into a path of the log as they are.
_PLAIN: Final = "!$&'()+,-./:;=@_~"
#: The key of the sink's part of a version's ``commitInfo``.
METADATA: Final = "exactlyonce"


@dataclass(frozen=True, kw_only=True)
class LoggedFile:
    """One file of a version, as the log has it.

    :param path: relative to the table
    :param logged: the path as the log has it, escaped
    :param rows: None when it is not recorded
    :param partition: the values of the columns that the table is partitioned by, as texts
    :param bounds: of the columns that were asked for, when they are known: the least and the greatest value, times as
        numbers
    """

    path: str
    logged: str
    size: int
    rows: int | None
    partition: Mapping[str, str | None]
    bounds: Mapping[str, tuple[Any, Any]]


class DeltaLog:
    """The log of one table, as of the last read.

    :param path: an absolute path, or a URL of delta-rs
    :param options: what delta-rs needs to know of the store
    :ivar written: the version that this has written last, -1 for none
    """

    VERSION: ClassVar = "version"
    #: None of the errors of delta-rs says for sure that nothing was written.
    REFUSALS: ClassVar[tuple[type[Exception], ...]] = ()

    def __init__(self, path: str, options: Mapping[str, str]) -> None:
        self._path: Final = path
        self._options: Final = dict(options)
        self._table: DeltaTable | None = None
        self.written = -1

    @property
    def table(self) -> DeltaTable:
        """The table as of the last read."""
        return required(self._table, "a table is opened before it is asked")

    @property
    def is_local(self) -> bool:
        """Whether a version that is written may still be lost with the power."""
        return local_path(self._path) is not None

    @property
    def version(self) -> int:
        """The version at which it was last looked at."""
        return int(self.table.version())

    def open(self) -> bool:
        """Read the newest version, and forget older ones; returns whether there is a table."""
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        self._table, self.written = None, -1
        try:
            self._table = DeltaTable(self._path, storage_options=self._options)
        except TableNotFoundError:
            return False
        return True

    def at(self, version: int) -> DeltaLog | None:
        """Return the log as it was at a version, None when delta-rs does not know that any more."""
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        log = DeltaLog(self._path, self._options)
        try:
            log._table = DeltaTable(self._path, version=version, storage_options=self._options)
        except DeltaError:
            return None
        return log

    def refresh(self) -> None:
        """Look at the newest version.

        :raises CommitUnknownError: when it is not there any more as it was
        """
        self._answer(self.table.update_incremental)

    def transaction(self, app_id: str) -> int | None:
        """Return the newest version of an application's transaction, which outlives the clean-up of the log.

        :raises CommitUnknownError: when it is not there any more as it was
        """
        version = self._answer(lambda: self.table.transaction_version(app_id))
        return None if version is None else int(version)

    def _answer(self, ask: Callable[[], T]) -> T:
        from deltalake.exceptions import DeltaError

        try:
            return ask()
        except DeltaError as error:  # also of a log without the versions that the handle knows
            newest_log = DeltaLog(self._path, self._options)
            is_there = newest_log.open() and newest_log.table.metadata().id == self.table.metadata().id
            if not is_there or newest_log.version < self.version:
                raise CommitUnknownError(
                    f"table {self._path} was removed, recreated or set back since version {self.version} was looked at"
                ) from error
            raise

    def create(self, schema: Schema, partition_by: Sequence[str]) -> None:
        """Create the table; it fails when somebody else has."""
        from deltalake import CommitProperties, DeltaTable

        if (local := local_path(self._path)) is not None:
            make_directory(Path(local))
        DeltaTable.create(
            self._path,
            schema,
            partition_by=list(partition_by),
            storage_options=self._options,
            commit_properties=CommitProperties(max_commit_retries=0),
        )
        self.keep(0)

    def files(self, bounds_of: Sequence[str] = ()) -> list[LoggedFile]:
        """Return the files of the version last read.

        :param bounds_of: columns whose least and greatest values are asked for
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        added = pa.table(self.table.get_add_actions(flatten=False))
        parts, least, greatest = (_fields(added, name) for name in ("partition", "min", "max"))
        texts = {name: pc.cast(values, pa.string()).to_pylist() for name, values in parts.items()}
        bounds = {
            name: list(zip(plain(least[name]).to_pylist(), plain(greatest[name]).to_pylist(), strict=True))
            for name in bounds_of
            if name in least and name in greatest
        }
        described = zip(*(added[name].to_pylist() for name in ("path", "size_bytes", "num_records")), strict=True)
        return [
            LoggedFile(
                path=unquote(path),
                logged=path,
                size=size,
                rows=rows,
                partition={name: values[number] for name, values in texts.items()},
                bounds={name: pairs[number] for name, pairs in bounds.items() if None not in pairs[number]},
            )
            for number, (path, size, rows) in enumerate(described)
        ]

    def append(
        self,
        files: Sequence[AddAction | RemoveAction],
        transactions: Mapping[str, int],
        metadata: Mapping[str, Any],
        blind: bool = True,
    ) -> None:
        """Write the version after the one last read; it fails when somebody else has. Nobody knows when it fails.

        :param files: what it adds to the table, and takes out of it
        :param transactions: {application: version}
        :param metadata: what it says of itself
        :param blind: whether it would be the same after any other version
        """
        from deltalake import CommitProperties, PostCommitHookProperties, Transaction

        table, written = self.table, self.version + 1
        table.create_write_transaction(
            list(files),
            mode="append",
            schema=table.schema(),
            partition_by=list(table.metadata().partition_columns),
            commit_properties=CommitProperties(
                # Spark's writers need not fail because of a blind one.
                custom_metadata={"isBlindAppend": blind, METADATA: metadata},
                app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
                # With a retry delta-rs would go on after versions that this has not seen, a claim among them.
                max_commit_retries=0,
            ),
            # delta-rs would clean up the log after each version, which takes longer than to write it.
            post_commithook_properties=PostCommitHookProperties(
                cleanup_expired_logs=None if written % self._checkpoint_interval == 0 else False
            ),
        )
        self.written = written

    def add_columns(
        self, fields: Sequence[Field], transactions: Mapping[str, int], metadata: Mapping[str, Any]
    ) -> None:
        """Write the version after the one last read, with more columns; as :meth:`append`."""
        from deltalake import CommitProperties, Transaction

        self.table.alter.add_columns(
            list(fields),
            commit_properties=CommitProperties(
                custom_metadata={METADATA: metadata},
                app_transactions=[Transaction(app_id, version) for app_id, version in transactions.items()],
                max_commit_retries=0,
            ),
        )

    @property
    def _checkpoint_interval(self) -> int:
        return int(self.table.metadata().configuration.get("delta.checkpointInterval", _CHECKPOINT_INTERVAL))

    def foreign_versions(self, since: int) -> range:
        """Return the versions after one, up to the one last read, that may be of others."""
        return range(since + 1, self.version if self.version == self.written else self.version + 1)

    def keep(self, version: int) -> None:
        """Make a version outlive a loss of power."""
        flush_commit(self._path, version)

    def keep_after(self, version: int) -> None:
        """Make the version after one outlive a loss of power."""
        self.keep(version + 1)

    def has_passed(self, version: int) -> bool:
        """Tell whether a version was written after one: it is somebody's then, and nobody else writes it."""
        return self.version > version


@dataclass(frozen=True, kw_only=True)
class LogEntry:
    """The log's entry of one version.

    :param place: how people find it
    :param actions: the kind of each action, and its fields
    """

    version: int
    place: str
    actions: Sequence[tuple[str, Mapping[str, Any]]]

    @classmethod
    def read(cls, files: DeltaFiles, version: int) -> LogEntry:
        """Read it.

        :raises FileNotFoundError: when it was cleaned up
        :raises RefusedError: when it can't be read
        """
        name = entry_of(version)
        return cls(version=version, place=files.place(name), actions=list(actions(files, version)))

    @property
    def information(self) -> Mapping[str, Any]:
        """The version's ``commitInfo``, empty when it has none."""
        return next(iter(self.bodies("commitInfo")), {})

    @property
    def is_restore(self) -> bool:
        """Whether the version has set the table back, or forward again."""
        return bool(self.information.get("operation") == "RESTORE")

    @property
    def restored(self) -> int | None:
        """The version to which a ``RESTORE`` was; None when it names a time instead."""
        version = (self.information.get("operationParameters") or {}).get("version")
        return None if version is None else int(version)

    def bodies(self, kind: str) -> list[Mapping[str, Any]]:
        """Return the fields of all actions of a kind."""
        return [body for name, body in self.actions if name == kind]


def standing_entries(files: DeltaFiles, newest: int) -> Iterator[LogEntry]:
    """Yield the versions that make up a table, from the newest one back, as far as the log tells.

    A ``RESTORE`` makes the table what it was at another version: it goes on there, and leaves out what is between. It
    ends with one that does not say which.

    :raises RefusedError: when an entry can't be read
    """
    version: int | None = newest
    while version is not None and version >= 0:
        try:
            entry = LogEntry.read(files, version)
        except FileNotFoundError:
            return
        yield entry
        version = entry.restored if entry.is_restore else version - 1


def escaped(path: str) -> str:
    """Return a path as delta-rs writes it into the log."""
    return quote(path, safe=_PLAIN)


def _fields(added: pa.Table, name: str) -> dict[str, pa.ChunkedArray]:
    """Return the parts of a column of structs, none when there is no such column."""
    import pyarrow.compute as pc

    if name not in added.column_names:
        return {}
    return {field.name: pc.struct_field(added[name], [field.name]) for field in added.schema.field(name).type}


def versions(files: DeltaFiles) -> list[int]:
    """Return the versions with an entry in the log, in order."""
    return [int(match[1]) for name in files.names(LOG) if (match := _VERSION.fullmatch(name))]


def actions(files: DeltaFiles, version: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the actions of a version's entry in the log: the kind of each, and its fields.

    :raises FileNotFoundError: when the entry was cleaned up
    :raises RefusedError: when it can't be read
    """
    name = entry_of(version)
    return actions_of(files.read(name), files.place(name))

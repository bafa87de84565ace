"""A table's versions as readers need them, in any format; and how much of them is one batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    DataLostError,
    ExactlyOnceError,
    TableChangedError,
)
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position

T = TypeVar("T")

_REMEMBERED: Final = 1000


@dataclass(frozen=True, kw_only=True)
class TableFile:
    """One data file, which never changes.

    :param path: as its :class:`TableStore` opens it
    :param rows: None when it is not recorded
    :param partition: values that are not in the file, as texts
    """

    path: str
    bytes: int
    rows: int | None = None
    partition: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TableVersion:
    """The files that one version adds; or the whole table as it is at a version.

    :param files: files with rows that no older version has, in their order; of a whole table all
    :param rewrite: its change of older versions' rows, in words; None when it leaves them as they are
    :param columns: the table's columns from it on, as Spark writes a schema; None when they stay
    :param field_ids: of the table's columns and their parts at it, where files have ids
    :param committed: milliseconds since the epoch
    :param first: how the first file is counted in positions
    """

    version: int
    files: tuple[TableFile, ...] = ()
    rewrite: str | None = None
    columns: str | None = None
    field_ids: Mapping[str, int] = field(default_factory=dict)
    committed: int = 0
    first: int = 0


class KnownVersions(OrderedDict[Hashable, TableVersion]):
    """The versions that were read last, a bounded number of them: a driver reads for months."""

    @override
    def __setitem__(self, key: Hashable, version: TableVersion) -> None:
        super().__setitem__(key, version)
        if len(self) > _REMEMBERED:
            self.popitem(last=False)


class TableStore(ABC):
    """Opens the data files of a table; it can be pickled, for tasks."""

    @abstractmethod
    def open(self, path: str) -> Any:
        """Return a file of Arrow's.

        :raises FileNotFoundError: when it is gone
        """

    @abstractmethod
    def is_there(self, path: str) -> bool:
        """Tell whether a file can be opened."""


class TableLog(ABC):
    """The versions of one table.

    A request that a store or a catalog does not answer raises
    :class:`~airflow_provider_exactlyonce.exceptions.BatchFailedError`: it may be repeated.

    :ivar name: as ledgers have it
    """

    name: str

    @property
    @abstractmethod
    def store(self) -> TableStore:
        """Where its data files are."""

    @property
    @abstractmethod
    def location(self) -> str:
        """Its directory: an absolute path, or a URL."""

    def field_ids(self) -> Mapping[str, int]:
        """Return the ids of its columns and their parts where files have them; other names are the files', too.

        They are as of the last read of the versions.
        """
        return {}

    @abstractmethod
    def identity(self) -> str | None:
        """Return the table's id, which a table made in its place does not have; None when it is not there.

        :raises RefusedError: when it has a feature that can't be read
        """

    @abstractmethod
    def columns(self) -> str:
        """Return the columns of its newest version, as Spark writes a schema."""

    @property
    @abstractmethod
    def properties(self) -> Mapping[str, str]:
        """The properties of its newest version."""

    @abstractmethod
    def begin(self) -> Position:
        """Return the oldest position that can be read from."""

    @abstractmethod
    def end(self) -> Position:
        """Return the position after its newest version."""

    @abstractmethod
    def versions(self, start: Position) -> Iterator[TableVersion]:
        """Yield the versions from a position on, oldest first, without a gap; the first may be the whole table.

        :raises DataLostError: when some are gone, or the position is of another table or history
        :raises RefusedError: when a version has something that can't be read
        """

    def _existing(self, table: T | None) -> T:
        """Return a table.

        :raises DataLostError: when it is none
        """
        if table is None:
            raise DataLostError(f"table {self.name} is not there")
        return table

    def _answered(self, ask: Callable[[], T], *answers: type[Exception]) -> T:
        """Return the answer of a store or a catalog.

        :param answers: errors that count as an answer
        :raises BatchFailedError: when it does not answer
        """
        try:
            return ask()
        except Exception as error:  # each store and catalog has errors of its own
            if isinstance(error, (ExactlyOnceError, *answers)):
                raise
            raise BatchFailedError(f"table {self.name} can't be read: {type(error).__name__}: {error}") from error


#: Raises when a version can't be read as it is.
CheckVersion = Callable[[TableVersion], None]


def check_appends(name: str, version: TableVersion) -> None:
    """Check that a version leaves all rows as they are.

    :raises TableChangedError: when it does not
    """
    if version.rewrite is not None:
        raise TableChangedError(
            f"version {version.version} of table {name} {version.rewrite}. What is read from the table are the rows "
            'that are added to it; say on_rewrite="skip" to go on without what such versions add and remove, or start '
            "a new pipeline behind it, with starting_version"
        )


def batch_end(versions: Iterable[TableVersion], start: Position, files: int | None, check: CheckVersion) -> Position:
    """Return where a batch ends that begins at a position.

    A version that can't be read ends the batch before it, and is raised once it is the first.

    :param versions: from the start on
    :param files: at most so many, None for all
    """
    position, remaining = start, files
    reading = iter(versions)
    while remaining is None or remaining > 0:
        try:
            version = next(reading, None)
            if version is None:
                break
            check(version)
        except TableChangedError:
            if position == start:
                raise
            break
        read_files = position.file - version.first if version.version == position.version else 0
        new_files = len(version.files) - read_files
        if remaining is not None and new_files > remaining:
            return Position(version.version, version.first + read_files + remaining)
        remaining = None if remaining is None else remaining - new_files
        position = Position(version.version + 1)
    return position


def files_between(versions: Iterable[TableVersion], start: Position, end: Position) -> Iterator[TableFile]:
    """Yield the files of a range, in their order; no later version is read.

    :param versions: from the start on
    """
    reading = iter(versions)
    while start < end and (version := next(reading, None)) is not None:
        first = start.file - version.first if version.version == start.version else 0
        last = end.file - version.first if version.version == end.version else None
        if Position(version.version) < end:
            yield from version.files[first:last]
        start = Position(version.version + 1)


def check_size(name: str, version: int, files: int) -> None:
    """Check that a position can stand for each of a version's files.

    :raises TableChangedError: when it can't
    """
    if files >= SNAPSHOT:
        raise TableChangedError(
            f"version {version} of table {name} has {files:,} files, and at most {SNAPSHOT - 1:,} can be read"
        )

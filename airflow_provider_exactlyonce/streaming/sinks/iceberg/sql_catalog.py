"""A SQL catalog for a table that one writer commits to again and again: only new parts of the metadata are encoded.

Iceberg's metadata is one file with every snapshot that is kept, and each commit writes another. Pyiceberg's own catalog
reads it twice for a commit, copies every snapshot, and makes JSON of each: at 10,000 snapshots that is a second. A file
of metadata never changes, so the written content is known as long as the catalog names that file. After another
writer's commit, all is read as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import TYPE_CHECKING, Final, TypeVar

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.iceberg.properties import check_location

if TYPE_CHECKING:
    from pydantic import BaseModel
    from pyiceberg.catalog.sql import IcebergTables
    from pyiceberg.io import FileIO
    from pyiceberg.table import CommitTableResponse
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate

T = TypeVar("T")

_GROWING: Final = ("snapshots", "snapshot_log")
_FORMAT_VERSION: Final = 2  # snapshots are written otherwise in others, which the sink refuses


class IncrementalSqlCatalog(SqlCatalog):
    """As pyiceberg's, and remembers the metadata that the last table had which it has read or written.

    :param name: of the catalog
    :param properties: of the catalog
    """

    def __init__(self, name: str, **properties: str) -> None:
        super().__init__(name, **properties)
        self._known: tuple[str, TableMetadata] | None = None  # a location, and what is there
        self._json: Final = {name: _GrowingJson() for name in _GROWING}

    @override
    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        if self._known is None or self._known[0] != orm_table.metadata_location:
            where = f"table {self.name}.{orm_table.table_namespace}.{orm_table.table_name}"
            check_location(orm_table.metadata_location or "", where)
            table = super()._convert_orm_to_iceberg(orm_table)
            self._known = (table.metadata_location, _with_shared_lists(table.metadata))
        location, metadata = self._known
        return Table(
            identifier=(*self.identifier_to_tuple(orm_table.table_namespace), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )

    @override
    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        committed = super().commit_table(table, requirements, updates)
        self._known = (committed.metadata_location, _with_shared_lists(committed.metadata))
        return committed

    @override
    def _write_metadata(  # type: ignore[override]  # which needs nothing of the catalog
        self, metadata: TableMetadata, io: FileIO, metadata_path: str
    ) -> None:
        if Config().get_bool("legacy-current-snapshot-id") or metadata.format_version != _FORMAT_VERSION:
            super()._write_metadata(metadata, io, metadata_path)
            return
        with io.new_output(metadata_path).create() as file:
            file.write(metadata.model_dump_json(exclude=set(_GROWING)).removesuffix("}").encode())
            for name in _GROWING:
                file.write(f',"{name.replace("_", "-")}":['.encode())
                file.write(self._json[name].encode(getattr(metadata, name)))
                file.write(b"]")
            file.write(b"}")


class _GrowingJson:
    """The JSON of a list of unchanging members, without its brackets."""

    def __init__(self) -> None:
        self._members: Sequence[BaseModel] = ()
        self._json = b""

    def encode(self, members: Sequence[BaseModel]) -> bytes:
        """Return the JSON; that of the members of the last call, if the list begins with them, is reused."""
        count, reused = len(self._members), self._json
        if count > len(members) or not all(map(is_, self._members, members)):
            count, reused = 0, b""
        encoded = [member.model_dump_json(exclude_none=True, by_alias=True).encode() for member in members[count:]]
        self._json, self._members = b",".join(filter(None, (reused, *encoded))), members
        return self._json


class _SharedList(list[T]):
    """A list of unchanging members: its deep copy is a list of the same members."""

    @override
    def __add__(self, members: list[T]) -> _SharedList[T]:  # type: ignore[override]
        combined = _SharedList(self)
        combined.extend(members)
        return combined

    def __deepcopy__(self, memo: object) -> _SharedList[T]:
        return _SharedList(self)


def _with_shared_lists(metadata: TableMetadata) -> TableMetadata:
    """Return metadata with lists of that kind, where they grow with the snapshots."""
    lists = {name: getattr(metadata, name) for name in _GROWING}
    return metadata.model_copy(
        update={name: _SharedList(members) for name, members in lists.items() if not isinstance(members, _SharedList)}
    )

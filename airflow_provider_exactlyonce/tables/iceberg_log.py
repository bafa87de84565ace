"""The snapshots of an Iceberg table's main branch, by their sequence numbers.

https://iceberg.apache.org/spec/
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import DataLostError, RefusedError
from airflow_provider_exactlyonce.tables.iceberg_store import IcebergStore, reaching_hdfs
from airflow_provider_exactlyonce.tables.positions import ICEBERG, SNAPSHOT, Position, name_of
from airflow_provider_exactlyonce.tables.table_log import (
    KnownVersions,
    TableFile,
    TableLog,
    TableStore,
    TableVersion,
    check_size,
)

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

T = TypeVar("T")

_FORMAT: Final = 2


class IcebergTableLog(TableLog):
    """One table of a catalog.

    :param place: the catalog's, the namespace's and the table's name, with dots
    :param properties: of the catalog; they override pyiceberg's own configuration
    """

    def __init__(self, place: str, properties: Mapping[str, str]) -> None:
        self.name = name_of(ICEBERG, place)
        self._catalog_name, _, self._identifier = place.partition(".")
        self._properties: Final = dict(properties)
        self._catalog: Catalog | None = None
        self._read_table: Table | None = None  # when the versions were last asked for
        self._known: Final = KnownVersions()

    @override
    def identity(self) -> str | None:
        table = self._open()
        return None if table is None else str(table.metadata.table_uuid)

    @override
    def columns(self) -> str:
        return _columns(self._opened().schema())

    @property
    @override
    def store(self) -> TableStore:  # a catalog may give new credentials
        return IcebergStore({name: str(value) for name, value in self._opened().io.properties.items()})

    @property
    @override
    def location(self) -> str:
        return str(self._opened().metadata.location)

    @override
    def field_ids(self) -> Mapping[str, int]:
        return _field_ids((self._read_table or self._opened()).schema())

    @property
    @override
    def properties(self) -> Mapping[str, str]:
        return self._opened().metadata.properties

    @override
    def begin(self) -> Position:
        table = self._opened()
        history = self._history(table)
        if _is_whole(table, history):
            return Position(0)
        # A reader can go on within the oldest snapshot, and not begin with it: what came before it is not known.
        return Position(_number(history[0]), 1) if history else Position(table.metadata.next_sequence_number())

    @override
    def end(self) -> Position:
        history = self._history(self._opened())
        return Position(_number(history[-1]) + 1 if history else 0)

    @override
    def versions(self, start: Position) -> Iterator[TableVersion]:
        table = self._read_table = self._opened()
        history = self._history(table)
        self._check_goes_on(table, history, start)
        schema_id = None
        for snapshot in history:
            if _number(snapshot) >= start.version:
                is_whole = start.is_snapshot and _number(snapshot) == start.version
                yield self._version(table, snapshot, schema_id, is_whole=is_whole)
            schema_id = snapshot.schema_id

    def _check_goes_on(self, table: Table, history: Sequence[Snapshot], start: Position) -> None:
        """Check that the last snapshot that was read is one of main's, so that those after it follow it.

        :raises DataLostError: when it is not, or that is unknown
        """
        last = start.version if start.file else start.version - 1
        snapshots = f"{_number(history[0])} to {_number(history[-1])}" if history else "none"
        if last <= 0 and not _is_whole(table, history):
            raise DataLostError(
                f"table {self.name} has the snapshots {snapshots} on its main branch, and what was added before is not "
                "known any more: keep its snapshots longer, or begin a new pipeline with a starting_version that is "
                "there, and initial_snapshot=True to read what the table has then, too"
            )
        if last > 0 and last not in map(_number, history):
            was = "is to be read as it is at" if start.is_snapshot else "is to be read on after"
            previous = max((number for number in map(_number, history) if number < last), default=None)
            raise DataLostError(
                f"table {self.name} {was} snapshot {last}, which is not among those of its main branch; they are "
                f"{snapshots}. It has expired, or the table was rolled back, or it is another branch's, so what "
                "follows it can't be known. Keep the newest snapshot that was read, or put it back; or begin a new "
                "pipeline" + ("" if previous is None else f", such as with starting_version={previous + 1}")
            )

    def _version(self, table: Table, snapshot: Snapshot, schema_id: int | None, *, is_whole: bool) -> TableVersion:
        """Return the files that a snapshot adds, or the whole table at it.

        :param schema_id: of the columns of the snapshot before it
        """
        if (known := self._known.get((snapshot.snapshot_id, is_whole))) is not None:
            return known
        number, operation = _number(snapshot), snapshot.summary.operation.value if snapshot.summary else "unknown"
        files: list[TableFile] = []
        rewrite = None if operation in ("append", "replace") or is_whole else f"is of the operation {operation!r}"
        if operation == "append" or is_whole:
            files, deletes = self._files(table, snapshot, is_whole=is_whole)
            check_size(self.name, number, len(files))
            if deletes and is_whole:
                raise RefusedError(
                    f"table {self.name} has rows at version {number} that are deleted beside their files (merge on "
                    "read), which can't be read: begin at a version behind a rewrite_data_files that applies the "
                    "deletions"
                )
            rewrite = "adds files that delete rows" if deletes else None
        schema = snapshot.schema_id
        changed = schema is not None and (schema != schema_id or is_whole)
        version = TableVersion(
            version=number,
            files=() if rewrite else tuple(files),
            rewrite=rewrite,
            columns=_columns(table.schemas()[schema]) if changed and schema is not None else None,
            field_ids={} if schema is None else _field_ids(table.schemas()[schema]),
            committed=snapshot.timestamp_ms,
            first=SNAPSHOT if is_whole else 0,
        )
        self._known[snapshot.snapshot_id, is_whole] = version
        return version

    def _files(self, table: Table, snapshot: Snapshot, *, is_whole: bool) -> tuple[list[TableFile], bool]:
        """Return the data files that a snapshot adds, or the table has at it, and whether there are deletes, too."""
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        def entries() -> tuple[list[TableFile], bool]:
            files, deletes = [], False
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id != snapshot.snapshot_id and not is_whole:
                    continue
                if manifest.content is not ManifestContent.DATA:
                    deletes = deletes or manifest.has_added_files() or manifest.has_existing_files()
                    continue
                for entry in manifest.fetch_manifest_entry(table.io):
                    is_new = entry.status is ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id
                    if is_new or is_whole:
                        files.append(self._file(entry.data_file))
            return files, deletes

        return self._asked(entries)

    def _file(self, file: Any) -> TableFile:
        if file.file_format.value.lower() != "parquet":
            raise RefusedError(
                f"file {file.file_path} of table {self.name} is {file.file_format.value}: Parquet is read"
            )
        return TableFile(path=file.file_path, bytes=file.file_size_in_bytes, rows=file.record_count)

    def _history(self, table: Table) -> list[Snapshot]:
        """Return main's snapshots, oldest first, as far back as they follow each other."""
        snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
        history: list[Snapshot] = []
        snapshot_id = table.metadata.current_snapshot_id
        while snapshot_id is not None and (snapshot := snapshots.get(snapshot_id)) is not None:
            history.append(snapshot)
            snapshot_id = snapshot.parent_snapshot_id
        return history[::-1]

    def _open(self) -> Table | None:
        """Return the table as it is now, None when there is none."""
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        catalog = self._asked(self._loaded)

        def load() -> Table:
            with reaching_hdfs(f"table {self.name}"):
                return catalog.load_table(self._identifier)

        try:
            table = self._asked(load)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        if table.metadata.format_version != _FORMAT:
            raise RefusedError(
                f"table {self.name} is of Iceberg's format {table.metadata.format_version}, and format {_FORMAT} is "
                "read: upgrade it (format-version=2), or read another"
            )
        return table

    def _opened(self) -> Table:
        return self._existing(self._open())

    def _loaded(self) -> Catalog:
        if self._catalog is None:
            try:
                from pyiceberg.catalog import load_catalog
                from pyiceberg.exceptions import NotInstalledError
            except ImportError as error:
                raise RefusedError(
                    f"table {self.name} can't be read here: {error}. pip install "
                    "'airflow-provider-exactlyonce[iceberg]'"
                ) from error
            try:
                self._catalog = load_catalog(self._catalog_name, **self._properties)
            except (ValueError, ImportError, NotInstalledError) as error:
                # Pyiceberg puts all properties into its message.
                raise RefusedError(
                    f"catalog {self._catalog_name!r} of table {self.name} can't be opened ({type(error).__name__}). "
                    "Type and uri have to be in the connection, or in pyiceberg's configuration; and what pyiceberg "
                    "needs for that type has to be installed"
                ) from None
        return self._catalog

    def _asked(self, ask: Callable[[], T]) -> T:
        """Return the answer of catalog or store.

        :raises BatchFailedError: when they do not answer
        """
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        return self._answered(ask, NoSuchTableError, NoSuchNamespaceError)


def _is_whole(table: Table, history: Sequence[Snapshot]) -> bool:
    """Tell whether main has all of its snapshots; some writers drop the parent's id of the oldest one."""
    return _number(history[0]) == 1 if history else table.metadata.next_sequence_number() == 1


def _number(snapshot: Snapshot) -> int:
    return int(snapshot.sequence_number or 0)


def _field_ids(schema: Any) -> dict[str, int]:
    """Return the ids of columns and of their parts, such as ``list.element.name``."""
    return {schema.find_column_name(field_id): field_id for field_id in schema.field_ids}


def _columns(schema: Any) -> str:
    """Return a table's columns as Spark writes a schema."""
    return json.dumps(_spark_type(schema.as_struct()))


def _spark_type(kind: Any) -> Any:
    """Return a type as Spark writes it; of one that Spark lacks, its own name."""
    from pyiceberg import types

    if isinstance(kind, types.StructType):
        fields = [
            {"name": field.name, "type": _spark_type(field.field_type), "nullable": not field.required, "metadata": {}}
            for field in kind.fields
        ]
        return {"type": "struct", "fields": fields}
    if isinstance(kind, types.ListType):
        inner = _spark_type(kind.element_type)
        return {"type": "array", "elementType": inner, "containsNull": not kind.element_required}
    if isinstance(kind, types.MapType):
        return {
            "type": "map",
            "keyType": _spark_type(kind.key_type),
            "valueType": _spark_type(kind.value_type),
            "valueContainsNull": not kind.value_required,
        }
    if isinstance(kind, types.DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    names = {"int": "integer", "timestamp": "timestamp_ntz", "timestamptz": "timestamp", "fixed": "binary"}
    name = str(kind).partition("[")[0]
    return names.get(name, name)

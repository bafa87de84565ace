"""One table of a catalog through pyiceberg: its newest metadata, and the next snapshot, if no other has been written.

Only this module knows pyiceberg's transactions. Their own commit is not used: it repeats an append on top of any other
writer's snapshot, even a successor's commit of the same batch; and when an append is reported as failed, it deletes the
manifests, though a request with a lost answer may have been carried out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, ClassVar, Final

from pyiceberg.catalog import MetastoreCatalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
)
from pyiceberg.table import Table, Transaction
from pyiceberg.table.snapshots import Operation, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
)
from pyiceberg.table.update.snapshot import _MergeAppendFiles, _OverwriteFiles
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.files import make_directory
from airflow_provider_exactlyonce.streaming.sinks.iceberg.partitions import first_dropped
from airflow_provider_exactlyonce.streaming.sinks.iceberg.properties import check_location
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.tables.iceberg_store import reaching_hdfs

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot
    from pyiceberg.table.update import TableRequirement, TableUpdate

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import NewColumn

_MAIN: Final = "main"
_DATA: Final = "write.data.path"
#: Manifests are merged when there are many, as Iceberg's own default has it; pyiceberg's has not.
_MERGE: Final = "commit.manifest-merge.enabled"
#: Manifests that name so many files are not merged any more: pyiceberg writes each entry anew, which takes 0.3 ms.
FULL_MANIFEST: Final = 1000

#: Properties of the table, by the id and the sequence number of the snapshot that they are written with.
Properties = Callable[[int, int], Mapping[str, str]]


class IcebergTable:
    """One table, as of the last read.

    :param name: the catalog's, the namespace's and the table's, with dots
    :param properties: of the catalog
    """

    VERSION: ClassVar = "snapshot"
    #: The catalog has answered that it has not committed, this time.
    REFUSALS: ClassVar[tuple[type[Exception], ...]] = (CommitFailedException,)

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self._catalog_name, _, identifier = name.partition(".")
        self._identifier: Final = tuple(identifier.split("."))
        self._properties: Final = dict(properties)
        self._catalog: Catalog | None = None
        self._table: Table | None = None
        self._files: IcebergFiles | None = None
        self._indexed_snapshots: tuple[TableMetadata | None, dict[int, Snapshot]] = (None, {})

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata as of the last read."""
        return self._opened.metadata

    @property
    def version(self) -> int | None:
        """The id of main's newest snapshot, None when there is none; as of the last read."""
        return self.metadata.current_snapshot_id

    @property
    def io(self) -> FileIO:
        """Pyiceberg's own client of the store."""
        return self._opened.io

    @property
    def files(self) -> IcebergFiles:
        """The store of the table."""
        properties = dict(self.io.properties)
        if self._files is None or self._files.properties != properties:  # a catalog may give new credentials
            self._files = IcebergFiles(properties)
        return self._files

    @property
    def data_location(self) -> str:
        """Where the table's data files go."""
        return str(self.metadata.properties.get(_DATA, f"{self.metadata.location}/data")).rstrip("/")

    def open(self) -> bool:
        """Look at the newest metadata; returns whether there is a table.

        :raises RefusedError: when the catalog's properties make none
        """
        if self._catalog is None:
            self._catalog = self._load_catalog()
        self._table = None
        try:
            with self._reaching_hdfs():
                self._table = self._catalog.load_table(self._identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return False
        return True

    def refresh(self) -> None:
        """Look at the newest metadata of the table, which has to be there.

        :raises NoSuchTableError: when it is not
        """
        catalog = required(self._catalog, "a table is opened before it is looked at again")
        self._table = catalog.load_table(self._identifier)

    def has_passed(self, version: int | None) -> bool:
        """Tell whether main's newest snapshot is another than this: on this one nobody writes any more."""
        return self.version != version

    def keep_after(self, version: int | None) -> None:
        """Make the last write outlive a loss of power."""
        self.files.keep_metadata(self._opened)

    def create(self, schema: Schema, spec: PartitionSpec) -> None:
        """Create the table, and its namespace; fails when another process has.

        :raises RefusedError: when pyiceberg can't write where it would be
        """
        catalog = required(self._catalog, "a table is looked for before it is made")
        if not catalog.namespace_exists(self._identifier[:-1]):
            with suppress(NamespaceAlreadyExistsError):  # made meanwhile
                catalog.create_namespace(self._identifier[:-1])
        if isinstance(catalog, MetastoreCatalog):  # a server tells the others
            namespace = catalog.namespace_to_string(self._identifier[:-1])
            location = catalog._resolve_table_location(None, namespace, self._identifier[-1])
            check_location(location, self._where)
            if (metadata_folder := IcebergFiles(catalog.properties).local(f"{location}/metadata")) is not None:
                make_directory(metadata_folder)  # pyiceberg does not wait for disks
        with self._reaching_hdfs():
            catalog.create_table(self._identifier, schema, partition_spec=spec)

    def history(self) -> Iterator[Snapshot]:
        """Yield main's snapshots from the newest back, as far as they are kept and follow each other."""
        metadata, snapshots = self._indexed_snapshots
        if metadata is not self.metadata:
            snapshots = {snapshot.snapshot_id: snapshot for snapshot in self.metadata.snapshots}
            self._indexed_snapshots = (self.metadata, snapshots)
        snapshot_id = self.metadata.current_snapshot_id
        while snapshot_id is not None and (snapshot := snapshots.get(snapshot_id)) is not None:
            yield snapshot
            snapshot_id = snapshot.parent_snapshot_id

    def append(
        self,
        files: Sequence[DataFile],
        summary: Mapping[str, str],
        properties: Properties,
        removed: Sequence[DataFile] = (),
        changes_rows: bool = True,
    ) -> None:
        """Write the snapshot after the one last read; it fails when there is another. Nobody knows when it fails.

        :param files: what it adds to the table
        :param summary: its summary
        :param properties: of the table, which become visible with it
        :param removed: files of the snapshot last read that it takes out
        :param changes_rows: whether the table has other rows then; if not, readers of its changes skip it
        """
        draft = _Draft(self._opened)
        # An upsert that replaces nothing is an append, also to readers of changes.
        kind, operation = (_Overwrite, Operation.OVERWRITE) if removed else (_Append, Operation.APPEND)
        snapshot = kind(operation, draft, self.io, snapshot_properties=dict(summary))
        for file in removed:
            snapshot.delete_data_file(file)
        for file in files:
            snapshot.append_data_file(file)
        snapshot.commit()
        updates = draft._updates if changes_rows else [_with_same_rows(update) for update in draft._updates]
        new_properties = properties(snapshot.snapshot_id, self.metadata.next_sequence_number())
        self._commit((*updates, SetPropertiesUpdate(updates=dict(new_properties))), draft._requirements)

    def add_columns(self, columns: Sequence[NewColumn]) -> None:
        """Add columns, if main has no other snapshot than the one last read; as :meth:`append`."""
        draft = _Draft(self._opened)
        update = draft.update_schema()
        for column in columns:
            update.add_column((column.name,), column.type)  # a text with a dot would be a path
        update.commit()
        self._commit(draft._updates, (*draft._requirements, self._unmoved))

    def expire(self, snapshots: Sequence[int]) -> None:
        """Forget snapshots, if main has no other one than the one last read; as :meth:`append`. No file goes."""
        self._commit((RemoveSnapshotsUpdate(snapshot_ids=list(snapshots)),), (self._unmoved,))  # type: ignore[call-arg]

    def close(self) -> None:
        """Close the catalog's connections."""
        if self._catalog is not None:
            self._catalog.close()

    @property
    def _where(self) -> str:
        return f"table {'.'.join((self._catalog_name, *self._identifier))}"

    def _reaching_hdfs(self) -> AbstractContextManager[None]:
        return reaching_hdfs(self._where)

    def _load_catalog(self) -> Catalog:
        try:
            return _incremental(load_catalog(self._catalog_name, **self._properties))
        except (ValueError, ImportError, NotInstalledError) as error:
            # Pyiceberg puts all properties into its message.
            names = ", ".join(sorted(self._properties)) or "none"
            raise RefusedError(
                f"catalog {self._catalog_name!r} can't be opened ({type(error).__name__}). Type and uri have to "
                f"be in catalog_properties, which has {names}, or in pyiceberg's configuration; and what pyiceberg "
                "needs for that type has to be installed"
            ) from None

    def _commit(self, updates: Sequence[TableUpdate], requirements: Sequence[TableRequirement]) -> None:
        # What pyiceberg's own commit does once for each try; it would try again, and delete.
        table = self._opened
        table._do_commit(
            updates=tuple(updates), requirements=(*requirements, AssertTableUUID(uuid=table.metadata.table_uuid))
        )

    @property
    def _unmoved(self) -> TableRequirement:
        return AssertRefSnapshotId(ref=_MAIN, snapshot_id=self.version)  # type: ignore[call-arg]

    @property
    def _opened(self) -> Table:
        return required(self._table, "a table is opened before it is asked")


def _incremental(catalog: Catalog) -> Catalog:
    """Return a SQL catalog as one with commits that grow less with the snapshots; other catalogs as they are."""
    if catalog.__class__.__module__ != "pyiceberg.catalog.sql":  # which can't be imported without its extra
        return catalog
    from airflow_provider_exactlyonce.streaming.sinks.iceberg.sql_catalog import IncrementalSqlCatalog

    catalog.close()
    return IncrementalSqlCatalog(catalog.name, **catalog.properties)


def is_live(manifest: ManifestFile) -> bool:
    """Tell whether a manifest names files that the table has, and not only some that were taken out."""
    return manifest.has_added_files() or manifest.has_existing_files()


def _live_files(manifest: ManifestFile) -> int:
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _with_same_rows(update: TableUpdate) -> TableUpdate:
    """Return an overwriting snapshot as a replacing one, which readers of changes pass over; pyiceberg writes none."""
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.summary is None:
        return update
    summary = Summary(operation=Operation.REPLACE, **update.snapshot.summary.additional_properties)
    return AddSnapshotUpdate(snapshot=update.snapshot.model_copy(update={"summary": summary}))


class _Append(_MergeAppendFiles):
    """An append that merges manifests of few files; pyiceberg's writes the large one of a table again each time.

    Nor does it merge those of a partitioning whose column was dropped: their type is not known any more.
    """

    @override
    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        columns, specs = self.schema(), self._transaction.table_metadata.specs()
        unwritable = {key for key, spec in specs.items() if first_dropped(spec, columns) is not None}
        kept: list[ManifestFile] = []
        mergeable: list[ManifestFile] = []
        for manifest in manifests:
            is_kept = _live_files(manifest) >= FULL_MANIFEST or manifest.partition_spec_id in unwritable
            (kept if is_kept else mergeable).append(manifest)
        return [*super()._process_manifests(mergeable), *kept]


class _Overwrite(_OverwriteFiles, _Append):
    """An overwrite that merges manifests as an append does, and drops those that name nothing; pyiceberg's keeps all.

    A sink that takes files out with each batch would leave two more manifests behind each time, and each is read again
    with every batch.
    """

    @override
    def _existing_manifests(self) -> list[ManifestFile]:
        return [manifest for manifest in super()._existing_manifests() if is_live(manifest)]


class _Draft(Transaction):
    """Updates that are staged here, and committed elsewhere."""

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        properties = {_MERGE: "true", **table.metadata.properties}
        self._metadata: Final = table.metadata.model_copy(update={"properties": properties})

    @property
    @override
    def table_metadata(self) -> TableMetadata:
        # The base class copies all of it at each look, with every snapshot; nothing here builds on a staged update.
        return self._metadata

"""The files of a table beside its metadata. Names are locations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.tables.iceberg_store import IcebergStore

if TYPE_CHECKING:
    from pyiceberg.table import Table


class IcebergFiles(TableFiles):
    """The store that a table is in, by the properties that pyiceberg has for it.

    :param properties: of pyiceberg's client
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.properties: Final = properties
        self._store: Final = IcebergStore(properties)

    @override
    def local(self, name: str) -> Path | None:
        path = self._store.local(name)
        return None if path is None else Path(path)

    @override
    def remote(self, name: str) -> tuple[Any, str]:
        return self._store.system(name)

    def keep_metadata(self, table: Table) -> None:
        """Flush a commit's metadata, so that it outlives a loss of power; pyiceberg does not wait for disks."""
        snapshot = table.metadata.current_snapshot()
        if self.local(table.metadata_location) is None:
            return
        self.keep(table.metadata_location)
        if snapshot is not None:
            self.keep(snapshot.manifest_list)
            for manifest in snapshot.manifests(table.io):
                if manifest.added_snapshot_id == snapshot.snapshot_id:
                    self.keep(manifest.manifest_path)

"""Reads the manifests of a table's newest snapshot: files with rows, and files of deleted rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable, is_live

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile


def current_files(table: IcebergTable) -> Iterator[DataFile]:
    """Yield the files with rows of main's newest snapshot, as the table was when it was last looked at."""
    for manifest in _manifests(table, ManifestContent.DATA):
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry.data_file


def has_row_deletes(table: IcebergTable) -> bool:
    """Tell whether that snapshot has rows that are deleted beside their files, as merge on read does it."""
    return any(map(is_live, _manifests(table, ManifestContent.DELETES)))


def _manifests(table: IcebergTable, content: ManifestContent) -> list[ManifestFile]:
    snapshot = table.metadata.current_snapshot()
    manifests = snapshot.manifests(table.io) if snapshot is not None else []
    return [manifest for manifest in manifests if manifest.content == content]

"""An Iceberg table in a SQL catalog, and what other writers do to it."""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import LongType, NestedField, StringType
from typing_extensions import override

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files
from airflow_provider_exactlyonce.tables.iceberg_log import IcebergTableLog
from tests.iceberg_reader import newest_metadata, read_iceberg
from tests.integration.streaming.sinks.lake import PIPELINE, Lake

NAME: Final = "shop.events"
LONG: Final = NestedField(1, "id", LongType(), required=False)
TEXT: Final = NestedField(2, "k", StringType(), required=False)


def catalog_in(folder: Path) -> dict[str, str]:
    """Return the properties of a SQL catalog."""
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}


@contextmanager
def _matching_nothing() -> Iterator[None]:
    """Let a change be none; pyiceberg warns of it."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Delete operation did not match any records")
        yield


class IcebergLake(Lake):
    """A folder with a catalog, and with the warehouse of its table."""

    WRITER = (Table, "_do_commit")
    REFUSAL = CommitFailedException
    CONFLICTS = (CommitFailedException, ValidationException)

    def __init__(self, folder: Path) -> None:
        self.folder, self.properties, self.name = folder, catalog_in(folder), NAME

    @property
    def catalog(self) -> Catalog:
        return load_catalog("lake", **self.properties)

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.name)

    @property
    def opened(self) -> IcebergTable:
        """The table as the sink has it, looked at now."""
        table = IcebergTable(f"lake.{self.name}", self.properties)
        assert table.open()
        return table

    @override
    def claim_as_in_0_1_0(self, run: int) -> None:
        table = self.opened
        table.append([], *SinkLedger(table, PIPELINE, "lake", "the table").claim_of(run, None))

    @override
    def handle(self) -> Table:
        return self.table

    @override
    def sink(self, **changed: Any) -> IcebergSink:
        return IcebergSink(
            **{"table": f"lake.{self.name}", "name": "lake", "catalog_properties": self.properties, **changed}
        )

    @override
    def log(self) -> IcebergTableLog:
        return IcebergTableLog(f"lake.{self.name}", self.properties)

    @override
    def read(self) -> list[dict[str, Any]]:
        return read_iceberg(newest_metadata(self.folder / "catalog.db", self.name))

    @override
    def read_by_library(self) -> list[dict[str, Any]]:
        return self.table.scan().to_arrow().to_pylist()  # type: ignore[no-any-return]

    @override
    def files(self) -> list[Path]:
        return sorted((self.folder / "warehouse").rglob("*.parquet"))

    @override
    def named_files(self) -> set[Path]:
        table = self.table
        manifests = (manifest for snapshot in table.snapshots() for manifest in snapshot.manifests(table.io))
        entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
        return {Path(entry.data_file.file_path.removeprefix("file://")) for entry in entries}

    @override
    def current_files(self) -> set[Path]:
        return {Path(file.file_path.removeprefix("file://")) for file in current_files(self.opened)}

    @override
    def notes(self) -> list[Path]:
        return sorted((self.folder / "warehouse").rglob("_exactlyonce/*/*/*.json"))

    @override
    def insert(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.table.append(pa.Table.from_pylist(list(rows), self.table.schema().as_arrow()))

    @override
    def versions(self) -> int:
        return len(self.table.snapshots())

    @override
    def newest_version(self) -> str:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return str(snapshot.snapshot_id)

    @override
    def widen(self) -> None:
        with self.table.update_schema() as update:
            update.add_column("more", StringType())

    @override
    def compact(self) -> None:
        table = self.table
        with _matching_nothing():
            table.overwrite(table.scan().to_arrow())

    @override
    def delete(self, condition: str) -> None:
        with _matching_nothing():
            self.table.delete(condition)

    @override
    def expire(self) -> None:
        self.table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()

    @override
    def maintain(self) -> None:
        self.expire()

    @override
    def keep(self) -> Callable[[], object]:
        snapshot = self.table.current_snapshot()
        assert snapshot is not None
        return lambda: self.table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()

    def create(self, *fields: NestedField, **more: Any) -> Table:
        self.catalog.create_namespace_if_not_exists("shop")
        return self.catalog.create_table(self.name, Schema(*fields), **more)

    def find(self, **scan: Any) -> list[dict[str, Any]]:
        """Return the rows that pyiceberg finds."""
        return sorted(self.table.scan(**scan).to_arrow().to_pylist(), key=lambda row: row["id"])

    def current_data_files(self) -> list[DataFile]:
        """Return what the newest snapshot says of its files."""
        return list(current_files(self.opened))

    def snapshot_of(self, commit: int) -> int:
        (snapshot,) = (
            snapshot.snapshot_id
            for snapshot in self.table.snapshots()
            if snapshot.summary is not None
            and snapshot.summary.additional_properties.get("exactlyonce.commit") == str(commit)
        )
        return snapshot

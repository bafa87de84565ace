"""The Iceberg sink passes what every sink has to, with calls to the catalog and to the table's files that fail."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql.types import LongType, StructType, VariantType

from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.testing import sink_crashes
from tests import faulty_targets
from tests.clean_forks import Forks, clean_forks
from tests.integration.streaming.sinks.iceberg.lake import catalog_in
from tests.integration.streaming.sinks.over_others import Compactions, OverOthers, TableConformance


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with clean_forks(__name__) as forks:
        yield forks


def table_of(sink: IcebergSink) -> Table | None:
    catalog, _, name = sink.table.partition(".")
    try:
        return load_catalog(catalog, **sink.catalog_properties).load_table(name)
    except NoSuchTableError:
        return None


def rows_of(sink: IcebergSink) -> list[dict[str, Any]]:
    table = table_of(sink)
    return table.scan().to_arrow().to_pylist() if table is not None else []


def unreferenced(sink: IcebergSink, below: Path) -> list[str]:
    """Return all data files that the table's newest snapshot does not have."""
    table = table_of(sink)
    known = {task.file.file_path for task in table.scan().plan_files()} if table is not None else set()
    return [str(file) for file in below.rglob("*.parquet") if f"file://{file}" not in known]


def named_files(sink: IcebergSink) -> set[str]:
    """Return the files that a snapshot of the table names."""
    table = table_of(sink)
    if table is None:
        return set()
    manifests = (manifest for snapshot in table.snapshots() for manifest in snapshot.manifests(table.io))
    entries = (entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io))
    return {entry.data_file.file_path.removeprefix("file://") for entry in entries}


def write_old(sink: IcebergSink, rows: Sequence[Mapping[str, Any]]) -> None:
    """Make a sink's table, with rows of somebody else."""
    catalog, _, name = sink.table.partition(".")
    opened = load_catalog(catalog, **sink.catalog_properties)
    data = pa.Table.from_pylist(list(rows))
    opened.create_namespace_if_not_exists("shop")
    table = opened.create_table(name, data.schema)
    if sink.partition_by:
        with table.update_spec() as spec:
            spec.add_identity(*sink.partition_by)
    table.append(data)


def copy_database(path: Path, over: Path) -> None:
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(over)) as target:
        source.backup(target)


class TestIcebergSink(TableConformance):
    kills = 2
    faults = 1
    secrets = ("hunter2",)
    refused_columns = (StructType().add("id", LongType()).add("k", VariantType()), "'k'")
    mode: Mapping[str, Any] = {"partition_by": ["k"]}

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch, forks: Forks) -> None:
        monkeypatch.setattr(sink_crashes, "forked", forks)
        faulty_targets.iceberg(monkeypatch)

    def make_sink(self, folder: Path) -> IcebergSink:
        properties = {**catalog_in(folder), "s3.secret-access-key": "hunter2"}
        return IcebergSink("lake.shop.events", name="lake", catalog_properties=properties, **self.mode)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return rows_of(sink)

    def named_files(self, sink: Any) -> set[str]:
        return named_files(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        warehouse = Path(sink.catalog_properties["warehouse"].removeprefix("file://"))
        return [name for name in unreferenced(sink, warehouse) if "-other/" not in name]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = folder / "backup"
        backup.mkdir()
        copy_database(folder / "catalog.db", backup / "catalog.db")
        shutil.copytree(folder / "warehouse", backup / "warehouse")

        def put_back() -> None:
            copy_database(backup / "catalog.db", folder / "catalog.db")  # for who has it open, too
            shutil.rmtree(folder / "warehouse")
            shutil.move(backup / "warehouse", folder / "warehouse")

        return put_back


@pytest.mark.slow
class TestIcebergCompactions(Compactions, TestIcebergSink):
    """Its table is made by the sink."""


class OverOthersInIceberg(OverOthers, TestIcebergSink):
    def write_old(self, sink: Any, rows: Sequence[Mapping[str, Any]]) -> None:
        write_old(sink, rows)


@pytest.mark.slow
class TestIcebergUpserts(OverOthersInIceberg):
    mode: Mapping[str, Any] = {"mode": "upsert", "key": "id", "partition_by": ["k"]}


@pytest.mark.slow
class TestIcebergPartitions(OverOthersInIceberg):
    mode: Mapping[str, Any] = {"mode": "overwrite partitions", "partition_by": ["p"]}


del Compactions, OverOthers, OverOthersInIceberg, TableConformance  # pytest would take them for tests of their own

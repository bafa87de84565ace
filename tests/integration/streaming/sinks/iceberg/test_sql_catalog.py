"""What the sink's SQL catalog remembers is what is in the table, and its commits make only what is new.

When a newer pyiceberg breaks one of these, ``sql_catalog.py`` of the sink follows ``SqlCatalog`` and
``MetastoreCatalog._write_metadata``, or goes: all it does is to spare work.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.serializers import FromInputFile, ToOutputFile
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StringType

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import NewColumn
from airflow_provider_exactlyonce.streaming.sinks.iceberg.sql_catalog import IncrementalSqlCatalog
from tests.integration.streaming.sinks.iceberg.lake import LONG, NAME, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import Live, rows

BEFORE = 5  # snapshots


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    lake = IcebergLake(tmp_path)
    lake.create(LONG, TEXT)
    lake.write(0, 3)
    return lake


@pytest.fixture
def table(lake: IcebergLake) -> IcebergTable:
    table = lake.opened
    for number in range(BEFORE):
        append(table, number)
    return table


def append(table: IcebergTable, number: int) -> None:
    table.append([], {"number": str(number)}, lambda snapshot, sequence: {"ledger": f"{snapshot} {sequence}"})


def expire(table: IcebergTable) -> None:
    table.expire([snapshot.snapshot_id for snapshot in table.history()][2:])


def replace_file(table: IcebergTable) -> None:
    snapshot = table.metadata.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    (file,) = (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
    table.append([file], {}, lambda snapshot, sequence: {}, [file], changes_rows=False)


WRITES: dict[str, Callable[[IcebergTable], None]] = {
    "append": lambda table: append(table, BEFORE),
    "replace": replace_file,
    "expire": expire,
    "new column": lambda table: table.add_columns([NewColumn("more", StringType())]),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_remembered_is_what_pyiceberg_reads(
    lake: IcebergLake, table: IcebergTable, write: Callable[[IcebergTable], None]
) -> None:
    for then in (write, lambda table: append(table, BEFORE + 1)):
        then(table)
        table.refresh()
        assert table.metadata == lake.table.metadata


@pytest.mark.parametrize("version", ["1", "2"])
def test_what_is_written_is_what_pyiceberg_writes(tmp_path: Path, version: str) -> None:
    lake = IcebergLake(tmp_path)
    lake.create(LONG, TEXT, properties={"format-version": version})
    table = lake.opened
    for number in range(BEFORE):
        append(table, number)
        table.refresh()
    file = lake.table.io.new_output(str(tmp_path / "own.metadata.json"))
    ToOutputFile.table_metadata(table.metadata, file)
    location = Path(lake.table.metadata_location.removeprefix("file://"))
    assert json.loads(location.read_bytes()) == json.loads((tmp_path / "own.metadata.json").read_bytes())
    assert len(table.metadata.snapshots) == BEFORE
    assert table.metadata.format_version == int(version)


def test_a_commit_reads_copies_and_encodes_no_snapshot_of_before(
    lake: IcebergLake, table: IcebergTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(10, 1))
    work: list[str] = []

    def counted(owner: Any, name: str) -> None:
        original = getattr(owner, name)

        def count(*given: Any, **more: Any) -> Any:
            work.append(name)
            return original(*given, **more)

        monkeypatch.setattr(owner, name, staticmethod(count) if owner is FromInputFile else count)

    counted(FromInputFile, "table_metadata")
    counted(Snapshot, "__deepcopy__")
    counted(Snapshot, "model_dump_json")
    counted(Snapshot, "__init__")
    for number in range(3):
        live.commit(rows(20 + number, 1))
    assert work == ["__init__", "model_dump_json"] * 3, "the new snapshot is made and encoded"


def test_what_others_have_written_is_read(lake: IcebergLake, table: IcebergTable) -> None:
    before = table.metadata
    lake.write(10, 1)
    assert table.metadata is before
    with pytest.raises(CommitFailedException):
        append(table, BEFORE)
    table.refresh()
    assert table.metadata == lake.table.metadata
    append(table, BEFORE)
    assert lake.ids() == [0, 1, 2, 10]


def test_nothing_is_remembered_of_a_write_that_was_refused(
    lake: IcebergLake, table: IcebergTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = IncrementalSqlCatalog._write_metadata

    def write_and_fail(*given: Any, **more: Any) -> None:
        write(*given, **more)
        raise CommitFailedException("the file of metadata is written, and the catalog was not asked")

    with monkeypatch.context() as patched:
        patched.setattr(IncrementalSqlCatalog, "_write_metadata", write_and_fail)
        with pytest.raises(CommitFailedException):
            append(table, BEFORE)
    table.refresh()
    assert len(table.metadata.snapshots) == BEFORE + 1
    append(table, BEFORE)
    table.refresh()
    assert table.metadata == lake.table.metadata
    assert len(table.metadata.snapshots) == BEFORE + 2


ROW = pa.table({"id": [1], "k": ["a"]})


@pytest.fixture
def catalog(lake: IcebergLake) -> Iterator[IncrementalSqlCatalog]:
    catalog = IncrementalSqlCatalog("lake", **lake.properties)
    yield catalog
    catalog.close()


def check_append(catalog: IncrementalSqlCatalog, lake: IcebergLake, name: str) -> None:
    """Append, and compare what is remembered with what pyiceberg's own catalog reads."""
    table = catalog.load_table(name)
    table.append(ROW)
    remembered, read = catalog.load_table(name), lake.catalog.load_table(name)
    assert remembered.name() == read.name()
    assert remembered.metadata == read.metadata


def test_tables_in_turns_are_not_taken_for_each_other(lake: IcebergLake, catalog: IncrementalSqlCatalog) -> None:
    names = (NAME, "shop.other")
    catalog.create_table(names[1], lake.table.schema())
    for _ in range(3):
        for name in names:
            check_append(catalog, lake, name)
    assert [len(lake.catalog.load_table(name).snapshots()) for name in names] == [4, 3]


@pytest.mark.parametrize("by_others", [False, True])
def test_a_table_that_is_made_anew_has_nothing_of_the_one_before(
    lake: IcebergLake, catalog: IncrementalSqlCatalog, by_others: bool
) -> None:
    check_append(catalog, lake, NAME)
    changing = lake.catalog if by_others else catalog
    changing.drop_table(NAME)
    changing.create_table(NAME, Schema(LONG, TEXT))
    assert catalog.load_table(NAME).snapshots() == []
    check_append(catalog, lake, NAME)
    assert len(lake.table.snapshots()) == 1


@pytest.mark.parametrize("by_others", [False, True])
def test_a_table_that_is_renamed_keeps_its_snapshots(
    lake: IcebergLake, catalog: IncrementalSqlCatalog, by_others: bool
) -> None:
    check_append(catalog, lake, NAME)
    (lake.catalog if by_others else catalog).rename_table(NAME, "shop.renamed")
    check_append(catalog, lake, "shop.renamed")
    assert len(lake.catalog.load_table("shop.renamed").snapshots()) == 3
    with pytest.raises(NoSuchTableError):
        catalog.load_table(NAME)

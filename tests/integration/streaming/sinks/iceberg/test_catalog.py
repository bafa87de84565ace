"""What the sink uses of pyiceberg that is private does what its own commit does, but for retry and removal.

When a newer pyiceberg breaks one of these, ``catalog.py`` of the sink is what has to follow, and nothing else: compare
its ``append`` with ``_SnapshotProducer._commit`` and ``Transaction.commit_transaction``, and its ``_Overwrite`` with
``_OverwriteFiles`` and ``_MergeAppendFiles`` there. Then the tests of protocol, upserts and conformance have to pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableRequirement, TableUpdate

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake

Committed = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    lake = IcebergLake(tmp_path)
    lake.create(LONG, TEXT)
    lake.write(0, 3)
    return lake


@pytest.fixture
def table(lake: IcebergLake) -> IcebergTable:
    return lake.opened


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[Committed]:
    """Note what is committed instead of doing it."""
    noted: list[Committed] = []

    def note(_: Table, updates: Any, requirements: Any) -> None:
        noted.append((updates, requirements))

    monkeypatch.setattr(Table, "_do_commit", note)
    return noted


def test_an_append_has_the_updates_and_requirements_of_pyicebergs_own(
    lake: IcebergLake, table: IcebergTable, committed: list[Committed]
) -> None:
    with lake.table.transaction() as transaction:
        with transaction.update_snapshot(snapshot_properties={"a": "b"}).merge_append():
            pass
        transaction.set_properties({"c": "d"})
    table.append([], {"a": "b"}, lambda snapshot, sequence: {"c": "d"})
    (own, own_requirements), (ours, our_requirements) = committed
    assert [type(update) for update in ours] == [type(update) for update in own]
    assert ours[-1] == own[-1]
    snapshots = [
        update.snapshot for updates, _ in committed for update in updates if isinstance(update, AddSnapshotUpdate)
    ]
    assert snapshots[0].summary == snapshots[1].summary
    assert snapshots[0].parent_snapshot_id == snapshots[1].parent_snapshot_id == table.version
    assert [update.ref_name for update in ours if isinstance(update, SetSnapshotRefUpdate)] == ["main"]
    assert sorted(map(str, our_requirements)) == sorted(map(str, own_requirements))


def test_an_overwrite_takes_out_and_adds_what_pyicebergs_own_does(
    lake: IcebergLake, table: IcebergTable, committed: list[Committed]
) -> None:
    lake_table = lake.table
    (removed,) = lake.current_data_files()
    rows = pa.Table.from_pylist([{"id": 7, "k": "new"}], lake_table.schema().as_arrow())
    (added,) = _dataframe_to_data_files(lake_table.metadata, rows, lake_table.io)
    with lake_table.transaction() as transaction:
        with transaction.update_snapshot(snapshot_properties={"a": "b"}).overwrite() as overwrite:
            overwrite.delete_data_file(removed)
            overwrite.append_data_file(added)
        transaction.set_properties({})
    table.append([added], {"a": "b"}, lambda snapshot, sequence: {}, [removed])
    told = [update.snapshot for updates, _ in committed for update in updates if isinstance(update, AddSnapshotUpdate)]
    assert told[0].summary == told[1].summary
    entries = [
        sorted(
            (entry.status.name, entry.data_file.file_path)
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        )
        for snapshot in told
    ]
    assert entries[0] == entries[1] == [("ADDED", added.file_path), ("DELETED", removed.file_path)]
    assert sorted(map(str, committed[0][1])) == sorted(map(str, committed[1][1]))


def test_an_append_names_the_snapshot_and_the_sequence_number_that_it_gets(
    lake: IcebergLake, table: IcebergTable
) -> None:
    assigned: list[tuple[int, int]] = []

    def properties(snapshot: int, sequence: int) -> dict[str, str]:
        assigned.append((snapshot, sequence))
        return {}

    table.append([], {}, properties)
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    assert assigned == [(snapshot.snapshot_id, snapshot.sequence_number)]
    assert table.version == snapshot.snapshot_id, "it is looked at as it is now"


def test_a_write_that_is_refused_is_not_repeated_and_removes_nothing(lake: IcebergLake, table: IcebergTable) -> None:
    lake.write(10, 1)
    before = {file for file in lake.folder.rglob("*") if file.is_file()}
    with pytest.raises(CommitFailedException) as refused:
        table.append([], {}, lambda snapshot, sequence: {})
    assert isinstance(refused.value, table.REFUSALS)
    assert before < {file for file in lake.folder.rglob("*") if file.is_file()}, "its manifest list stays"
    assert lake.ids() == [0, 1, 2, 10]

"""What the sink uses of pyiceberg that is private does what its own commit does, but for retry and removal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.update import AddSnapshotUpdate, SetSnapshotRefUpdate, TableRequirement, TableUpdate

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable, is_refused
from tests.integration.streaming.sinks.iceberg.test_sink import LONG, NAME, TEXT, Lake

Committed = tuple[tuple[TableUpdate, ...], tuple[TableRequirement, ...]]


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    lake = Lake(tmp_path)
    lake.create(LONG, TEXT)
    lake.foreign(0, 3)
    return lake


@pytest.fixture
def table(lake: Lake) -> IcebergTable:
    table = IcebergTable(f"lake.{NAME}", lake.properties)
    assert table.open()
    return table


@pytest.fixture
def committed(monkeypatch: pytest.MonkeyPatch) -> list[Committed]:
    """Note what is committed instead of doing it."""
    noted: list[Committed] = []

    def note(_: Table, updates: Any, requirements: Any) -> None:
        noted.append((updates, requirements))

    monkeypatch.setattr(Table, "_do_commit", note)
    return noted


def test_an_append_has_the_updates_and_requirements_of_pyicebergs_own(
    lake: Lake, table: IcebergTable, committed: list[Committed]
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
    assert snapshots[0].parent_snapshot_id == snapshots[1].parent_snapshot_id == table.head
    assert [update.ref_name for update in ours if isinstance(update, SetSnapshotRefUpdate)] == ["main"]
    assert sorted(map(str, our_requirements)) == sorted(map(str, own_requirements))


def test_an_append_names_the_snapshot_and_the_sequence_number_that_it_gets(lake: Lake, table: IcebergTable) -> None:
    assigned: list[tuple[int, int]] = []

    def properties(snapshot: int, sequence: int) -> dict[str, str]:
        assigned.append((snapshot, sequence))
        return {}

    table.append([], {}, properties)
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    assert assigned == [(snapshot.snapshot_id, snapshot.sequence_number)]
    assert table.head == snapshot.snapshot_id, "it is looked at as it is now"


def test_a_write_that_is_refused_is_not_repeated_and_removes_nothing(lake: Lake, table: IcebergTable) -> None:
    lake.foreign(10, 1)
    before = {file for file in lake.folder.rglob("*") if file.is_file()}
    with pytest.raises(CommitFailedException) as refused:
        table.append([], {}, lambda snapshot, sequence: {})
    assert is_refused(refused.value)
    assert before < {file for file in lake.folder.rglob("*") if file.is_file()}, "its manifest list stays"
    assert lake.ids() == [0, 1, 2, 10]

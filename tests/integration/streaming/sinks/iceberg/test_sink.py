"""Other writers of an Iceberg table, whose changes a commit follows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.types import NestedField, StringType

from airflow_provider_exactlyonce.exceptions import (
    CommitUnknownError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.iceberg import catalog
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import Live, rows


def change_k(lake: IcebergLake, **changed: Any) -> None:
    with lake.table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("k", **changed)


def test_whatever_others_write_meanwhile_a_commit_follows_it(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, NestedField(2, "k", StringType(), required=True))
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 5))
    live.commit(rows(5, 5))
    changes: list[Callable[[], object]] = [
        lambda: lake.write(1000, 3),
        lambda: lake.compact(),
        lambda: lake.widen(),
        lambda: lake.table.transaction().set_properties({"owner": "me"}).commit_transaction(),
        lambda: lake.table.delete("id >= 1000"),
        lambda: lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "t").commit(),  # type: ignore[union-attr]
        lambda: lake.expire(),
        lambda: lake.write(2000, 1),
        lambda: change_k(lake, doc="a comment"),
        lambda: change_k(lake, required=False),
    ]
    for number, others_change in enumerate(changes):
        entry = live.stage(rows(100 * (number + 1), 2))
        others_change()
        live.decide(entry)
    expected = [*range(10), *(100 * (number + 1) + offset for number in range(10) for offset in range(2)), 2000]
    assert lake.ids() == sorted(expected)
    assert Live(lake.sink(), tmp_path, run=2).number == 12


@pytest.mark.parametrize("change", ["rename", "replace", "require", "partition"])
def test_a_table_that_is_changed_so_that_the_files_do_not_fit_stops_the_pipeline(
    lake: IcebergLake, tmp_path: Path, change: str
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    entry = live.stage(rows(2, 2))
    if change == "rename":
        with lake.table.update_schema() as update:
            update.rename_column("k", "key")
    elif change == "replace":
        with lake.table.update_schema(allow_incompatible_changes=True) as update:
            update.delete_column("k")
        with lake.table.update_schema() as update:
            update.add_column("k", StringType())
    elif change == "require":
        change_k(lake, required=True)
    else:
        with lake.table.update_spec() as spec:
            spec.add_identity("k")
    said = {
        "rename": "has no column 'k'",
        "replace": "has other columns or partitions than at the start",
        "require": "has other columns or partitions than at the start",
        "partition": r"is partitioned by \['k'\], and the sink declares partition_by=\[\]",
    }
    with pytest.raises(RefusedError, match=said[change]):
        live.committer.commit(entry)
    assert len(lake.ids()) == 2


def test_pipelines_and_others_that_write_at_the_same_time_neither_lose_nor_double(
    lake: IcebergLake, tmp_path: Path
) -> None:
    lives = [Live(lake.sink(), tmp_path, pipeline=f"p{number}") for number in range(3)]
    commits, failures = 6, []

    def write(number: int) -> None:
        live = lives[number]
        for batch in range(commits):
            entry = live.stage(rows(1000 * number + 10 * batch, 10))
            while live.number == batch:
                try:
                    live.decide(entry)
                except CommitUnknownError:  # SQLite was busy for too long: a claim tells
                    claimed = live.committer.claim(1)
                    live.number = claimed.commit if claimed else 0
                    entry = entry if live.number > batch else live.stage(rows(1000 * number + 10 * batch, 10))
                except Exception as error:
                    failures.append(error)
                    return

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(lives))]
    for thread in threads:
        thread.start()
    for number in range(3):
        lake.insist(partial(lake.write, 9000 + number, 1))
    for thread in threads:
        thread.join()
    assert failures == []
    ours = [1000 * number + offset for number in range(len(lives)) for offset in range(10 * commits)]
    assert lake.ids() == [*ours, 9000, 9001, 9002]


def test_manifests_are_merged_when_there_are_many(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT, properties={"commit.manifest.min-count-to-merge": "5"})
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(12)]
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None and len(snapshot.manifests(lake.table.io)) < 6
    assert lake.ids() == list(range(24))
    assert live.audit(entries) == []


def test_a_manifest_of_many_files_is_not_written_again(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "FULL_MANIFEST", 6)
    lake.create(LONG, TEXT, properties={"commit.manifest.min-count-to-merge": "3"})
    live, full, counts, compared = Live(lake.sink(), tmp_path), set[str](), list[int](), list[object]()

    def compare(manifest: ManifestFile, other: object) -> bool:
        compared.append(other)
        return manifest is other

    monkeypatch.setattr(ManifestFile, "__eq__", compare)
    for number in range(40):
        live.commit(rows(number, 1))
        snapshot = lake.table.current_snapshot()
        assert snapshot is not None
        manifests = {of.manifest_path: of for of in snapshot.manifests(lake.table.io)}
        assert full <= set(manifests)
        full |= {name for name, of in manifests.items() if (of.existing_files_count or 0) >= 6}
        counts.append(len(manifests) - len(full))
    assert len(full) > 4
    assert max(counts) <= 4
    assert compared == [], "a thousand full ones would be compared a million times"
    assert lake.ids() == list(range(40))

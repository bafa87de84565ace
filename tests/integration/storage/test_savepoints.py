"""Checkpoints and savepoints on any file system of a home: read where they lie, and copied there and back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention, Savepoints
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.storage.opening import store_of
from tests.unit.checkpoint import crafted


@pytest.fixture
def local(tmp_path: Path) -> Checkpoint:
    """Give a checkpoint on this machine."""
    return crafted.checkpoint(tmp_path / "local")


@pytest.fixture
def remote(local: Checkpoint, folder: Path) -> Any:
    """Give an empty folder of a file system; what this fixture's user does there goes by the store."""
    return folder


# The clients of object stores have deprecations of their own.
pytestmark = pytest.mark.filterwarnings("default")


def upload(checkpoint: Checkpoint, remote: Any) -> Checkpoint:
    for file in checkpoint.path.rglob("*"):
        if file.is_file():
            store_of(remote).copy(file, remote / str(file.relative_to(checkpoint.path)), of=store_of(file))
    return Checkpoint(remote)


def test_a_checkpoint_is_read_and_judged_where_it_lies(local: Checkpoint, remote: Any) -> None:
    there = upload(local, remote / "checkpoint")
    assert integrity.files_of(there, 2) == integrity.files_of(local, 2)
    assert integrity.newest_whole(there) == (2, [])
    (table,) = (file for file in (remote / "checkpoint/state/0/1/SSTs").iterdir() if file.name.startswith("000002"))
    table.write_bytes(b"torn")
    batch, defects = integrity.newest_whole(there)
    assert (batch, [defect.path for defect in defects]) == (1, [f"state/0/1/SSTs/{table.name}"])


def test_a_savepoint_goes_there_and_comes_back(tmp_path: Path, local: Checkpoint, remote: Any) -> None:
    store = Savepoints(remote / "savepoints")
    first, second = (store.take(local, batch, crafted.record(batch), None) for batch in (1, 2))
    assert list(store.list()) == [first, second]
    assert store.verify(second.id) == []
    store.pin(first.id)
    lineages.make(tmp_path / "back", store.checkpoint(second.id).path, second.files, Lineage(id=crafted.LINEAGE))
    assert integrity.newest_whole(Checkpoint(tmp_path / "back/checkpoint")) == (2, [])
    table = next(path for path in second.files if "000002-" in path)
    (store.checkpoint(second.id).path / table).write_bytes(b"torn")
    assert [defect.path for defect in store.verify(second.id)] == [table]
    assert store.newest_good()[0] == replace(first, pinned=True)
    store.delete(second.id)
    assert store_of(remote).read(remote / "savepoints" / second.id / "manifest.json") is None
    assert list(store.list()) == [replace(first, pinned=True)]
    assert set(store.clean_up(SavepointRetention(count=0, days=0))) <= {second.id}  # where an empty directory stays
    assert list(store.list()) == [replace(first, pinned=True)]


def test_a_savepoint_without_its_manifest_is_none(local: Checkpoint, remote: Any) -> None:
    store = Savepoints(remote / "savepoints")
    taken = store.take(local, 2, crafted.record(2), None)
    manifest = remote / "savepoints" / taken.id / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[: len(text) // 2])
    assert store.list() == []
    store_of(remote).delete(manifest)
    assert store.list() == []
    assert store.oldest_commit() == 3

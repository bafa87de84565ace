"""Savepoints of crafted checkpoints: what they hold, what damage is found, what is kept, and what a crash leaves."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce import failpoints, files, process_identity
from airflow_provider_exactlyonce.checkpoint import checksums, manifest
from airflow_provider_exactlyonce.checkpoint.job import JobDescription
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.manifest import Savepoint
from airflow_provider_exactlyonce.checkpoint.plan import QueryPlan, SourcePlan
from airflow_provider_exactlyonce.checkpoint.savepoints import SavepointRetention, Savepoints
from airflow_provider_exactlyonce.control import json_store
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.storage.local import LocalStore
from tests.unit.checkpoint import crafted

JOB = JobDescription(
    version="abc",
    job_hash="h",
    spark_version="4.2.0",
    output_mode="update",
    sources={"in": "{}"},
    sinks=("out",),
    result_schema='{"type":"struct"}',
)


@pytest.fixture
def made(tmp_path: Path) -> Checkpoint:
    return crafted.checkpoint(tmp_path / "checkpoint")


@pytest.fixture
def store(tmp_path: Path) -> Savepoints:
    return Savepoints(tmp_path / "savepoints")


def files_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list of the names of all files that are read from now on."""
    read: list[str] = []
    original = checksums.read

    def noted(file: Path, *like: Any) -> Any:
        read.append(file.name)
        return original(file, *like)

    monkeypatch.setattr(checksums, "read", noted)
    return read


def contents(checkpoint: Checkpoint) -> dict[str, bytes]:
    return {
        str(file.relative_to(checkpoint.path)): file.read_bytes()
        for file in checkpoint.path.rglob("*")
        if file.is_file()
    }


def test_a_savepoint_holds_the_batchs_files_and_says_what_it_is(made: Checkpoint, store: Savepoints) -> None:
    taken = store.take(made, 2, crafted.record(2, commit=40), JOB, label="before the upgrade", request="c0ffee")
    assert re.fullmatch("40-[0-9a-f]{8}-c0ffee", taken.id)
    assert store.list() == [taken] == [store.get(taken.id)]
    original = contents(made)
    assert contents(store.checkpoint(taken.id)) == {path: original[path] for path in taken.files}
    assert (taken.commit, taken.batch, taken.label, taken.pipeline) == (40, 2, "before the upgrade", "p")
    assert taken.source == {"in": {0: 30, 1: 15}}
    assert taken.sink == {"out": {0: 2}}
    assert (taken.state_backend, taken.state_format, taken.spark_version) == ("rocksdb", 2, "4.2.0")
    assert (taken.job_hash, taken.output_mode, taken.sinks) == ("h", "update", ("out",))
    assert (taken.source_schemas, taken.result_schema) == ({"in": "{}"}, '{"type":"struct"}')
    assert [(operator.name, operator.partitions) for operator in taken.operators] == [("stateStoreSave", 2)]
    assert taken.size == sum(len(original[path]) for path in taken.files)
    assert store.verify(taken.id) == []
    assert store.oldest_commit() == 40


def test_the_same_request_is_served_once(made: Checkpoint, store: Savepoints) -> None:
    first = store.take(made, 1, crafted.record(1), None, request="aa")
    assert store.take(made, 2, crafted.record(2), None, request="aa") == first
    assert len(store.list()) == 1


def before_the_manifest(monkeypatch: pytest.MonkeyPatch, meanwhile: Callable[[], object]) -> None:
    """Freeze who takes a savepoint once, right before its manifest, and let somebody else act."""
    acts = [meanwhile]

    def reach(step: str) -> None:
        if step == "before-savepoint-manifest" and acts:
            acts.pop()()

    monkeypatch.setattr(failpoints, "reach", reach)


def test_a_request_is_served_beside_a_frozen_process_that_serves_it_and_both_are_whole(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    others: list[Savepoint] = []
    record = crafted.record(2)
    before_the_manifest(monkeypatch, lambda: others.append(store.take(made, 2, record, None, request="aa")))
    taken = store.take(made, 2, record, None, request="aa")
    assert [store.verify(savepoint.id) for savepoint in (taken, *others)] == [[], []]
    assert len(store.list()) == 2
    assert store.take(made, 2, record, None, request="aa") in store.list()


def test_a_request_whose_process_died_on_another_machine_is_served_at_once(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die() -> None:
        raise InterruptedError

    with monkeypatch.context() as there:
        there.setattr(process_identity, "this_machine", lambda: "another")
        before_the_manifest(there, die)
        with pytest.raises(InterruptedError):
            store.take(made, 2, crafted.record(2), None, request="aa")
    assert (store.list(), store.leftovers()) == ([], [])
    taken = store.take(made, 2, crafted.record(2), None, request="aa")
    assert (store.list(), store.verify(taken.id)) == ([taken], [])


@pytest.mark.parametrize("done", [False, True])
def test_what_was_deleted_while_its_process_was_frozen_is_no_savepoint(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    older = store.take(made, 1, crafted.record(1), None)

    def delete() -> None:
        (name,) = set(os.listdir(store.directory)) - {older.id}
        os.utime(store.directory / name, (0, 0))
        with monkeypatch.context() as there:
            there.setattr(process_identity, "this_machine", lambda: "another")
            if not done:
                there.setattr(type(store._store), "remove", lambda kept, place: None)
            assert store.remove_leftovers() == [name]

    before_the_manifest(monkeypatch, delete)
    with pytest.raises(ExactlyOnceError, match=r"savepoint 3-.* in .* was deleted .* Ask again"):
        store.take(made, 2, crafted.record(2), None, request="aa")
    assert store.list() == [older]
    store.clean_up(SavepointRetention(count=1, days=0))
    assert os.listdir(store.directory) == [older.id]


def test_what_gets_its_manifest_before_it_is_marked_as_a_leftover_stays(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = store.take(made, 2, crafted.record(2), None)
    manifest, aside = store.directory / taken.id / "manifest.json", store.directory / taken.id / "aside"
    manifest.rename(aside)
    os.utime(store.directory / taken.id, (0, 0))
    assert store.leftovers() == [taken.id]
    before_it_is_written(monkeypatch, "deleting.json", lambda: aside.rename(manifest))
    assert store.remove_leftovers() == []
    assert (store.list(), store.verify(taken.id)) == ([taken], [])


def test_it_outlives_the_checkpoint_and_may_be_moved_and_renamed(
    made: Checkpoint, store: Savepoints, tmp_path: Path
) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    shutil.rmtree(made.path)
    (tmp_path / "elsewhere").mkdir()
    shutil.move(store.directory / taken.id, tmp_path / "elsewhere/mine")
    moved = Savepoints(tmp_path / "elsewhere")
    assert moved.list() == [replace(taken, id="mine")]
    assert moved.verify("mine") == []
    assert moved.oldest_commit() == 3


def test_a_change_of_any_saved_file_is_found_and_named(made: Checkpoint, store: Savepoints) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    for path in taken.files:
        file = store.checkpoint(taken.id).path / path
        data = file.read_bytes()
        for damage in (data[:-1], bytes([data[0] ^ 1]) + data[1:], data + b"x"):
            file.unlink()  # the original is the same file
            file.write_bytes(damage)
            assert [defect.path for defect in store.verify(taken.id)] in ([path], [path.removesuffix(".crc")]), path
        file.unlink()
        assert path in [defect.path for defect in store.verify(taken.id)]
        file.write_bytes(data)
    assert store.verify(taken.id) == []


def test_the_newest_good_one_is_found_past_damaged_ones(made: Checkpoint, store: Savepoints) -> None:
    good, bad = (store.take(made, batch, crafted.record(batch), JOB) for batch in (1, 2))
    table = next(path for path in bad.files if "000002-" in path)
    (store.checkpoint(bad.id).path / table).unlink()
    savepoint, wrong = store.newest_good()
    assert savepoint == good
    assert [defect.path for defect in wrong[bad.id]] == [table]


def test_a_batch_that_is_not_whole_is_refused_by_the_files_name(made: Checkpoint, store: Savepoints) -> None:
    (table,) = made.path.glob("state/0/1/SSTs/000002-*")
    table.unlink()
    with pytest.raises(RefusedError, match=f"{table.relative_to(made.path)} is missing"):
        store.take(made, 2, crafted.record(2), JOB)
    assert list(store.directory.iterdir() if store.directory.exists() else []) == []


def test_a_record_that_ends_elsewhere_in_the_source_is_refused(made: Checkpoint, store: Savepoints) -> None:
    with pytest.raises(RefusedError, match=r"ends at .* and commit 2 in the ledger at"):
        store.take(made, 2, crafted.record(1), JOB)
    assert list(store.directory.iterdir()) == []


def test_immutable_files_that_a_savepoint_has_summed_are_not_read_again(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.take(made, 1, crafted.record(1), JOB)
    read = files_read(monkeypatch)
    store.take(made, 2, crafted.record(2), JOB)
    tables = [name for name in read if name.endswith(".sst")]
    assert sorted(name[:6] for name in tables) == ["000002", "000002"]


def test_of_files_without_another_checksum_older_savepoints_are_asked_too(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.take(made, 1, crafted.record(1, commit=2), JOB)
    store.take(made, 0, crafted.record(0, commit=9), JOB)  # as after a restore: the newest lacks what an older one has
    read = files_read(monkeypatch)
    taken = store.take(made, 2, crafted.record(2, commit=10), JOB)
    assert sorted(name[:6] for name in read if name.endswith(".sst")) == ["000002", "000002"]
    assert store.verify(taken.id) == []


def test_without_hard_links_files_are_copied(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    linked = store.take(made, 2, crafted.record(2), JOB)
    (table,) = made.path.glob("state/0/0/SSTs/000000-*")
    relative = table.relative_to(made.path)
    assert (store.checkpoint(linked.id).path / relative).samefile(table)

    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(files, "_create", os.replace)
    flushed: list[Path] = []
    flush = LocalStore.flush

    def noting(store: LocalStore, places: Sequence[Path]) -> None:
        flushed.extend(places)
        flush(store, places)

    monkeypatch.setattr(LocalStore, "flush", noting)
    copied = store.take(made, 2, crafted.record(2), JOB)
    assert not (store.checkpoint(copied.id).path / relative).samefile(table)
    assert {store.checkpoint(copied.id).path / path for path in copied.files} <= set(flushed)
    assert store.verify(copied.id) == []
    assert copied.files == linked.files


def aged(store: Savepoints, savepoint: Savepoint, days: float) -> None:
    """Make a savepoint look older than it is."""
    store._write(replace(savepoint, created=savepoint.created - int(days * 86_400_000)))


def test_retention_keeps_the_newest_the_young_the_pinned_and_always_the_last(
    made: Checkpoint, store: Savepoints
) -> None:
    taken = [store.take(made, 2, crafted.record(2, commit=commit), JOB) for commit in range(1, 7)]
    for savepoint, days in zip(taken, (9, 8, 7, 6, 5, 4), strict=True):
        aged(store, savepoint, days)
    store.pin(taken[0].id)
    assert store.clean_up(SavepointRetention(count=3, days=7.5)) == [taken[1].id]
    assert store.clean_up(SavepointRetention(count=2, days=1)) == [taken[2].id, taken[3].id]
    assert store.clean_up(SavepointRetention(count=0, days=0)) == [taken[4].id]
    assert [savepoint.id for savepoint in store.list()] == [taken[0].id, taken[5].id]
    with pytest.raises(RefusedError, match="is pinned"):
        store.delete(taken[0].id)
    store.pin(taken[0].id, pinned=False)
    store.delete(taken[0].id)
    with pytest.raises(RefusedError, match=f"there are: {taken[5].id}"):
        store.get(taken[0].id)


@pytest.mark.parametrize("count", range(8))
def test_retention_lets_only_old_ones_go_that_have_as_many_newer_ones_as_it_keeps(
    made: Checkpoint, store: Savepoints, count: int
) -> None:
    taken = [store.take(made, 2, crafted.record(2, commit=commit), JOB) for commit in range(1, 6)]
    for savepoint in taken:
        aged(store, savepoint, 9)
    kept = max(count, 1)
    assert store.clean_up(SavepointRetention(count=count, days=1)) == [old.id for old in taken[: max(0, 5 - kept)]]


def before_it_is_written(monkeypatch: pytest.MonkeyPatch, name: str, meanwhile: Callable[[], object]) -> None:
    """Let somebody else act once, right before a document of this name is written."""
    write, acts = json_store.write, [meanwhile]

    def written(path: Path, *args: Any, **kwargs: Any) -> None:
        if path.name == name and acts:
            acts.pop()()
        write(path, *args, **kwargs)

    monkeypatch.setattr(json_store, "write", written)


def test_what_is_pinned_while_retention_looks_stays(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, last = (store.take(made, 2, crafted.record(2, commit=commit), JOB) for commit in (1, 2, 3))
    before_it_is_written(monkeypatch, "deleting.json", lambda: store.pin(first.id))
    assert store.clean_up(SavepointRetention(count=1, days=0)) == [second.id]
    before_it_is_written(monkeypatch, "deleting.json", lambda: store.pin(last.id))
    with pytest.raises(RefusedError, match=f"savepoint {last.id} is pinned"):
        store.delete(last.id)
    assert store.list() == [replace(first, pinned=True), replace(last, pinned=True)]
    assert store.verify(first.id) == []


def test_what_was_pinned_before_a_deletion_that_died_is_a_savepoint_again(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)

    def die(point: str) -> None:
        raise InterruptedError(point)

    before_it_is_written(monkeypatch, "deleting.json", lambda: store.pin(taken.id))
    monkeypatch.setattr(failpoints, "reach", die)
    with pytest.raises(InterruptedError):
        store.delete(taken.id)
    assert store.list() == []
    assert store.remove_leftovers() == []
    assert store.get(taken.id) == replace(taken, pinned=True)


def test_a_pin_that_comes_when_bytes_are_gone_brings_nothing_back(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    remove = type(store._store).remove

    def removed_in_part(kept: object, place: Path) -> None:
        next(place.rglob("*.crc")).unlink()
        manifest = place.parent / "manifest.json"
        manifest.write_text(manifest.read_text().replace('"pinned": false', '"pinned": true'))
        raise InterruptedError(place)

    monkeypatch.setattr(type(store._store), "remove", removed_in_part)
    with pytest.raises(InterruptedError):
        store.delete(taken.id)
    monkeypatch.setattr(type(store._store), "remove", remove)
    assert store.list() == []
    assert store.remove_leftovers() == [taken.id]
    assert os.listdir(store.directory) == []


@pytest.mark.parametrize("done", [False, True])
def test_a_pin_that_comes_too_late_is_refused_and_leaves_nothing(
    made: Checkpoint, store: Savepoints, monkeypatch: pytest.MonkeyPatch, *, done: bool
) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    mark = store.directory / taken.id / "deleting.json"
    before_it_is_written(monkeypatch, "manifest.json", lambda: store.delete(taken.id) if done else mark.touch())
    with pytest.raises(RefusedError, match=f"savepoint {taken.id} in {store.directory} is being deleted"):
        store.pin(taken.id)
    assert store.list() == []
    assert os.listdir(store.directory) == ([] if done else [taken.id])


def test_a_torn_manifest_is_no_savepoint_and_is_not_cleaned_up(made: Checkpoint, store: Savepoints) -> None:
    taken = store.take(made, 2, crafted.record(2), JOB)
    manifest = store.directory / taken.id / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"commit": 3', '"commit": 4'))
    assert store.list() == []
    with pytest.raises(RefusedError, match=f"the manifest of savepoint {taken.id}"):
        store.get(taken.id)
    assert store.clean_up(SavepointRetention(count=0, days=0)) == []
    assert manifest.exists()


def test_a_manifest_of_another_schema_is_refused(made: Checkpoint, store: Savepoints) -> None:
    body = manifest.encode(store.take(made, 2, crafted.record(2), JOB))
    assert manifest.decode(json.loads(json.dumps(body))) == store.list()[0]
    with pytest.raises(RefusedError, match="schema 9"):
        manifest.decode({**body, "schema": 9})


def test_what_the_job_computes_is_in_the_manifest_and_a_manifest_without_it_is_read(
    made: Checkpoint, store: Savepoints
) -> None:
    plan = QueryPlan(sources=(SourcePlan(topic="in", columns=("k string",)),), filters=("(in.k = 'x')",))
    job = replace(JOB, plan=plan)
    taken = store.take(made, 2, crafted.record(2), job)
    assert store.get(taken.id).plan == plan
    assert taken.job == job
    body = manifest.encode(taken)
    old = {**{name: body[name] for name in body if name != "plan"}, "schema": 1}
    assert manifest.decode(json.loads(json.dumps(old))) == replace(taken, plan=None)
    assert store.take(made, 1, crafted.record(1), None).job is None

"""What a restart goes on from when files of the checkpoint are damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.checkpoint.integrity import newest_whole
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.restart import RestartSource, decide, removals_for, repair_query_id
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.start_checks import replay_is_needed
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from tests.ledger_records import claim_record
from tests.unit.checkpoint import crafted

LINEAGE = Lineage(id=crafted.LINEAGE)


@pytest.fixture
def made(tmp_path: Path) -> Checkpoint:
    return crafted.checkpoint(tmp_path / "checkpoint", batches=5)


@pytest.fixture
def store(tmp_path: Path) -> Savepoints:
    return Savepoints(tmp_path / "savepoints")


def only(made: Checkpoint, pattern: str) -> Path:
    (file,) = made.path.glob(pattern)
    return file


def test_a_checkpoint_that_is_whole_is_gone_on_from_and_so_is_one_without_batches(
    made: Checkpoint, store: Savepoints, tmp_path: Path
) -> None:
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.batch, decision.damage) == (RestartSource.CHECKPOINT, 4, "")
    (tmp_path / "new").mkdir()
    for commit in (0, 1):
        decision = decide(Checkpoint(tmp_path / "new"), store, LINEAGE, commit)
        assert decision.source is RestartSource.CHECKPOINT


@pytest.mark.parametrize("pattern", ["commits/4", "offsets/4", "state/0/1/5_*.zip", "state/0/0/SSTs/000004-*.sst"])
def test_damage_to_the_newest_batch_lets_spark_run_it_again(made: Checkpoint, store: Savepoints, pattern: str) -> None:
    file = only(made, pattern)
    file.write_bytes(b"")
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.batch) == (RestartSource.NEWEST_AGAIN, 3)
    assert str(file.relative_to(made.path)) in decision.damage
    for remove in removals_for(made, decision):
        remove()
    assert (made.newest_commit(), file.exists()) == (3, False)
    assert newest_whole(made) == (3, [])


def with_state_names_that_repeat(made: Checkpoint) -> None:
    """Name state as checkpoint format 1 does: by its version alone."""
    for file in made.path.glob("commits/*"):
        body = json.loads(file.read_text().partition("\n")[2])
        del body["stateUniqueIds"]
        file.write_text("v1\n" + json.dumps(body))
    for file in made.path.glob("state/*/*/*_*.zip"):
        version = file.name.partition("_")[0]
        file.with_name(f"{file.name}.crc").rename(file.with_name(f"{version}.zip.crc"))
        file.rename(file.with_name(f"{version}.zip"))


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize(
    ("repeats", "commit", "source"),
    [
        (True, 4, RestartSource.NEWEST_AGAIN),
        (True, 5, RestartSource.OLDER_BATCH),
        (False, 5, RestartSource.NEWEST_AGAIN),
    ],
)
def test_the_newest_batch_runs_again_only_if_a_start_accepts_it(
    made: Checkpoint, store: Savepoints, repeats: bool, commit: int, source: RestartSource, *, saved: bool
) -> None:
    if saved:
        taken = store.take(made, 2, crafted.record(2), None)
    if repeats:
        with_state_names_that_repeat(made)
    only(made, "commits/4").unlink()  # power has failed after the batch's commit in Kafka: its state is there
    only(made, "state/0/1/4.zip" if repeats else "state/0/1/4_*.zip").write_bytes(b"torn")
    decision = decide(made, store, LINEAGE, commit)
    if source is RestartSource.OLDER_BATCH and saved:
        assert (decision.source, decision.savepoint) == (RestartSource.SAVEPOINT, taken)
        return
    assert (decision.source, decision.batch) == (source, 2)
    if source is RestartSource.NEWEST_AGAIN:
        for remove in removals_for(made, decision):
            remove()
        record = crafted.record(commit - 1)
        tail = LedgerTail(cluster_id="c", topic_id="t", end_offset=9, claim=claim_record(1), commit=record)
        assert replay_is_needed(made, LINEAGE, tail) is (commit == 5)


def test_damage_further_back_makes_an_older_batch_the_ground(made: Checkpoint, store: Savepoints) -> None:
    only(made, "state/0/0/SSTs/000003-*.sst").write_bytes(b"torn")
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.batch) == (RestartSource.OLDER_BATCH, 2)


def test_a_savepoint_is_preferred_to_a_batch_that_is_older(made: Checkpoint, store: Savepoints) -> None:
    older, newer = (store.take(made, batch, crafted.record(batch), None) for batch in (1, 3))
    only(made, "state/0/0/SSTs/000002-*.sst").unlink()
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.savepoint) == (RestartSource.SAVEPOINT, newer)
    store.delete(newer.id)
    store.delete(older.id)
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.batch) == (RestartSource.OLDER_BATCH, 1)


def test_without_a_whole_batch_the_newest_good_savepoint_is_the_ground(made: Checkpoint, store: Savepoints) -> None:
    good, bad = (store.take(made, batch, crafted.record(batch), None) for batch in (1, 3))
    table = next(path for path in bad.files if "000003-" in path)
    (store.checkpoint(bad.id).path / table).unlink()
    shutil.rmtree(made.path / "commits")
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.savepoint) == (RestartSource.SAVEPOINT, good)
    assert decision.damage == f"commits is missing or empty; savepoint {bad.id}: {table} is missing"


def test_state_that_was_there_is_missed_and_nothing_is_taken_for_an_empty_beginning(
    made: Checkpoint, store: Savepoints
) -> None:
    shutil.rmtree(made.path / "state")
    decision = decide(made, store, LINEAGE, 5)
    assert (decision.source, decision.damage) == (RestartSource.NOTHING, "state/0/_metadata is missing")
    shutil.rmtree(made.path)
    assert decide(made, store, LINEAGE, 5).source is RestartSource.NOTHING


@pytest.mark.parametrize("text", ["", '{"i', None])
def test_a_lost_query_id_is_written_again(made: Checkpoint, store: Savepoints, text: str | None) -> None:
    (made.path / ".metadata.crc").write_bytes(b"crc")
    if text is None:
        (made.path / "metadata").unlink()
    else:
        (made.path / "metadata").write_text(text)
    assert repair_query_id(made, crafted.LINEAGE)
    assert not repair_query_id(made, crafted.LINEAGE)
    assert not (made.path / ".metadata.crc").exists()
    assert decide(made, store, LINEAGE, 5).source is RestartSource.CHECKPOINT


def test_another_querys_checkpoint_is_refused(made: Checkpoint, store: Savepoints) -> None:
    with pytest.raises(RefusedError, match=f"is the checkpoint of query {crafted.LINEAGE}, not of lineage other"):
        decide(made, store, Lineage(id="other"), 5)

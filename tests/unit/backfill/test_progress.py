"""What of a backfill's checkpoint counts when a host has lost the files that Spark did not flush."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.backfill import progress
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control import json_store

HEADER = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}})


def checkpoint(folder: Path, batches: int) -> Checkpoint:
    made = Checkpoint(folder / "lineage" / "checkpoint")
    (made.path / "commits").mkdir(parents=True)
    (made.path / "metadata").write_text(json.dumps({"id": "l"}))
    for batch in range(batches):
        made.write_offsets(batch, f'v1\n{HEADER}\n{{"in":{{"0":{batch}}}}}')
        (made.path / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    (made.path / "sources" / "0").mkdir(parents=True)
    (made.path / "sources" / "0" / "0").write_text('0v1\n{"in":{"0":0}}')
    return made


def done(batches: int) -> BackfillProgress:
    differing = {batch: (batch, 1, "a", 1, "b") for batch in range(batches)}
    return BackfillProgress(base=-1, ran=list(range(batches)), differences=differing, diverged={0: 1})


@pytest.mark.parametrize("ahead", [0, 1, 2, 7])
def test_what_was_noted_after_the_newest_whole_batch_does_not_count(tmp_path: Path, ahead: int) -> None:
    made = checkpoint(tmp_path, 4)
    progress.write(made, done(4 + ahead))
    settled = progress.settle(made)
    assert settled is not None
    assert (settled, settled.batch, settled.upcoming) == (done(4), 3, 4)


@pytest.mark.parametrize("log", ["commits", "offsets"])
def test_a_torn_batch_is_not_whole_and_what_follows_it_is_removed(tmp_path: Path, log: str) -> None:
    made = checkpoint(tmp_path, 4)
    progress.write(made, done(5))
    (made.path / log / "3").write_text("")
    settled = progress.settle(made)
    assert settled is not None
    assert (settled.batch, made.newest_commit()) == (2, 2)


def test_a_checkpoint_whose_steps_are_not_known_is_not_gone_on_with(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, 4)
    assert progress.settle(made) is None, "lost"
    progress.write(made, done(2))
    assert progress.settle(made) is None, "older than the checkpoint"
    path = made.path.parent / "steps.json"
    json_store.write(path, {"batch": 3, "step": 3, "suppressed": 1, "compared": 2, "differences": [], "diverged": []})
    assert progress.settle(made) is None, "of an older release, which did not note the step of each batch"


def test_state_that_would_be_mixed_with_what_is_run_again_is_not_gone_on_with(tmp_path: Path) -> None:
    made = checkpoint(tmp_path, 4)
    progress.write(made, done(7))
    state = made.path / "state" / "0" / "0"
    state.mkdir(parents=True)
    (state / "7.delta").write_text("")
    assert progress.settle(made) is None

"""A start from a checkpoint whose files are damaged or gone: state is never lost in silence, and nothing is doubled."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.exceptions import RefusedError
from tests import commands
from tests.integration.streaming.harness import open_transactions, read_committed
from tests.integration.streaming.replay.harness import Bench, Case, check_content
from tests.integration.streaming.replay.shapes import KEYS, ROWS_A_BATCH

pytestmark = pytest.mark.timeout(3600)

#: Sends so many rounds of input, lets a driver process them, and returns what it told.
RunOn = Callable[..., str]


@pytest.fixture
def case(bench: Bench) -> Case:
    return bench.case("update", bench.topics("update"), limit=ROWS_A_BATCH)


@pytest.fixture
def run_on(case: Case, bench: Bench, caplog: pytest.LogCaptureFixture) -> RunOn:
    rounds = bench.input()

    def run(count: int = 2, **options: Any) -> str:
        for _ in range(count):
            rounds.send(case.topics)
        caplog.clear()
        with caplog.at_level(logging.INFO):
            case.run(**options)
        return caplog.text

    return run


def checkpoint_of(case: Case) -> Checkpoint:
    lineage = case.home.current()
    assert lineage is not None
    return Checkpoint(case.home.checkpoint(lineage.id))


def savepoint(case: Case) -> str:
    commands.run("savepoint", case.name, "--bootstrap-servers", case.config["bootstrap.servers"])
    return Savepoints(case.home.savepoints).list()[-1].id


def newest(checkpoint: Checkpoint, pattern: str) -> Path:
    return max(checkpoint.path.glob(pattern), key=lambda file: int(file.name.partition("_")[0].partition("-")[0]))


def test_a_start_goes_on_from_the_newest_whole_batch_then_from_a_savepoint(case: Case, run_on: RunOn) -> None:
    run_on()
    newest(checkpoint_of(case), "state/0/1/*.zip").write_bytes(b"torn")
    (checkpoint_of(case).path / "metadata").write_text("")
    log = run_on()
    assert "metadata of" in log
    assert ".zip is torn" in log
    assert "is run again" in log
    check_content(case)

    saved = savepoint(case)
    run_on()
    lost = checkpoint_of(case)
    shutil.rmtree(lost.path)
    log = run_on()
    assert "commits is missing or empty" in log
    assert f"restored savepoint {saved}" in log
    check_content(case)
    assert checkpoint_of(case).path != lost.path


@pytest.mark.slow
def test_a_retained_checkpoint_is_restored_by_its_path_wherever_it_lies(
    case: Case, run_on: RunOn, tmp_path: Path
) -> None:
    def restore(path: Path, *more: str, code: int = 0) -> None:
        brokers = case.config["bootstrap.servers"]
        given = ("restore", case.name, "--bootstrap-servers", brokers, "--checkpoint", str(path), *more)
        commands.run(*given, code=code)

    run_on()
    lineage = case.home.current()
    assert lineage is not None
    kept = tmp_path / "kept"
    shutil.copytree(case.home.lineages / lineage.id, kept)
    run_on()
    restore(tmp_path, code=RefusedError.exit_code)
    restore(kept, "--commit", "1", code=RefusedError.exit_code)
    assert [lineage.id for lineage in (case.home.current(), lineage) if lineage] == [lineage.id] * 2
    shutil.rmtree(case.home.lineages / lineage.id)
    restore(kept)
    taken = Savepoints(case.home.savepoints).list()[-1]
    assert (taken.commit, taken.label) == (2, f"retained checkpoint {kept / 'checkpoint'}")
    log = run_on()
    assert "replay" in log
    check_content(case)


@pytest.mark.slow
def test_state_that_is_lost_stops_the_start_unless_it_is_allowed_to_begin_anew(case: Case, run_on: RunOn) -> None:
    run_on()
    shutil.rmtree(checkpoint_of(case).path)
    before = set(read_committed(case.config, case.sink))
    log = run_on(1, expected=RefusedError.exit_code)
    assert "the state of pipeline" in log
    assert "--allow-empty-state" in log
    assert set(read_committed(case.config, case.sink)) == before
    log = run_on(0, allow_empty_state=True)
    assert "begins with empty state after commit 2" in log
    *_, kept, last = case.commits()
    for topic, ranges in last.source.items():
        for partition, (start, _) in ranges.items():
            assert start == kept.source[topic][partition][1], "the input goes on without a gap"
    assert last.rows == KEYS, "every key is new again"
    assert open_transactions(case.config, case.sink) == {}


@pytest.mark.slow
def test_damage_further_back_is_mended_from_an_older_batch_and_its_replay(case: Case, run_on: RunOn) -> None:
    run_on(5)
    checkpoint = checkpoint_of(case)
    batch = checkpoint.newest_commit()
    assert batch is not None
    for version in (batch, batch + 1):
        for file in checkpoint.path.glob(f"state/0/0/{version}_*.zip"):
            file.unlink()
    log = run_on()
    assert f"commit {batch - 1}: lineage" in log
    assert Savepoints(case.home.savepoints).list()[-1].label == "before damaged files"
    check_content(case)

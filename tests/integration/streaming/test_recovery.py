"""A start from a checkpoint whose files are damaged or gone: state is never lost in silence, and nothing is doubled."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import cli
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from tests.integration.streaming.harness import World, check_counts, check_ledger, open_transactions, read_committed

pytestmark = pytest.mark.timeout(600)


def checkpoint_of(world: World) -> Checkpoint:
    home = Home(world.home)
    lineage = home.current()
    assert lineage is not None
    return Checkpoint(home.checkpoint(lineage.id))


def savepoint(world: World) -> str:
    arguments = [world.pipeline, "--bootstrap-servers", world.config["bootstrap.servers"]]
    assert cli.main(["savepoint", *arguments]) == 0
    return Savepoints(Home(world.home).savepoints).list()[-1].id


def run_on(world: World, *arguments: str, records: int = 800) -> str:
    """Send more input and let a driver process it; returns its output."""
    world.send(records)
    driver = world.start(*arguments)
    assert driver.wait(180) == 0, driver.output()[-4000:]
    return driver.output()


def newest(checkpoint: Checkpoint, pattern: str) -> Path:
    return max(checkpoint.path.glob(pattern), key=lambda file: int(file.name.partition("_")[0].partition("-")[0]))


def test_a_start_goes_on_from_the_newest_whole_batch_then_from_a_savepoint(world: World) -> None:
    run_on(world)
    newest(checkpoint_of(world), "state/0/1/*.zip").write_bytes(b"torn")
    (checkpoint_of(world).path / "metadata").write_text("")
    output = run_on(world)
    assert "metadata of" in output
    assert ".zip is torn" in output
    assert "is run again" in output
    check_counts(world)

    saved = savepoint(world)
    run_on(world)
    lost = checkpoint_of(world)
    shutil.rmtree(lost.path)
    output = run_on(world)
    assert "commits is missing or empty" in output
    assert f"restored savepoint {saved}" in output
    check_counts(world)
    assert checkpoint_of(world).path != lost.path


def test_state_that_is_lost_stops_the_start_unless_it_is_allowed_to_begin_anew(world: World) -> None:
    run_on(world)
    shutil.rmtree(checkpoint_of(world).path)
    before = set(read_committed(world.config, world.sink))
    world.send(100)
    refused = world.start()
    assert refused.wait(180) == RefusedError.exit_code
    assert "the state of pipeline" in refused.output()
    assert "--allow-empty-state" in refused.output()
    assert set(read_committed(world.config, world.sink)) == before
    commits = world.commits()
    output = run_on(world, "--allow-empty-state", records=1)
    assert f"begins with empty state after commit {commits}" in output
    last = check_ledger(world)[-1]
    assert sum(end for _, end in last.source[world.source].values()) == world.sent, "the input goes on without a gap"
    assert last.rows == 37, "every key is new again"
    assert open_transactions(world.config, world.sink) == {}


@pytest.mark.slow
def test_damage_further_back_is_mended_from_an_older_batch_and_its_replay(world: World) -> None:
    run_on(world, records=2000)
    checkpoint = checkpoint_of(world)
    batch = checkpoint.newest_commit()
    assert batch is not None
    for version in (batch, batch + 1):
        for file in checkpoint.path.glob(f"state/0/0/{version}_*.zip"):
            file.unlink()
    output = run_on(world)
    assert f"commit {batch - 1}: lineage" in output
    assert Savepoints(Home(world.home).savepoints).list()[-1].label == "before damaged files"
    check_counts(world)

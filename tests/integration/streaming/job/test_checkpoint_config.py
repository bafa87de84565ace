"""What a CheckpointConfig asks for is what a driver does."""

from __future__ import annotations

from itertools import pairwise

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home
from tests import commands
from tests.integration.streaming.harness import World, check_counts
from tests.waiting import eventually


@pytest.mark.slow
def test_batches_pause_few_are_retained_and_a_stop_deletes_all_but_savepoints(world: World) -> None:
    world.job = "checkpointed.py"
    world.send(800)
    driver = world.start(until="forever")
    eventually(lambda: world.commits() >= 8, "eight commits")
    commits, _ = world.ledger()
    assert all(after.started - before.committed >= 1500 for before, after in pairwise(commits))
    home = Home(world.home)
    lineage = home.current()
    assert lineage is not None
    checkpoint = home.checkpoint(lineage.id)
    # Spark purges while a batch runs, after it has planned the next
    assert len(list((checkpoint / "offsets").glob("[0-9]*"))) <= 4
    assert len(list((checkpoint / "commits").glob("[0-9]*"))) <= 4
    commands.run("savepoint", world.pipeline, *world.servers)
    (saved,) = (savepoint.id for savepoint in Savepoints(home.savepoints).list())
    assert world.stop(driver) == 0, driver.output()[-4000:]
    assert not checkpoint.exists()
    assert [savepoint.id for savepoint in Savepoints(home.savepoints).list()] == [saved]

    world.send(200)
    driver = world.start()
    assert driver.wait() == 0, driver.output()[-4000:]
    assert f"restored savepoint {saved}" in driver.output()
    check_counts(world)

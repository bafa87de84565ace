"""A driver is killed at each named step of the protocol, and started again."""

from __future__ import annotations

import signal

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.failpoints import NAMES
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.integration.streaming.harness import World, check_counts, open_transactions

#: Run n is killed at its step; the batch is one that no run before has committed.
STEPS = {
    "after-claim": "after-claim:run=1",
    "after-begin": "after-begin:run=2:batch=0",
    "during-send": "during-send:run=3:batch=1",
    "after-pre-commit": "after-pre-commit:run=4:batch=2",
    "after-end-transaction": "after-end-transaction:run=5:batch=3",
    "after-commit": "after-commit:run=6:batch=4",
}


@pytest.mark.slow  # the crash matrix and the protocol alone have every step, too
@pytest.mark.timeout(3600)
def test_a_driver_that_is_killed_at_every_step_in_turn_loses_and_doubles_nothing(world: World) -> None:
    assert tuple(STEPS) == NAMES, "every named step has its crash test"
    world.send(3000)
    for step, failpoint in STEPS.items():
        driver = world.start(failpoints=failpoint, own_jvm=True)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
        check_counts(world, complete=False)
    _lose_the_offsets_of_the_last_commit(world)
    last = world.start()
    assert last.wait() == 0, last.output()[-3000:]
    assert "offsets/4" in last.output()
    check_counts(world)
    commits, runs = world.ledger()
    assert [run.run for run in runs] == [1, 2, 3, 4, 5, 6, 7]
    assert len(commits) == len({(commit.lineage, commit.batch) for commit in commits}) == 8
    for topic in (world.sink, ledger_topic(world.pipeline)):
        assert open_transactions(world.config, topic) == {}


def _lose_the_offsets_of_the_last_commit(world: World) -> None:
    """Do what a power failure does: the commit is in the ledger, and Spark's own file never reached the disk."""
    home = Home(world.home)
    lineage = home.current()
    assert lineage is not None
    checkpoint = Checkpoint(home.checkpoint(lineage.id))
    assert (checkpoint.newest_offsets(), checkpoint.newest_commit()) == (4, 3)
    checkpoint.removal("offsets", 4)()

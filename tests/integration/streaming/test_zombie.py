"""A driver that is frozen in mid-batch, superseded, and thawed."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import FencedError
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from tests.integration.streaming.harness import World, check_counts, open_transactions
from tests.processes import is_stopped
from tests.waiting import eventually


def taken(world: World) -> int:
    """Return how many source records are in a commit."""
    commits, _ = world.ledger()
    return sum(end - start for commit in commits for of in commit.source.values() for start, end in of.values())


@pytest.mark.slow  # the protocol alone has frozen drivers, too
@pytest.mark.timeout(3600)
def test_a_thawed_zombie_is_fenced_says_by_whom_and_does_not_fence_its_successor(world: World) -> None:
    world.send(1500)
    zombie = world.start(failpoints="during-send:run=1:batch=1:signal=STOP", own_jvm=True)
    eventually(lambda: is_stopped(zombie.process.pid), "the driver freezes in mid-batch")
    assert open_transactions(world.config, world.sink), "its transaction is open"
    successor = world.start(until="forever")
    eventually(lambda: world.commits() >= 4, "the successor commits")

    zombie.thaw()
    assert zombie.wait() == FencedError.exit_code, zombie.output()[-3000:]
    assert "FencedError: run 1 of" in zombie.output()
    assert f"pid {world.ledger()[1][-1].pid}" in zombie.output()

    assert successor.process.poll() is None
    world.send(300)
    eventually(lambda: taken(world) == world.sent, "the successor still commits")
    assert world.stop(successor) == 0, successor.output()[-3000:]
    commits, runs = world.ledger()
    assert [run.run for run in runs] == [1, 2]
    assert {commit.run for commit in commits} == {1, 2}
    check_counts(world)
    for topic in (world.sink, ledger_topic(world.pipeline)):
        assert open_transactions(world.config, topic) == {}

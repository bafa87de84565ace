"""A restore and its replay are killed at every durable step, and repeated."""

from __future__ import annotations

import signal

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.failpoints import RESTORE_NAMES
from tests import commands
from tests.integration.streaming.harness import World, check_counts

*MAKING, REPLAYED = RESTORE_NAMES


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("replays", "left_at"),
    [
        ((f"{REPLAYED}:commit=3",), 3),
        pytest.param((f"{REPLAYED}:commit=3", "after-begin:batch=3"), 4, marks=pytest.mark.slow),
    ],
)
def test_a_restore_that_is_killed_at_every_step_loses_and_doubles_nothing(
    world: World, replays: tuple[str, ...], left_at: int
) -> None:
    world.send(1600)
    killed = world.start(failpoints="after-commit:run=1:batch=1")
    assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
    saved = commands.run_apart("savepoint", world.pipeline, *world.servers, "--json").body
    assert saved["commit"] == 1
    first = world.start()
    assert first.wait() == 0, first.output()[-3000:]
    home = Home(world.home)
    original = home.current()
    assert original is not None

    restore = ("restore", world.pipeline, *world.servers, "--commit", "1", "--json")
    for step in MAKING:
        commands.run_apart(*restore, code=-signal.SIGKILL, failpoints=step)
        current = home.current()
        assert current is not None
        assert (current.id == original.id) is (step != "restore-switched"), step
    made = commands.run_apart(*restore).body
    newest = world.commits()
    assert made["replayed_commits"] == [2, newest]
    assert made["savepoint"] == Savepoints(home.savepoints).list()[0].id
    left = {directory.name for directory in home.lineages.iterdir()}
    assert left == {original.id, made["lineage"]}, "what was half-made or never started is gone"

    for step in replays:
        killed = world.start(failpoints=step)
        assert killed.wait() == -signal.SIGKILL, killed.output()[-3000:]
        check_counts(world)
    world.send(300)
    last = world.start()
    assert last.wait() == 0, last.output()[-3000:]
    assert f"commits {left_at} to {newest} are replayed" in last.output(), last.output()
    check_counts(world)
    body = commands.run_apart("status", world.pipeline, *world.servers, "--json").body
    assert (body["replay"]["first"], body["replay"]["done"]) == (left_at, newest)
    assert (body["lineage"], body["commit"]) == (made["lineage"], newest + 1)

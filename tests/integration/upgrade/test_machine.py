"""Upgrades at the command line, with real drivers under load, and a record-by-record comparison of what they wrote."""

from __future__ import annotations

import signal

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control import releases
from airflow_provider_exactlyonce.control.status import DriverState
from tests.integration.upgrade.harness import Story

INTENDED = ["--compare", "k,start,total,n", "--allow", "changed", "--allow", "missing"]


def test_an_upgrade_of_a_stopped_pipeline_loses_and_doubles_nothing(story: Story) -> None:
    story.give(900)
    story.start()
    story.drain()
    story.run("stop")
    story.give(900)
    answer = story.upgrade("second", "--stable-after", "1").body
    assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "second")
    assert story.state().state is DriverState.STOPPED
    assert story.check() == ["first", "second"]


@pytest.mark.slow
def test_an_upgrade_under_load_loses_and_doubles_nothing(story: Story) -> None:
    with story.load():
        story.start()
        answer = story.upgrade("second", "--shadow-commits", "3", *INTENDED, "--stable-after", "2").body
    assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "second")
    assert answer["shadow"]["columns"] == ["k", "start", "total", "n"]
    story.drain()
    stopped = story.run("stop", "--savepoint", "the end")
    assert stopped.body["savepoint"] == Savepoints(story.home.savepoints).list()[-1].id
    assert story.check() == ["first", "second"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_good_upgrade_and_all_kinds_of_bad_ones_leave_what_the_right_versions_give(story: Story) -> None:
    with story.load():
        story.start()
        story.upgrade("second", "--shadow-commits", "3", *INTENDED, "--stable-after", "2")
        driver = story.state().token

        refused = story.upgrade("incompatible", code=64)
        assert refused.err.splitlines()[-1].startswith("IncompatibleVersionError:")
        refused = story.upgrade("wrong", "--shadow-commits", "5", code=64)
        assert "ShadowDiffersError" in refused.err
        shadow = refused.body["shadow"]
        assert shadow["unintended"] == ["changed.total"], shadow
        assert shadow["counts"]["changed"] == shadow["counts"]["changed.total"] == shadow["delivered"] > 0
        [example, *_] = shadow["examples"]["changed"]
        assert example["recomputed"]["total"] == example["delivered"]["total"] + 1
        assert story.state().token == driver, "nothing was touched"

        back = story.upgrade("crashes", "--stable-after", "200", code=71)
        assert "no idea" in back.err
        assert (back.body["outcome"], story.in_use()) == ("rolled-back", "second")
        back = story.upgrade("never", "--stable-timeout", "25", "--stop-timeout", "10", code=71)
        assert "it made 0 of 3 commits" in back.err
        assert (back.body["outcome"], story.in_use()) == ("rolled-back", "second")
    story.drain()
    story.run("stop")
    _, runs = story.world.ledger()
    old = story.world.start()
    assert old.wait() == 64
    assert "VersionRefusedError" in old.output(), "an old file does not undo an upgrade"
    assert story.world.ledger()[1] == runs
    order = story.check()
    assert [name for name in order if name != "crashes"][:2] == ["first", "second"]
    assert set(order) <= {"first", "second", "crashes"}


def pinned(story: Story) -> list[str]:
    return [savepoint.id for savepoint in Savepoints(story.home.savepoints).list() if savepoint.pinned]


def kill_at(story: Story, steps: tuple[str, ...], *upgrade: str) -> None:
    """Call an upgrade again and again, and kill it at each step: when it is on disk, and when it is taken."""
    for step in steps:
        for when in ("", "-taken"):
            story.upgrade(*upgrade, failpoints=f"upgrade-{step}{when}", code=-signal.SIGKILL)
            assert story.plan().step == step


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_upgrade_that_is_killed_at_each_step_goes_on_there(story: Story) -> None:
    upgrade = ("shouts", "--shadow-commits", "2")
    with story.load():
        story.start()
        kill_at(story, ("check", "compare", "stop", "start", "watch"), *upgrade)
        story.upgrade(*upgrade)
    story.drain()
    story.run("stop")
    assert story.check() == ["first", "shouts"]
    _, runs = story.world.ledger()
    assert [story.names()[run.version] for run in runs] == ["first", "shouts"], "one driver for each start"
    assert not (story.home.control / "shadow").exists()
    release = releases.read(story.home)
    assert release is not None
    assert pinned(story) == [release.savepoint], "the way back stays open"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_way_back_that_is_killed_at_each_step_goes_on_there(story: Story) -> None:
    upgrade = ("crashes", "--stable-after", "200")
    with story.load():
        story.start()
        kill_at(story, ("start", "stop-new", "restore", "start-old", "watch-old"), *upgrade)
        story.upgrade(*upgrade, code=71)
        assert (story.plan().step, story.in_use()) == ("rolled-back", "first")
    story.drain()
    story.run("stop")
    assert set(story.check()) <= {"first", "crashes"}
    _, runs = story.world.ledger()
    assert [story.names()[run.version] for run in runs] == ["first", "crashes", "first"], "one driver for each start"
    assert pinned(story) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_pipeline_that_was_stopped_is_stopped_again_after_an_upgrade_and_after_a_rollback(story: Story) -> None:
    with story.load():
        story.start()
        story.run("stop")
        done = story.upgrade("shouts", "--stable-after", "2")
        assert (done.body["outcome"], story.in_use()) == ("done", "shouts")
        assert story.state().state is DriverState.STOPPED
        assert not story.home.lease.exists()

        done = story.run("rollback")
        assert (done.body["outcome"], story.in_use()) == ("rolled-back", "first")
        assert story.state().state is DriverState.STOPPED
        assert not story.home.lease.exists()
        story.start()
    story.drain()
    story.run("stop")
    assert story.check() == ["first", "shouts", "first"]

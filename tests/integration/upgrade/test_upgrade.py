"""Upgrades at the command line, with real drivers under load, and a record-by-record comparison of what they wrote."""

from __future__ import annotations

import json
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
    assert story.run("stop").returncode == 0
    story.give(900)
    done = story.upgrade("second", "--stable-after", "1")
    assert done.returncode == 0, done.stderr[-5000:]
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "second")
    assert story.state().state is DriverState.STOPPED
    assert story.check() == ["first", "second"]


@pytest.mark.slow
def test_an_upgrade_under_load_loses_and_doubles_nothing(story: Story) -> None:
    with story.load():
        story.start()
        done = story.upgrade("second", "--shadow-commits", "3", *INTENDED, "--stable-after", "2")
        assert done.returncode == 0, done.stderr[-5000:]
    answer = json.loads(done.stdout)
    assert (answer["outcome"], answer["changed"], story.in_use()) == ("done", True, "second")
    assert answer["shadow"]["columns"] == ["k", "start", "total", "n"]
    story.drain()
    stopped = story.run("stop", "--savepoint", "the end")
    assert json.loads(stopped.stdout)["savepoint"] == Savepoints(story.home.savepoints).list()[-1].id
    assert story.check() == ["first", "second"]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_good_upgrade_and_all_kinds_of_bad_ones_leave_what_the_right_versions_give(story: Story) -> None:
    with story.load():
        story.start()
        done = story.upgrade("second", "--shadow-commits", "3", *INTENDED, "--stable-after", "2")
        assert done.returncode == 0, done.stderr[-5000:]
        driver = story.state().token

        done = story.upgrade("incompatible")
        assert (done.returncode, done.stderr.splitlines()[-1].partition(":")[0]) == (64, "IncompatibleVersionError")
        done = story.upgrade("wrong", "--shadow-commits", "5")
        assert (done.returncode, "ShadowDiffersError" in done.stderr) == (64, True), done.stderr[-5000:]
        shadow = json.loads(done.stdout)["shadow"]
        assert shadow["unintended"] == ["changed.total"], shadow
        assert shadow["counts"]["changed"] == shadow["counts"]["changed.total"] == shadow["delivered"] > 0
        [example, *_] = shadow["examples"]["changed"]
        assert example["recomputed"]["total"] == example["delivered"]["total"] + 1
        assert story.state().token == driver, "nothing was touched"

        done = story.upgrade("crashes", "--stable-after", "200")
        assert (done.returncode, "no idea" in done.stderr) == (71, True), done.stderr[-5000:]
        assert (json.loads(done.stdout)["outcome"], story.in_use()) == ("rolled-back", "second")
        done = story.upgrade("never", "--stable-timeout", "25", "--stop-timeout", "10")
        assert (done.returncode, "it made 0 of 3 commits" in done.stderr) == (71, True), done.stderr[-5000:]
        assert (json.loads(done.stdout)["outcome"], story.in_use()) == ("rolled-back", "second")
    story.drain()
    assert story.run("stop").returncode == 0
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
            killed = story.upgrade(*upgrade, failpoints=f"upgrade-{step}{when}")
            assert killed.returncode == -signal.SIGKILL, (step, killed.stderr[-3000:])
            assert story.plan().step == step


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_an_upgrade_that_is_killed_at_each_step_goes_on_there(story: Story) -> None:
    upgrade = ("shouts", "--shadow-commits", "2")
    with story.load():
        story.start()
        kill_at(story, ("check", "compare", "stop", "start", "watch"), *upgrade)
        done = story.upgrade(*upgrade)
        assert done.returncode == 0, done.stderr[-5000:]
    story.drain()
    assert story.run("stop").returncode == 0
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
        done = story.upgrade(*upgrade)
        assert (done.returncode, story.plan().step, story.in_use()) == (71, "rolled-back", "first")
    story.drain()
    assert story.run("stop").returncode == 0
    assert set(story.check()) <= {"first", "crashes"}
    _, runs = story.world.ledger()
    assert [story.names()[run.version] for run in runs] == ["first", "crashes", "first"], "one driver for each start"
    assert pinned(story) == []


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_pipeline_that_was_stopped_is_stopped_again_after_an_upgrade_and_after_a_rollback(story: Story) -> None:
    with story.load():
        story.start()
        assert story.run("stop").returncode == 0
        done = story.upgrade("shouts", "--stable-after", "2")
        assert done.returncode == 0, done.stderr[-5000:]
        assert (json.loads(done.stdout)["outcome"], story.in_use()) == ("done", "shouts")
        assert story.state().state is DriverState.STOPPED
        assert not story.home.lease.exists()

        done = story.run("rollback")
        assert done.returncode == 0, done.stderr[-5000:]
        assert (json.loads(done.stdout)["outcome"], story.in_use()) == ("rolled-back", "first")
        assert story.state().state is DriverState.STOPPED
        assert not story.home.lease.exists()
        story.start()
    story.drain()
    assert story.run("stop").returncode == 0
    assert story.check() == ["first", "shouts", "first"]

"""Weaker guarantees at the crash that shows them: at least once is seen to double, at most once to lose; never more."""

from __future__ import annotations

import json
import signal
from collections import Counter
from typing import Any

import pytest

from airflow_provider_exactlyonce.ledger.records import SourceRanges
from airflow_provider_exactlyonce.ledger.topic_identity import known_sinks
from tests import commands
from tests.integration.streaming.harness import Driver, World, check_ledger, clean_audit, read_committed


def start(world: World, guarantee: str, failpoint: str | None = None) -> Driver:
    world.job = "modes.py"
    return world.start(environment={"TEST_GUARANTEE": guarantee}, failpoints=failpoint)


def written(world: World) -> Counter[int]:
    return Counter(json.loads(record.value or b"")["id"] for record in read_committed(world.config, world.sink))


def ids_in(world: World, ranges: SourceRanges) -> set[int]:
    """Return the input records of some source ranges, read from the topic."""
    return {
        json.loads(record.value or b"")["id"]
        for record in read_committed(world.config, world.source)
        if record.partition in ranges[world.source]
        and ranges[world.source][record.partition][0] <= record.offset < ranges[world.source][record.partition][1]
    }


def run_with_crash(world: World, guarantee: str, step: str) -> None:
    world.send(400)
    driver = start(world, guarantee, step)
    assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
    last = start(world, guarantee)
    assert last.wait() == 0, last.output()[-3000:]


@pytest.mark.slow
def test_at_least_once_doubles_the_batch_that_a_crash_interrupts_and_loses_nothing(world: World) -> None:
    run_with_crash(world, "at_least_once", "after-pre-commit:batch=1")
    commits = check_ledger(world)
    counts = written(world)
    assert counts.keys() == set(range(400))
    doubled = {number for number, times in counts.items() if times > 1}
    assert doubled == ids_in(world, commits[1].source), "its rows were visible before its record was"
    assert set(counts.values()) == {1, 2}
    assert all(commit.guarantee == "at_least_once" and not commit.sink for commit in commits)
    assert sum(commit.rows for commit in commits) == 400
    assert all(known_sinks(commit).keys() == {world.sink} for commit in commits), "a recreated topic is noticed"
    report = clean_audit(world.config, world.pipeline)
    assert (report.untold, report.lost) == (len(commits), {})
    status = status_of(world)
    assert (status["guarantee"], status["weaker_because"], status["lost"]) == ("at_least_once", None, [])


@pytest.mark.slow
def test_at_most_once_loses_the_batch_that_a_crash_interrupts_says_which_and_doubles_nothing(world: World) -> None:
    run_with_crash(world, "at_most_once", "after-end-transaction:batch=1")
    commits, claims = world.ledger()
    counts = written(world)
    assert set(counts.values()) == {1}
    lost = set(range(400)) - counts.keys()
    assert lost == ids_in(world, commits[1].source)
    assert [claim.lost for claim in claims] == [{}, {}, {2: commits[1].source}]
    report = clean_audit(world.config, world.pipeline)
    assert report.lost == {2: commits[1].source}
    status = status_of(world)
    assert status["guarantee"] == "at_most_once"
    [lost_commit] = status["lost"]
    assert lost_commit.startswith("commit 2: ") and world.source in lost_commit


def status_of(world: World) -> dict[str, Any]:
    return dict(commands.run("status", world.pipeline, *world.at_home, "--json").body)

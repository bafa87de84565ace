"""A restore and its replay are killed at every durable step, and repeated."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.failpoints import RESTORE_NAMES
from airflow_provider_exactlyonce.failpoints import VARIABLE as FAILPOINTS
from tests.integration.streaming.harness import World, check_counts
from tests.shared_jvm import SharedJvm
from tests.waiting import HANG_SECONDS

*MAKING, REPLAYED = RESTORE_NAMES


@pytest.fixture
def world(
    tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str], shared_jvm: SharedJvm
) -> Iterator[World]:
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, tmp_path / "home", jvm=shared_jvm)
    yield world
    world.end()


def command(world: World, *arguments: str, failpoints: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "airflow_provider_exactlyonce.cli.main", *arguments, "--json"],
        env={**os.environ, "EXACTLYONCE_KAFKA": json.dumps(dict(world.config)), FAILPOINTS: failpoints},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        start_new_session=True,
        check=False,
    )


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


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
    saved = answer(command(world, "savepoint", world.pipeline))
    assert saved["commit"] == 1
    first = world.start()
    assert first.wait() == 0, first.output()[-3000:]
    home = Home(world.home)
    original = home.current()
    assert original is not None

    for step in MAKING:
        assert command(world, "restore", world.pipeline, "--commit", "1", failpoints=step).returncode == -signal.SIGKILL
        current = home.current()
        assert current is not None
        assert (current.id == original.id) is (step != "restore-switched"), step
    made = answer(command(world, "restore", world.pipeline, "--commit", "1"))
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
    body = answer(command(world, "status", world.pipeline))
    assert (body["replay"]["first"], body["replay"]["done"]) == (left_at, newest)
    assert (body["lineage"], body["commit"]) == (made["lineage"], newest + 1)

"""Kafka and a table of a lake in one query: killed, superseded, set back, read by one who shares no code."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import AuditFailedError
from tests import commands
from tests.integration.streaming.harness import World
from tests.integration.streaming.lakehouse import (
    BATCH,
    DELTA,
    ICEBERG,
    ICEBERG_UPSERTS,
    JOB,
    KINDS,
    UPSERTS,
    LakePipeline,
)
from tests.waiting import eventually


@pytest.fixture(params=KINDS)
def pipeline(request: pytest.FixtureRequest, world: World, tmp_path: Path) -> LakePipeline:
    return LakePipeline(world, request.param, tmp_path / "lake")


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        ("after-sink-fence:run=1", "after-sink-claim:run=2", "after-sink-pre-commit:batch=0"),
        ("before-sink-decision:batch=0", "after-sink-commit:batch=1", "after-pre-commit:batch=2"),
    ],
    ids=["claim", "commit"],
)
def test_the_table_has_each_record_once_whichever_step_the_driver_dies_at(
    pipeline: LakePipeline, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    world, lake = pipeline.world, pipeline.lake
    world.send(5 * BATCH)
    for step in steps:
        driver = pipeline.start(step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    pipeline.finish()
    pipeline.check()
    for name, value in pipeline.environment().items():
        monkeypatch.setenv(name, value)
    audit = ["audit-sinks", str(JOB), "--checksums", *world.servers]
    if pipeline.kind == ICEBERG:
        lake.expire()
    elif pipeline.kind != ICEBERG_UPSERTS:
        lake.compact()  # pyiceberg has none
    commands.run(*audit)
    lake.delete(f"id = {world.sent - 1}")
    commands.run(*audit, code=AuditFailedError.exit_code)


@pytest.mark.slow
def test_small_files_are_written_together_between_batches_whenever_the_driver_dies(
    pipeline: LakePipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, pipeline.compact_every = pipeline.world, 2
    world.send(6 * BATCH)
    for step in ("compaction-begun:batch=1", "compaction-committed:batch=3"):
        driver = pipeline.start(step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    pipeline.finish()
    pipeline.check()
    assert len(pipeline.lake.current_files()) <= 3 + 9, "one of each partition, and at most those of a commit since"
    for name, value in pipeline.environment().items():
        monkeypatch.setenv(name, value)
    commands.run("audit-sinks", str(JOB), *world.servers)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pipeline", "step"),
    [
        (DELTA, "before-sink-decision"),
        (UPSERTS, "before-sink-decision"),
        (ICEBERG, "before-sink-decision"),
        (ICEBERG, "after-sink-pre-commit"),
        (ICEBERG_UPSERTS, "before-sink-decision"),
    ],
    indirect=["pipeline"],
)
def test_a_driver_that_was_frozen_is_superseded_and_adds_nothing(
    pipeline: LakePipeline, tmp_path: Path, step: str
) -> None:
    pipeline.world.send(3 * BATCH)
    held = tmp_path / "held"
    old = pipeline.start(f"{step}:batch=1:hold={held}", until="forever", own_jvm=True)
    eventually(held.exists, "the old driver is at its step")
    old.freeze(pipeline.world.home)
    pipeline.finish()
    old.thaw()
    held.unlink()
    assert old.wait() == 66, old.output()[-3000:]
    pipeline.check()


@pytest.mark.slow
def test_a_table_that_was_set_back_alone_gets_what_it_lacks(pipeline: LakePipeline) -> None:
    world = pipeline.world
    world.send(3 * BATCH)
    pipeline.finish()
    commands.run("savepoint", world.pipeline, *world.at_home)
    saved = world.commits()
    set_back = pipeline.lake.keep()
    world.send(3 * BATCH)
    pipeline.finish()
    set_back()
    refused = pipeline.start()
    assert refused.wait() == 64
    assert f"the sink was set back. Restore a savepoint at or before commit {saved}" in refused.output()
    commands.run("restore", world.pipeline, "--commit", str(saved), *world.at_home)
    pipeline.finish()
    pipeline.check()

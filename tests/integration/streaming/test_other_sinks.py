"""Kafka and a sink of the user's own in one query, killed at each of its steps, set back, and started again."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.ledger.gate import check
from airflow_provider_exactlyonce.ledger.gate_target import GateTarget
from tests import commands
from tests.integration.streaming.harness import Driver, World, check_ledger, read_committed
from tests.waiting import eventually

JOB = Path(__file__).parents[3] / "dags" / "jobs" / "own_sink.py"


@pytest.fixture
def table(world: World, tmp_path: Path) -> Path:
    world.job = str(JOB)
    path = tmp_path / "payments.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE payments (id INT, k TEXT, v REAL)")
    return path


def start(world: World, table: Path, failpoint: str | None = None) -> Driver:
    return world.start(environment=environment(world, table), failpoints=failpoint)


def environment(world: World, table: Path) -> Mapping[str, str]:
    return {
        "OWN_SINK_PIPELINE": world.pipeline,
        "OWN_SINK_SOURCE": world.source,
        "OWN_SINK_TOPIC": world.sink,
        "OWN_SINK_FILE": str(table),
        "OWN_SINK_BATCH": "100",
    }


def check_both(world: World, table: Path, expected: int) -> None:
    """Every input record once in the table and once in the topic; both ledgers agree."""
    rows = [(number, f"k{number % 37}", number / 100) for number in range(expected)]
    with closing(sqlite3.connect(table)) as database:
        assert sorted(database.execute("SELECT id, k, v FROM payments")) == rows
        ledger = [json.loads(entry) for (entry,) in database.execute("SELECT entry FROM ledger ORDER BY number")]
    values = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted((value["id"], value["k"], value["v"]) for value in values) == rows
    commits = check_ledger(world)
    assert [(entry["commit"], entry["rows"], int(entry["digest"], 16)) for entry in ledger] == [
        (commit.commit, commit.others["table"].rows, commit.others["table"].digest) for commit in commits
    ]
    assert all(commit.rows == commit.others["table"].rows for commit in commits)


@pytest.mark.slow
def test_each_sink_has_each_record_once_whichever_step_the_driver_dies_at(world: World, table: Path) -> None:
    world.send(600)
    for step in (
        "after-sink-claim:run=1",
        "after-sink-pre-commit:batch=0",
        "after-sink-commit:batch=1",
        "after-pre-commit:batch=2",
        "after-end-transaction:batch=3",
    ):
        driver = start(world, table, step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    held = table.with_name("held")
    last = start(world, table, f"after-sink-commit:batch=4:hold={held}")
    eventually(held.exists, "the table has commit 5, Kafka and the ledger not")
    assert newest_in(table) == 5
    verdict = check(world.config, world.pipeline, GateTarget(commit=5))
    assert (verdict.open, verdict.commit) == (False, 4), "a gate waits for the slowest sink"
    held.unlink()
    assert last.wait() == 0, last.output()[-3000:]
    check_both(world, table, 600)
    assert check(world.config, world.pipeline, GateTarget(commit=5)).open


def newest_in(table: Path) -> int:
    with closing(sqlite3.connect(table)) as database:
        return int(database.execute("SELECT max(number) FROM ledger").fetchone()[0])


@pytest.mark.slow
def test_a_sink_that_was_set_back_to_its_backup_alone_gets_what_it_lacks(world: World, table: Path) -> None:
    world.send(300)
    assert start(world, table).wait() == 0
    commands.run("savepoint", world.pipeline, *world.at_home)
    backup = table.with_name("backup.db")
    shutil.copy(table, backup)
    saved = world.commits()
    world.send(300)
    assert start(world, table).wait() == 0
    check_both(world, table, 600)
    shutil.copy(backup, table)
    refused = start(world, table)
    assert refused.wait() != 0
    assert f"the sink was set back. Restore a savepoint at or before commit {saved}" in refused.output()
    commands.run("restore", world.pipeline, "--commit", str(saved), *world.at_home)
    last = start(world, table)
    assert last.wait() == 0, last.output()[-3000:]
    check_both(world, table, 600)

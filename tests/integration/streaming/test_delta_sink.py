"""Kafka and a Delta table in one query: killed at each step, superseded, vacuumed, read by one who shares no code."""

from __future__ import annotations

import datetime
import json
import shutil
import signal
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.cli import main as cli
from airflow_provider_exactlyonce.exceptions import AuditFailedError
from tests.delta_reader import read_delta
from tests.integration.streaming.harness import Driver, World, check_ledger, read_committed
from tests.waiting import eventually

pytestmark = pytest.mark.slow

BATCH = 100
JOB = Path(__file__).parent / "jobs" / "delta_table.py"
STEPS = pytest.mark.parametrize(
    "steps",
    [
        ("after-sink-fence:run=1", "after-sink-claim:run=2", "after-sink-pre-commit:batch=0"),
        ("before-sink-decision:batch=0", "after-sink-commit:batch=1", "after-pre-commit:batch=2"),
    ],
    ids=["claim", "commit"],
)


class Lake:
    """The world's pipeline, and its table."""

    def __init__(self, world: World, table: Path, job: str = JOB.name) -> None:
        self.world, self.table = world, table
        world.job = job

    def environment(self) -> Mapping[str, str]:
        return {
            "TEST_PIPELINE": self.world.pipeline,
            "TEST_SOURCE": self.world.source,
            "TEST_SINK": self.world.sink,
            "TEST_TABLE": str(self.table),
            "TEST_BATCH": str(BATCH),
        }

    def start(self, step: str | None = None, **how: Any) -> Driver:
        return self.world.start(environment=self.environment(), failpoints=step, **how)

    def finish(self) -> None:
        last = self.start()
        assert last.wait() == 0, last.output()[-3000:]

    def check(self) -> None:
        """Every input record is once in the table, as it was, and once in the topic; both ledgers agree."""
        rows = sorted(read_delta(self.table), key=lambda row: row["id"])
        assert rows == [row_of(number) for number in range(self.world.sent)]
        values = [json.loads(record.value or b"") for record in read_committed(self.world.config, self.world.sink)]
        assert sorted(value["id"] for value in values) == list(range(self.world.sent))
        check_ledger(self.world)
        left = {str(file) for file in (self.table / "exactlyonce").rglob("*.parquet")}
        assert left == {file.removeprefix("file://") for file in DeltaTable(self.table).file_uris()}

    def check_latest(self) -> None:
        """The table has the last record of each key that does not delete it, as it was; the topic has all."""
        latest = {f"k{number % 37}": number for number in range(self.world.sent)}
        expected: list[dict[str, Any]] = [
            {"k": key, "id": number, "v": Decimal(number) / 100} for key, number in latest.items() if number % 5
        ]
        rows = sorted(read_delta(self.table), key=lambda row: row["id"])
        assert rows == sorted(expected, key=lambda row: row["id"])
        values = [json.loads(record.value or b"") for record in read_committed(self.world.config, self.world.sink)]
        assert sorted(value["id"] for value in values) == list(range(self.world.sent))
        check_ledger(self.world)


def row_of(number: int) -> dict[str, Any]:
    key, at = f"k{number % 37}", datetime.datetime(2024, 1, 1) + datetime.timedelta(microseconds=number)
    return {
        "id": number,
        "k": key,
        "v": Decimal(number) / 100,
        "shop": f"a/b={number % 3}",
        "at": at.replace(tzinfo=datetime.UTC),
        "local": at,
        "parts": {"n": number, "l": [key, None], "s": [{"k": key, "id": number}]},
    }


@pytest.fixture
def lake(world: World, tmp_path: Path) -> Lake:
    return Lake(world, tmp_path / "table")


@STEPS
def test_the_table_has_each_record_once_whichever_step_the_driver_dies_at(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    lake.world.send(5 * BATCH)
    for step in steps:
        driver = lake.start(step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    lake.finish()
    lake.check()
    for name, value in lake.environment().items():
        monkeypatch.setenv(name, value)
    audit = ["audit-sinks", str(JOB), "--bootstrap-servers", lake.world.config["bootstrap.servers"]]
    DeltaTable(lake.table).optimize.compact()
    assert cli.main(audit) == 0
    DeltaTable(lake.table).delete("id = 7")
    assert cli.main(audit) == AuditFailedError.exit_code


def test_a_driver_that_was_frozen_right_before_its_commit_is_superseded_and_adds_nothing(
    lake: Lake, tmp_path: Path
) -> None:
    lake.world.send(3 * BATCH)
    held = tmp_path / "held"
    old = lake.start(f"before-sink-decision:batch=1:hold={held}", until="forever", own_jvm=True)
    eventually(held.exists, "the old driver has a version of the log to write")
    old.signal_group(signal.SIGSTOP)
    lake.finish()
    old.signal_group(signal.SIGCONT)
    held.unlink()
    assert old.wait() == 66, old.output()[-3000:]
    lake.check()


def test_a_table_that_was_set_back_alone_gets_what_it_lacks(lake: Lake, tmp_path: Path) -> None:
    lake.world.send(3 * BATCH)
    lake.finish()
    at_home = ["--home", str(lake.world.home), "--bootstrap-servers", lake.world.config["bootstrap.servers"]]
    cli.main(["savepoint", lake.world.pipeline, *at_home])
    saved = lake.world.commits()
    backup = shutil.copytree(lake.table, tmp_path / "backup")
    lake.world.send(3 * BATCH)
    lake.finish()
    shutil.rmtree(lake.table)
    shutil.move(backup, lake.table)
    refused = lake.start()
    assert refused.wait() == 64
    assert f"the sink was set back. Restore a savepoint at or before commit {saved}" in refused.output()
    cli.main(["restore", lake.world.pipeline, "--commit", str(saved), *at_home])
    lake.finish()
    lake.check()


@STEPS
def test_the_table_has_the_last_record_of_each_key_whichever_step_the_driver_dies_at(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    lake = Lake(world, tmp_path / "table", "delta_upserts.py")
    lake.world.send(5 * BATCH)
    for step in steps:
        driver = lake.start(step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    lake.finish()
    lake.check_latest()
    for name, value in lake.environment().items():
        monkeypatch.setenv(name, value)
    job = str(JOB.with_name("delta_upserts.py"))
    assert cli.main(["audit-sinks", job, "--bootstrap-servers", lake.world.config["bootstrap.servers"]]) == 0


def test_an_upsert_that_was_frozen_right_before_its_version_is_superseded_and_changes_nothing(
    world: World, tmp_path: Path
) -> None:
    lake = Lake(world, tmp_path / "table", "delta_upserts.py")
    lake.world.send(3 * BATCH)
    held = tmp_path / "held"
    old = lake.start(f"before-sink-decision:batch=1:hold={held}", until="forever", own_jvm=True)
    eventually(held.exists, "the old driver has a version of the log to write")
    old.signal_group(signal.SIGSTOP)
    lake.finish()
    old.signal_group(signal.SIGCONT)
    held.unlink()
    assert old.wait() == 66, old.output()[-3000:]
    lake.check_latest()


def test_an_upserted_table_that_was_set_back_alone_gets_what_it_lacks(world: World, tmp_path: Path) -> None:
    lake = Lake(world, tmp_path / "table", "delta_upserts.py")
    lake.world.send(3 * BATCH)
    lake.finish()
    at_home = ["--home", str(lake.world.home), "--bootstrap-servers", lake.world.config["bootstrap.servers"]]
    cli.main(["savepoint", lake.world.pipeline, *at_home])
    saved = lake.world.commits()
    backup = shutil.copytree(lake.table, tmp_path / "backup")
    lake.world.send(3 * BATCH)
    lake.finish()
    shutil.rmtree(lake.table)
    shutil.move(backup, lake.table)
    assert lake.start().wait() == 64
    cli.main(["restore", lake.world.pipeline, "--commit", str(saved), *at_home])
    lake.finish()
    lake.check_latest()

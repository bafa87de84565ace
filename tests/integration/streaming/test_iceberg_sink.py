"""Kafka and an Iceberg table in one query: killed, superseded, set back, read by one who shares no code."""

from __future__ import annotations

import datetime
import json
import signal
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from airflow_provider_exactlyonce.cli import main as cli
from airflow_provider_exactlyonce.exceptions import AuditFailedError
from tests.iceberg_reader import newest_metadata, read_iceberg
from tests.integration.streaming.harness import Driver, World, check_ledger, read_committed
from tests.waiting import eventually

BATCH = 100
JOB = Path(__file__).parent / "jobs" / "iceberg_table.py"
NAME = "shop.events"


class Lake:
    """The world's pipeline, and its table."""

    def __init__(self, world: World, folder: Path) -> None:
        self.world, self.folder = world, folder
        folder.mkdir()
        world.job = JOB.name

    @property
    def table(self) -> Table:
        catalog = load_catalog(
            "lake", type="sql", uri=f"sqlite:///{self.folder}/catalog.db", warehouse=f"file://{self.folder}/warehouse"
        )
        return catalog.load_table(NAME)

    def environment(self) -> Mapping[str, str]:
        return {
            "TEST_PIPELINE": self.world.pipeline,
            "TEST_SOURCE": self.world.source,
            "TEST_SINK": self.world.sink,
            "TEST_LAKE": str(self.folder),
            "TEST_BATCH": str(BATCH),
        }

    def start(self, step: str | None = None, **how: Any) -> Driver:
        return self.world.start(environment=self.environment(), failpoints=step, **how)

    def finish(self) -> None:
        last = self.start()
        assert last.wait() == 0, last.output()[-3000:]

    def check(self) -> None:
        """Every input record is once in the table, as it was, and once in the topic; both ledgers agree."""
        rows = read_iceberg(newest_metadata(self.folder / "catalog.db", NAME))
        assert sorted(rows, key=lambda row: row["id"]) == [row_of(number) for number in range(self.world.sent)]
        values = [json.loads(record.value or b"") for record in read_committed(self.world.config, self.world.sink)]
        assert sorted(value["id"] for value in values) == list(range(self.world.sent))
        check_ledger(self.world)

    def check_files(self) -> None:
        """No file is left that the table does not have."""
        left = {f"file://{file}" for file in self.folder.rglob("*.parquet")}
        assert left == {task.file.file_path for task in self.table.scan().plan_files()}


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
    return Lake(world, tmp_path / "lake")


def test_a_batch_whose_snapshot_was_written_before_its_driver_died_is_there_once(lake: Lake) -> None:
    lake.world.send(2 * BATCH)
    driver = lake.start("after-sink-commit:batch=1")
    assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
    lake.finish()
    lake.check()
    lake.check_files()


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
    lake: Lake, monkeypatch: pytest.MonkeyPatch, steps: tuple[str, ...]
) -> None:
    lake.world.send(5 * BATCH)
    for step in steps:
        driver = lake.start(step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    lake.finish()
    lake.check()
    lake.check_files()
    for name, value in lake.environment().items():
        monkeypatch.setenv(name, value)
    audit = ["audit-sinks", str(JOB), "--bootstrap-servers", lake.world.config["bootstrap.servers"]]
    lake.table.maintenance.expire_snapshots().older_than(datetime.datetime(2100, 1, 1)).commit()
    assert cli.main(audit) == 0
    next(lake.folder.rglob("*.parquet")).unlink()
    assert cli.main(audit) == AuditFailedError.exit_code


@pytest.mark.slow
@pytest.mark.parametrize("step", ["after-sink-pre-commit:batch=1", "before-sink-decision:batch=1"])
def test_a_driver_that_was_frozen_is_superseded_and_adds_nothing(lake: Lake, tmp_path: Path, step: str) -> None:
    lake.world.send(3 * BATCH)
    held = tmp_path / "held"
    old = lake.start(f"{step}:hold={held}", until="forever", own_jvm=True)
    eventually(held.exists, "the old driver is at its step")
    old.signal_group(signal.SIGSTOP)
    lake.finish()
    old.signal_group(signal.SIGCONT)
    held.unlink()
    assert old.wait() == 66, old.output()[-3000:]
    lake.check()


@pytest.mark.slow
def test_a_table_that_was_rolled_back_gets_what_it_lacks(lake: Lake) -> None:
    lake.world.send(3 * BATCH)
    lake.finish()
    at_home = ["--home", str(lake.world.home), "--bootstrap-servers", lake.world.config["bootstrap.servers"]]
    cli.main(["savepoint", lake.world.pipeline, *at_home])
    saved = lake.world.commits()
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    lake.world.send(3 * BATCH)
    lake.finish()
    lake.table.manage_snapshots().rollback_to_snapshot(snapshot.snapshot_id).commit()
    refused = lake.start()
    assert refused.wait() == 64
    assert f"the sink was set back. Restore a savepoint at or before commit {saved}" in refused.output()
    cli.main(["restore", lake.world.pipeline, "--commit", str(saved), *at_home])
    lake.finish()
    lake.check()

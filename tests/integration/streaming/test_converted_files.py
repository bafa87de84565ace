"""A pipeline of 0.1.0 goes on in a Delta table: Kafka and table have each record once, judged record by record."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import AlreadyRunningError
from tests import commands
from tests.delta_reader import read_delta
from tests.integration.streaming.harness import JOBS, Driver, World, check_ledger, read_committed
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def check(world: World, table: Path) -> None:
    rows = sorted(read_delta(table), key=lambda row: int(row["id"]))
    assert rows == [{"id": number, "v": Decimal(number) / 100, "shop": str(number % 3)} for number in range(world.sent)]
    values = [json.loads(record.value or b"") for record in read_committed(world.config, world.sink)]
    assert sorted(value["id"] for value in values) == list(range(world.sent))
    check_ledger(world)


@pytest.mark.parametrize("step", ["after-sink-commit:batch=2", "after-pre-commit:batch=2", None])
def test_a_pipeline_of_0_1_0_goes_on_in_a_delta_table_wherever_it_was(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str | None
) -> None:
    """With the first step the files are one commit ahead of the ledger, with the second the batch is not in them."""
    table, world.job = tmp_path / "table", "archive.py"
    given = {"TEST_TABLE": str(table), "PYTHONPATH": str(Path(__file__).parents[3])}
    before = {**given, "TEST_RELEASE": "0.1.0"}
    convert = ["convert-files", str(table), *world.servers]
    world.send(300)
    old = world.start(environment=before, failpoints=step)
    assert old.wait() == (0 if step is None else -signal.SIGKILL), old.output()[-3000:]
    refused = world.start(environment=given)
    assert refused.wait() == 64, refused.output()[-3000:]
    assert f"exactlyonce convert-files {table}" in refused.output()
    if step is None:
        _refused_while_it_runs(world, before, convert)
    commands.run(*convert)
    superseded = world.start(environment=before)
    assert superseded.wait() == 66, superseded.output()[-3000:]
    world.send(250)
    for killed in ("before-sink-decision", "after-sink-commit"):
        driver = world.start(environment=given, failpoints=killed)
        assert driver.wait() == -signal.SIGKILL, driver.output()[-3000:]
    last = world.start(environment=given)
    assert last.wait() == 0, last.output()[-3000:]
    check(world, table)
    _audits(world, given, monkeypatch)


def _refused_while_it_runs(world: World, before: Mapping[str, str], convert: list[str]) -> None:
    live = world.start(environment=before, until="forever")
    claims = len(world.ledger()[1])
    eventually(lambda: len(world.ledger()[1]) > claims or live.process.poll() is not None, "the old driver runs again")
    commands.run(*convert, code=AlreadyRunningError.exit_code)
    _stop(world, live)


def _stop(world: World, driver: Driver) -> None:
    assert world.stop(driver) == 0, driver.output()[-3000:]


def _audits(world: World, given: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**world.names, "TEST_TABLE": given["TEST_TABLE"]}.items():
        monkeypatch.setenv(name, value)
    commands.run("audit-sinks", str(JOBS / "archive.py"), *world.servers)

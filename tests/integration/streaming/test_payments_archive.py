"""A Delta table and a write-ahead log in one query without a Kafka sink: killed at each step."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from airflow_provider_exactlyonce.exceptions import AuditFailedError
from tests import commands
from tests.delta_reader import read_delta
from tests.http_target import Server
from tests.integration.streaming.harness import World, check_ledger

STEPS = (
    "after-sink-pre-commit:batch=0",
    "after-sink-commit:batch=0",
    "after-delivery:batch=1",
    "after-sink-claim:run=1",
    "after-pre-commit:batch=2",
    "after-end-transaction:batch=3",
)
JOB = Path(__file__).parents[3] / "dags" / "jobs" / "payments_archive.py"


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.running() as server:
        yield server


def environment(world: World, server: Server, tmp_path: Path) -> Mapping[str, str]:
    return {
        "ARCHIVE_PIPELINE": world.pipeline,
        "ARCHIVE_SOURCE": world.source,
        "ARCHIVE_PATH": str(tmp_path / "table"),
        "ARCHIVE_LOG": str(tmp_path / "log"),
        "ARCHIVE_URL": server.url,
        "ARCHIVE_BATCH": "100",
    }


def rows_of(count: int) -> list[dict[str, Any]]:
    """Return what the table has: the values of partitions are texts in Delta's log."""
    return [
        {"id": number, "k": f"k{number % 37}", "v": number / 100, "shop": str(number % 4)} for number in range(count)
    ]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def check_audits(world: World, given: Mapping[str, str], table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sinks agree with the pipeline's ledger, until a file is changed."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    check_ledger(world)
    command = ["audit-sinks", str(JOB), *world.servers]
    commands.run(*command)
    changed = next(table.rglob("*.parquet"))
    content = changed.read_bytes()
    changed.write_bytes(content[:-1])
    commands.run(*command, code=AuditFailedError.exit_code)
    changed.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [STEPS[:3], STEPS[3:]], ids=["sinks", "ledger"])
def test_table_and_endpoint_have_each_record_once_whichever_step_the_driver_dies_at(
    world: World, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: Sequence[str]
) -> None:
    world.job = str(JOB)
    world.send(600)
    given = environment(world, server, tmp_path)
    for step in steps:
        driver = world.start(environment=given, failpoints=step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    last = world.start(environment=given)
    assert last.wait() == 0, last.output()[-3000:]
    table = tmp_path / "table"
    assert by_id(read_delta(table)) == rows_of(600)
    assert sorted(server.ids) == list(range(600))
    newest = DeltaTable(table).transaction_version(f"{world.pipeline}/files")
    assert newest is not None
    assert [commit for commit, _ in server.commits] == list(range(1, newest + 1))
    check_audits(world, given, table, monkeypatch)
    present = {str(file) for file in (table / "exactlyonce").rglob("*.parquet")}
    assert present == {name.removeprefix("file://") for name in DeltaTable(table).file_uris()}, (
        "nothing of dead attempts"
    )

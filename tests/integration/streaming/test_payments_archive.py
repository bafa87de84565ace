"""Files and a write-ahead log in one query without a Kafka sink: killed at each step, read by three readers."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.cli import main as cli
from airflow_provider_exactlyonce.exceptions import AuditFailedError
from airflow_provider_exactlyonce.streaming import FileTable
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
        "ARCHIVE_PATH": str(tmp_path / "files"),
        "ARCHIVE_LOG": str(tmp_path / "log"),
        "ARCHIVE_URL": server.url,
        "ARCHIVE_BATCH": "100",
    }


def rows_of(count: int) -> list[dict[str, Any]]:
    return [{"id": number, "k": f"k{number % 37}", "v": number / 100, "shop": number % 4} for number in range(count)]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: row["id"])


def check_audits(world: World, given: Mapping[str, str], files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both sinks agree with the pipeline's ledger, until a file is changed."""
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    check_ledger(world)
    command = ["audit-sinks", str(JOB), "--bootstrap-servers", world.config["bootstrap.servers"]]
    assert cli.main(command) == 0
    changed = next(files.rglob("*.parquet"))
    content = changed.read_bytes()
    changed.write_bytes(content[:-1])
    assert cli.main(command) == AuditFailedError.exit_code
    changed.write_bytes(content)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [STEPS[:3], STEPS[3:]], ids=["sinks", "ledger"])
def test_files_and_endpoint_have_each_record_once_whichever_step_the_driver_dies_at(
    world: World, server: Server, tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch, steps: Sequence[str]
) -> None:
    world.job = str(JOB)
    world.send(600)
    given = environment(world, server, tmp_path)
    for step in steps:
        driver = world.start(environment=given, failpoints=step)
        assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
    last = world.start(environment=given)
    assert last.wait() == 0, last.output()[-3000:]
    table = FileTable(str(tmp_path / "files"), pipeline=world.pipeline, sink="files")
    assert by_id(table.to_table().to_pylist()) == rows_of(600)
    assert sorted(server.ids) == list(range(600))
    assert [commit for commit, _ in server.commits] == list(range(1, table.commit + 1))
    check_audits(world, given, tmp_path / "files", monkeypatch)
    found = {str(file) for file in (tmp_path / "files").rglob("*.parquet")}
    assert found == set(table.paths()), "what dead attempts have left is removed"
    assert table.compact() == len(found) and len(table.paths()) == 4
    assert by_id([row.asDict() for row in spark.read.parquet(*table.paths()).collect()]) == rows_of(600)


def test_duckdb_reads_the_committed_files(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    import pyarrow as pa

    from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileSink
    from tests.integration.streaming.sinks.files.test_sink import PIPELINE, Live

    rows = rows_of(100)
    sink = FileSink(name="files", path=str(tmp_path / "files"), partition_by=["shop", "k"])
    live = Live(sink, tmp_path)
    for start in range(0, 100, 50):
        live.commit(pa.RecordBatch.from_pylist(rows[start : start + 50]))
    live.stage([pa.RecordBatch.from_pylist(rows)])
    paths = sink.table(PIPELINE).paths()
    found = duckdb.read_parquet(paths, hive_partitioning=False, union_by_name=True)
    assert by_id([dict(zip(found.columns, row, strict=True)) for row in found.fetchall()]) == rows

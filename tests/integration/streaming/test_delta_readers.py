"""What readers see of a Delta table while its pipeline is killed: the committed rows, as they were, and no others."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import duckdb_ext
import polars
import pytest
from deltalake import DeltaTable

from tests import delta_spark
from tests.integration.streaming.harness import World, read_committed
from tests.integration.streaming.test_delta_sink import BATCH, Lake, row_of
from tests.shared_jvm import SharedJvm

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]
STEPS = (
    "after-sink-claim:run=1",
    "after-sink-pre-commit:batch=0",
    "before-sink-decision:batch=0",
    "after-sink-commit:batch=1",
    "after-pre-commit:batch=2",
    "after-commit:batch=3",
)


@dataclass(frozen=True)
class Death:
    """A table as a killed driver has left it.

    :param expected: the rows of its commits
    """

    step: str
    table: Path
    expected: Rows


def appended(ids: list[int]) -> Rows:
    return [row_of(number) for number in ids]


def upserted(ids: list[int]) -> Rows:
    latest = {f"k{number % 37}": number for number in sorted(ids)}
    return [{"k": key, "id": number, "v": Decimal(number) / 100} for key, number in latest.items() if number % 5]


def committed(world: World, table: Path) -> list[int]:
    """Return the source records that the table's newest commit and those before it have, by the log's own JSON."""
    ends: Mapping[str, list[int]] = {}
    for file in sorted((table / "_delta_log").glob("*.json")):
        for line in file.read_text().splitlines():
            entry = json.loads(line).get("commitInfo", {}).get("exactlyonce", {}).get("entry")
            ends = entry["source"][world.source] if entry else ends
    records = read_committed(world.config, world.source)
    return [
        json.loads(record.value or b"")["id"]
        for record in records
        if record.offset < ends.get(str(record.partition), [0, 0])[1]
    ]


@pytest.fixture(scope="module", params=[("delta_table.py", appended), ("delta_upserts.py", upserted)], ids=["a", "u"])
def deaths(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    shared_jvm: SharedJvm,
) -> list[Death]:
    """Give the table as it is at each death of a pipeline, and at its end."""
    job, rows_of = request.param
    folder = tmp_path_factory.mktemp("readers")
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, folder / "home", jvm=shared_jvm)
    lake = Lake(world, folder / "table", job)
    world.send(5 * BATCH)
    recorded = []
    try:
        for step in STEPS:
            driver = lake.start(step)
            assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
            table = shutil.copytree(lake.table, folder / step.partition(":")[0])
            recorded.append(Death(step, table, rows_of(committed(world, table))))
        lake.finish()
        recorded.append(Death("the end", lake.table, rows_of(list(range(world.sent)))))
    finally:
        world.end()
    assert len({len(death.expected) for death in recorded}) > 2
    return recorded


def by_duckdb(paths: list[Path]) -> list[Rows]:
    extensions: dict[str, Any] = {"extension_directory": f"{duckdb_ext.__path__[0]}/extensions"}
    with duckdb.connect(config=extensions) as connection:
        query = "SELECT * FROM delta_scan(?)"
        return [connection.execute(query, [str(path)]).fetch_arrow_table().to_pylist() for path in paths]


def by_polars(paths: list[Path]) -> list[Rows]:
    return [polars.scan_delta(str(path)).collect().to_dicts() for path in paths]


def by_pyarrow(paths: list[Path]) -> list[Rows]:
    return [DeltaTable(path).to_pyarrow_dataset().to_table().to_pylist() for path in paths]


def by_spark(paths: list[Path]) -> list[Rows]:
    try:
        return delta_spark.read(*paths)
    except delta_spark.NoJarsError as error:
        pytest.skip(f"Maven does not give {error}")


@pytest.mark.parametrize("read", [by_duckdb, by_polars, by_pyarrow, by_spark], ids=lambda read: read.__name__)
def test_a_reader_sees_the_committed_rows_and_no_others(
    deaths: list[Death], read: Callable[[list[Path]], list[Rows]]
) -> None:
    for death, visible in zip(deaths, read([death.table for death in deaths]), strict=True):
        rows = sorted(visible, key=lambda row: row["id"])
        assert rows == sorted(death.expected, key=lambda row: row["id"]), death.step

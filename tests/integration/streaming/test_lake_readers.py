"""What readers see of a lake's table while its pipeline is killed: the committed rows, as they were, and no others."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import duckdb
import duckdb_ext
import polars
import pytest
from deltalake import DeltaTable
from pyiceberg.table import StaticTable

from tests import spark_readers, trino_server
from tests.delta_reader import newest_delta_entry
from tests.iceberg_reader import newest_iceberg_entry, newest_metadata, read_iceberg
from tests.integration.streaming.harness import World, read_committed
from tests.integration.streaming.lakehouse import BATCH, KINDS, LakePipeline, expected
from tests.integration.streaming.sinks.iceberg.lake import NAME, IcebergLake
from tests.shared_jvm import SharedJvm
from tests.trino_server import Trino

pytestmark = pytest.mark.slow

Rows = list[dict[str, Any]]
Reader = Callable[[Sequence[str]], list[Rows]]
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

    :ivar table: a Delta table's directory, or an Iceberg table's metadata
    :ivar expected: the rows of its commits
    """

    step: str
    format: str
    table: str
    expected: Rows


def committed(world: World, entry: Mapping[str, Any] | None) -> list[int]:
    """Return the source records that a commit and those before it have."""
    ends = entry["source"][world.source] if entry else {}
    records = read_committed(world.config, world.source)
    return [
        json.loads(record.value or b"")["id"]
        for record in records
        if record.offset < ends.get(str(record.partition), [0, 0])[1]
    ]


@pytest.fixture(scope="module", params=KINDS)
def deaths(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    shared_jvm: SharedJvm,
) -> list[Death]:
    """Give the table as it is at each death of a pipeline, and at its end."""
    folder = tmp_path_factory.mktemp("readers")
    source, sink = make_topic(partitions=3), make_topic(partitions=4)
    world = World(kafka_config, f"p-{source}", source, sink, folder / "home", jvm=shared_jvm)
    pipeline = LakePipeline(world, request.param, folder / "table")
    world.send(5 * BATCH)
    recorded = []

    def record(what: str, numbers: Iterable[int] | None = None) -> None:
        if isinstance(pipeline.lake, IcebergLake):
            table = newest_metadata(pipeline.folder / "catalog.db", NAME)
            of, entry = "iceberg", newest_iceberg_entry(table)
        else:
            table = str(shutil.copytree(pipeline.folder, folder / what))
            of, entry = "delta", newest_delta_entry(table)
        numbers = committed(world, entry) if numbers is None else numbers
        recorded.append(Death(what, of, table, expected(pipeline.kind, numbers)))

    try:
        for step in STEPS:
            driver = pipeline.start(step)
            assert driver.wait() == -signal.SIGKILL, f"{step}: {driver.output()[-3000:]}"
            record(step.partition(":")[0])
        pipeline.finish()
        record("end", range(world.sent))
    finally:
        world.end()
    assert len({len(death.expected) for death in recorded}) > 2
    return recorded


@pytest.fixture(scope="module")
def trino(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trino]:
    with trino_server.running(tmp_path_factory.mktemp("trino")) as started:
        yield started


def delta_by_duckdb(tables: Sequence[str]) -> list[Rows]:
    extensions: dict[str, Any] = {"extension_directory": f"{duckdb_ext.__path__[0]}/extensions"}
    with duckdb.connect(config=extensions) as connection:
        query = "SELECT * FROM delta_scan(?)"
        return [connection.execute(query, [table]).fetch_arrow_table().to_pylist() for table in tables]


def delta_by_polars(tables: Sequence[str]) -> list[Rows]:
    return [polars.scan_delta(table).collect().to_dicts() for table in tables]


def delta_by_pyarrow(tables: Sequence[str]) -> list[Rows]:
    return [DeltaTable(table).to_pyarrow_dataset().to_table().to_pylist() for table in tables]


def iceberg_by_duckdb(tables: Sequence[str]) -> list[Rows]:
    return [read_iceberg(table) for table in tables]


def iceberg_by_polars(tables: Sequence[str]) -> list[Rows]:
    return [polars.scan_iceberg(table).collect().to_dicts() for table in tables]


def iceberg_by_pyarrow(tables: Sequence[str]) -> list[Rows]:
    return [StaticTable.from_metadata(table).scan().to_arrow().to_pylist() for table in tables]


READERS: Mapping[str, Mapping[str, Reader]] = {
    "duckdb": {"delta": delta_by_duckdb, "iceberg": iceberg_by_duckdb},
    "polars": {"delta": delta_by_polars, "iceberg": iceberg_by_polars},
    "pyarrow": {"delta": delta_by_pyarrow, "iceberg": iceberg_by_pyarrow},
    "spark": {"delta": spark_readers.DELTA.read, "iceberg": spark_readers.ICEBERG.read},
}


def compare(deaths: list[Death], read: Reader) -> None:
    for death, visible in zip(deaths, read([death.table for death in deaths]), strict=True):
        rows = sorted(map(with_pairs, visible), key=lambda row: row["id"])
        assert rows == sorted(death.expected, key=lambda row: row["id"]), death.step


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")  # polars could plan faster with a package more
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_sees_the_committed_rows_and_no_others(deaths: list[Death], reader: str) -> None:
    try:
        compare(deaths, READERS[reader][deaths[0].format])
    except spark_readers.NoJarsError as error:
        pytest.skip(f"Maven does not give {error}")


def test_trino_sees_the_committed_rows_and_no_others(deaths: list[Death], trino: Trino) -> None:
    if deaths[0].format == "delta":
        compare([replace(death, expected=in_milliseconds(death.expected)) for death in deaths], trino.read_delta)
    else:
        compare(deaths, trino.read_iceberg)


def with_pairs(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its map as pairs, in order: some readers have a dictionary of it."""
    return {**row, "labels": sorted(dict(row["labels"]).items())} if "labels" in row else row


def in_milliseconds(rows: Rows) -> Rows:
    """Return rows as Trino has them: to it Delta's TIMESTAMP is one of milliseconds."""
    return [{**row, "at": cut(row["at"])} if "at" in row else row for row in rows]


def cut(at: datetime) -> datetime:
    return at.replace(microsecond=at.microsecond // 1000 * 1000)

"""Sinks beside Spark, which writes to the same table in a process of its own with Delta's and Iceberg's own jars.

Each row is judged one by one, by readers that share no code with the sinks.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.integration.streaming.sinks.delta.lake import DeltaLake
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import Lake, Live
from tests.spark_readers import NoJarsError
from tests.spark_writers import SparkWriter, delta_writer, iceberg_writer

pytestmark = pytest.mark.slow

DELTA, ICEBERG = "delta", "iceberg"
#: How often a sink commits beside one statement, at most: Spark has to begin anew when rows of its files were replaced.
MOST_COMMITS = 20
#: How often Spark is given one more statement when no commit has begun while one was running.
MOST_STATEMENTS = 20
#: Ids of rows that Spark writes begin there.
SPARKS = 1_000_000
#: What a maintenance of each kind is called.
MAINTENANCE: Mapping[str, Sequence[str]] = {
    DELTA: ("OPTIMIZE {table}", "ALTER TABLE {table} ADD COLUMNS (more STRING)"),
    ICEBERG: (
        "CALL lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))",
        "ALTER TABLE {table} ADD COLUMNS (more STRING)",
        "CALL lake.system.rewrite_manifests('{table}')",
    ),
}
MODES: Mapping[str, Mapping[str, Any]] = {
    "append": {},
    "compacting": {"compact_every": 2},
    "upsert": {"mode": "upsert", "key": "id"},
    "partitions": {"mode": "overwrite partitions", "partition_by": "k"},
}


@dataclass
class Beside:
    """A table, a run of a sink into it, and Spark.

    :ivar expected: the text of each id
    """

    lake: Lake
    table: str
    maintenance: Sequence[str]
    spark: SparkWriter
    mode: str
    live: Live
    entries: list[Any] = field(default_factory=list)
    expected: dict[int, str] = field(default_factory=dict)
    sparks: int = 0

    def statements(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield statements, and what each makes of the expected rows."""
        yield self.insert()
        yield self.merge()
        for number, maintenance in enumerate(self.maintenance):
            yield maintenance.format(table=self.table), lambda: None
            yield self.merge() if number else self.insert()

    def insert(self) -> tuple[str, Callable[[], None]]:
        self.sparks += 2
        first, second = SPARKS + self.sparks, SPARKS + self.sparks + 1
        statement = f"INSERT INTO {self.table} (id, k) VALUES ({first}, 's'), ({second}, 's')"
        return statement, lambda: self.expected.update({first: "s", second: "s"})

    def merge(self) -> tuple[str, Callable[[], None]]:
        """Change a row that Spark has just inserted, and insert one."""
        known, new = SPARKS + self.sparks, SPARKS + self.sparks + 500_000
        statement = (
            f"MERGE INTO {self.table} AS t USING (SELECT id, 'm' AS k FROM VALUES ({known}L), ({new}L) AS v(id)) AS s "
            "ON t.id = s.id WHEN MATCHED THEN UPDATE SET t.k = s.k "
            "WHEN NOT MATCHED THEN INSERT (id, k) VALUES (s.id, s.k)"
        )
        return statement, lambda: self.expected.update({known: "m", new: "m"})

    def commit_beside(self, threads: ThreadPoolExecutor, statement: str, expect: Callable[[], None]) -> int:
        """Commit while a statement runs; returns how many commits have begun when Spark had it and had not ended it."""
        running, beside = threads.submit(self.spark.insist, statement), 0
        for _ in range(MOST_COMMITS):
            beside += self.spark.is_running
            self.commit()
            if running.done():
                break
        running.result()
        expect()
        self.check()
        return beside

    def commit(self) -> None:
        number = self.live.number
        text = f"c{number % 5}"
        if self.mode == "upsert":
            given = dict.fromkeys([*range(number, number + 5)], text)
        else:
            given = dict.fromkeys(range(10 * number, 10 * number + 5), text)
        if self.mode == "partitions":
            self.expected = {id_: kept for id_, kept in self.expected.items() if kept != text}
        self.entries.append(self.live.commit([{"id": id_, "k": text} for id_ in given]))
        self.expected.update(given)

    def check(self) -> None:
        rows = [(row["id"], row["k"]) for row in self.lake.rows()]
        assert rows == sorted(self.expected.items())


@pytest.fixture(scope="module", params=[DELTA, ICEBERG])
def spark(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path, Any]]:
    """Give the kind of the tables, the folder of all, and what runs statements."""
    folder = tmp_path_factory.mktemp("lakes")
    if request.param == ICEBERG:
        IcebergLake(folder).catalog.create_namespace("shop")
    try:
        with (delta_writer if request.param == DELTA else iceberg_writer)(folder) as writer:
            yield request.param, folder, writer
    except NoJarsError as error:
        pytest.skip(f"Maven does not give {error}")


@pytest.fixture(params=MODES)
def beside(request: pytest.FixtureRequest, spark: tuple[str, Path, SparkWriter], tmp_path: Path) -> Beside:
    """Give a table that a sink has committed to once."""
    kind, folder, writer = spark
    name = f"t{uuid.uuid4().hex}"
    lake: Lake
    if kind == DELTA:
        lake, table = DeltaLake(folder / name), f"delta.`{folder / name}`"
    else:
        lake, table = IcebergLake(folder), f"lake.shop.{name}"
        lake.name = f"shop.{name}"
    live = Live(lake.sink(**MODES[request.param]), tmp_path)
    beside = Beside(lake, table, MAINTENANCE[kind], writer, request.param, live)
    beside.commit()
    return beside


def test_what_spark_writes_between_look_and_commit_is_followed_by_the_commit(
    beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    for statement, expect in beside.statements():

        def be_faster(write: Callable[[], None], statement: str = statement, expect: Any = expect) -> None:
            beside.spark.insist(statement)
            write()

        beside.lake.at_next_write(monkeypatch, be_faster)
        expect()
        beside.commit()
        beside.check()
    assert beside.live.audit(beside.entries) == []


def test_a_sink_commits_all_the_time_that_spark_writes(beside: Beside) -> None:
    with ThreadPoolExecutor() as threads:
        overlapping = sum(beside.commit_beside(threads, *each) for each in beside.statements())
        for _ in range(MOST_STATEMENTS):
            overlapping = overlapping or beside.commit_beside(threads, *beside.insert())
    assert overlapping, "no commit has begun while Spark ran a statement"
    assert beside.live.audit(beside.entries) == []

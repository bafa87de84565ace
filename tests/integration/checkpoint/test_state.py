"""Checkpoints that Spark itself writes, of each state backend and format: a savepoint of a batch is all it needs.

Also the contract test of checkpoint/state.py. When it breaks after an upgrade of Spark: list the files of a checkpoint
of the new version, and compare them with that module's docstring.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.state_reader import read_state
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import StateBackend
from tests.unit.checkpoint import crafted

pytestmark = pytest.mark.timeout(3600)

PREFIX = "spark.sql.streaming.stateStore."
KEYS, ROWS = 20, 60
Output = dict[int, list[Row]]


def counts(events: DataFrame) -> tuple[DataFrame, str]:
    return events.groupBy("k").agg(F.sum("v").alias("total")), "update"


def total(events: DataFrame) -> tuple[DataFrame, str]:
    return events.agg(F.sum("v").alias("total")), "update"


def limited(events: DataFrame) -> tuple[DataFrame, str]:
    return events.limit(3 * ROWS), "append"


def joined(events: DataFrame) -> tuple[DataFrame, str]:
    left = events.select("v", F.col("ts").alias("at")).withWatermark("at", "1 minute")
    right = events.select(F.col("v").alias("w"), F.col("ts").alias("then")).withWatermark("then", "1 minute")
    return left.join(right, F.expr("v = w + 30 AND then BETWEEN at - INTERVAL 1 MINUTE AND at")), "append"


def transformed(events: DataFrame) -> tuple[DataFrame, str]:
    class Adding(StatefulProcessor):  # in here, so that workers get it by value
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "n long")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803 - Spark's names
            total = (self.total.get()[0] if self.total.exists() else 0) + sum(row["v"] for row in rows)
            self.total.update((total,))
            yield Row(k=key[0], total=total)

    return events.groupBy("k").transformWithState(Adding(), "k string, total long", "update", "none"), "update"


@dataclass(frozen=True)
class Case:
    backend: StateBackend
    plan: Callable[[DataFrame], tuple[DataFrame, str]] = counts
    format: int | None = None

    @property
    def conf(self) -> Mapping[str, str]:
        given = {f"{PREFIX}checkpointFormatVersion": str(self.format)} if self.format else {}
        return {**self.backend.conf, f"{PREFIX}minDeltasForSnapshot": "2", **given}


HASHMAP, ROCKSDB, CHANGELOG = StateBackend.hashmap(), StateBackend.rocksdb(), StateBackend.rocksdb(changelog=True)
SLOW = pytest.mark.slow
CASES = [
    pytest.param(Case(HASHMAP), id="hashmap", marks=SLOW),
    pytest.param(Case(CHANGELOG), id="changelog", marks=SLOW),
    pytest.param(Case(ROCKSDB, joined), id="join", marks=SLOW),
    pytest.param(Case(ROCKSDB, transformed), id="transformWithState", marks=SLOW),
    pytest.param(Case(ROCKSDB, total), id="without-keys", marks=SLOW),
    pytest.param(Case(HASHMAP, limited), id="limit", marks=SLOW),
    pytest.param(Case(ROCKSDB), id="rocksdb", marks=SLOW),
    pytest.param(Case(ROCKSDB, format=1), id="rocksdb-1", marks=SLOW),
    pytest.param(Case(CHANGELOG, format=1), id="changelog-1", marks=SLOW),
    pytest.param(Case(HASHMAP, joined), id="join-hashmap", marks=SLOW),
    pytest.param(Case(CHANGELOG, joined), id="join-changelog", marks=SLOW),
]


def feed(folder: Path, number: int) -> None:
    folder.mkdir(exist_ok=True)
    rows = [
        {"k": f"k{value % KEYS}", "v": value, "ts": f"2026-01-01T00:{number:02d}:{value % 60:02d}Z"}
        for value in range(number * ROWS, (number + 1) * ROWS)
    ]
    hidden = folder / f".{number}"
    hidden.write_text("\n".join(map(json.dumps, rows)))
    os.utime(hidden, (1_700_000_000 + number,) * 2)
    hidden.rename(folder / f"{number}.json")


def run(spark: SparkSession, case: Case, folder: Path, checkpoint: Path) -> Output:
    """Run a query over all files, one a batch; returns each batch's rows."""
    output: Output = {}
    before = {name: spark.conf.get(name, None) for name in case.conf}
    for name, value in case.conf.items():
        spark.conf.set(name, value)
    reader = spark.readStream.schema("k string, v long, ts timestamp").option("maxFilesPerTrigger", 1)
    result, mode = case.plan(reader.json(str(folder)))
    writer = result.writeStream.outputMode(mode).option("checkpointLocation", str(checkpoint))
    query = writer.foreachBatch(lambda frame, number: output.update({number: sorted(frame.collect())}))
    query.trigger(availableNow=True).start().awaitTermination()
    for name, former in before.items():  # unset, it would be Spark's default, not the session's
        spark.conf.unset(name) if former is None else spark.conf.set(name, former)
    return output


def take(store: Savepoints, checkpoint: Checkpoint, batch: int) -> str:
    offsets = checkpoint.offsets(batch)
    assert offsets is not None
    return store.take(checkpoint, batch, replace(crafted.record(batch), offsets=offsets.text), None).id


@pytest.mark.parametrize("case", CASES)
def test_a_query_goes_on_from_a_savepoint_of_an_older_batch_as_if_nothing_had_happened(
    spark: SparkSession, tmp_path: Path, case: Case
) -> None:
    source, store = tmp_path / "in", Savepoints(tmp_path / "savepoints")
    for number in range(3):
        feed(source, number)
    first = tmp_path / "first"
    original = run(spark, case, source, first)
    checkpoint = Checkpoint(first)
    assert integrity.newest_whole(checkpoint) == (max(original), [])
    with pytest.raises(RefusedError, match="has its state in"):
        (ROCKSDB if case.backend is HASHMAP else HASHMAP).check_lineage("l", checkpoint.conf())
    case.backend.check_lineage("l", checkpoint.conf())
    taken = take(store, checkpoint, 1)
    (first / "commits/2").unlink()  # Spark runs the batch again, over the files that it had written for it
    (first / "commits/.2.crc").unlink()
    for number in (3, 4):
        feed(source, number)
    original |= run(spark, case, source, first)
    shutil.rmtree(first)
    assert store.verify(taken) == []
    savepoint = store.get(taken)
    assert savepoint.state_backend == ("hashmap" if case.backend.name == "hashmap" else savepoint.state_backend)
    assert savepoint.state_format == (case.format or (2 if case.backend.name == "rocksdb" else 1))
    assert all(operator.schemas for operator in savepoint.operators)

    second = tmp_path / "second"
    lineages.make(second, store.checkpoint(taken).path, savepoint.files, Lineage(id=str(uuid.uuid4())))
    rows, errors = read_state(second / "checkpoint", savepoint, spark)
    assert errors == []
    kept = 1 if case.plan in (total, limited) else KEYS
    assert [store["rows"] for store in rows] == [kept] if case.plan is not joined else len(rows) == 4
    again = run(spark, case, source, second / "checkpoint")  # batches without data come at other times
    assert [rows for rows in again.values() if rows] == [rows for n, rows in original.items() if n > 1 and rows]
    assert any(again.values())


def test_damage_to_what_spark_wrote_is_found_and_named(spark: SparkSession, tmp_path: Path) -> None:
    case = Case(CHANGELOG)
    for number in range(3):
        feed(tmp_path / "in", number)
    run(spark, case, tmp_path / "in", tmp_path / "running")
    # Spark's maintenance still uploads snapshots, and then needs fewer changelogs.
    shutil.copytree(tmp_path / "running", tmp_path / "original")
    original = Checkpoint(tmp_path / "original")
    damages: dict[str, Callable[[bytes], bytes]] = {
        "truncated": lambda data: data[: len(data) // 2],
        "zeroed": lambda data: bytes(len(data)),
        "empty": lambda data: b"",
    }
    kinds = set()
    for path in integrity.files_of(original, 2).files:
        for name, damage in damages.items():
            copy = tmp_path / "copy"
            shutil.copytree(original.path, copy)
            file = copy / path
            file.write_bytes(damage(file.read_bytes()))
            batch, defects = integrity.newest_whole(Checkpoint(copy))
            shutil.rmtree(copy)
            if path.endswith(".crc") or path.startswith(("commits/0", "commits/1")):
                continue  # a note beside a file that is whole, and what only later batches need
            assert path in [defect.path for defect in defects], (path, name, defects)
            assert batch is None or batch < 2
            kinds.add(Path(path).suffix or path.partition("/")[0])
    assert kinds >= {"metadata", "offsets", "commits", "sources", ".changelog", "state"}

"""The contract of the adapter for Spark's repartitioning of state.

When this fails with another Spark: see what ``StreamingCheckpointManager`` of pyspark/sql/streaming/query.py offers,
and what the reader of the format ``statestore`` shows to Spark's own repartitioning. Mend
``streaming/spark/repartition.py`` after it, run this again, and then
``tests/integration/streaming/replay/test_rescale.py`` with ``-m ""``. Until then a rescale is refused, or fails before
anything is changed; everything else goes on.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.checkpoint import integrity, lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.state import SHUFFLE_PARTITIONS, StateDirectory
from airflow_provider_exactlyonce.control.home import Lineage
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.streaming.spark.repartition import Repartition
from tests.integration.checkpoint.test_state import HASHMAP, KEYS, ROCKSDB, Case, feed, joined, run, transformed


def open_state(
    spark: SparkSession, checkpoint: Checkpoint, messages: list[str], *, state_format: int = 2
) -> Repartition:
    return Repartition(spark, checkpoint.path, checkpoint.conf(), state_format=state_format, tell=messages.append)


def test_spark_adds_a_batch_that_differs_in_nothing_but_the_number_of_its_partitions(
    spark: SparkSession, tmp_path: Path
) -> None:
    for number in range(2):
        feed(tmp_path / "in", number)
    run(spark, Case(ROCKSDB), tmp_path / "in", tmp_path / "ck")
    checkpoint, messages = Checkpoint(tmp_path / "ck"), list[str]()
    operators = StateDirectory(checkpoint.path).operators(1)
    state = open_state(spark, checkpoint, messages)
    before = state.sums(checkpoint.path, 1, operators)
    assert {place: rows for place, (rows, _) in before.items()} == {(0, "default", "default"): KEYS}
    state.run(5)
    assert (checkpoint.batches("offsets"), checkpoint.batches("commits")) == ([0, 1, 2], [0, 1, 2])
    made, original = checkpoint.offsets(2), checkpoint.offsets(1)
    assert made is not None
    assert original is not None
    assert made.same_sources(original)
    assert made.conf == {**original.conf, SHUFFLE_PARTITIONS: "5"}
    assert [operator.partitions for operator in StateDirectory(checkpoint.path).operators(2)] == [5]
    assert integrity.defects_of(checkpoint, 2) == []
    assert state.sums(checkpoint.path, 2, operators) == before
    assert messages[0] == "reading the state of batch 1, operator 0, default"
    assert "dealing the state out to 5 partitions" in messages
    with pytest.raises(RefusedError, match=r"STATE_REPARTITION_INVALID_CHECKPOINT.SHUFFLE_PARTITIONS_ALREADY_MATCH"):
        state.run(5)
    (checkpoint.path / "commits/2").unlink()
    (checkpoint.path / "commits/.2.crc").unlink()
    with pytest.raises(RefusedError, match=r"STATE_REPARTITION_INVALID_CHECKPOINT"):
        state.run(3)
    with pytest.raises(ExactlyOnceError, match=r"Spark can't read operator 0 \(stateStoreSave\), default, of batch 9"):
        state.sums(checkpoint.path, 9, operators)


def sessions(events: DataFrame) -> tuple[DataFrame, str]:
    counted = events.withWatermark("ts", "10 seconds").groupBy(F.session_window("ts", "3 seconds"), "k").count()
    return counted.select("k", "count"), "append"


def twice_stateful(events: DataFrame) -> tuple[DataFrame, str]:
    once = events.withWatermark("ts", "10 seconds").dropDuplicatesWithinWatermark(["k", "ts"])
    return once.groupBy(F.window("ts", "10 seconds"), "k").count().select("k", "count", "window.start"), "append"


def in_pandas(events: DataFrame) -> tuple[DataFrame, str]:
    def add(key: Any, frames: Any, state: Any) -> Any:
        import pandas as pd

        state.update(((state.get[0] if state.exists else 0) + sum(map(len, frames)),))
        yield pd.DataFrame({"k": [key[0]], "n": [state.get[0]]})

    counted = events.groupBy("k").applyInPandasWithState(add, "k string, n long", "n long", "update", "NoTimeout")
    return counted, "update"


def with_maps(events: DataFrame) -> tuple[DataFrame, str]:
    return events.groupBy("k").agg(F.first(F.create_map("k", "v"))["k0"].alias("m"), F.count("*").alias("n")), "update"


@pytest.mark.slow
@pytest.mark.parametrize("plan", [sessions, twice_stateful, in_pandas, with_maps, joined, transformed])
def test_a_query_goes_on_with_other_partitions_as_it_does_with_its_own(
    spark: SparkSession, tmp_path: Path, plan: Any
) -> None:
    case, source, original = Case(ROCKSDB, plan), tmp_path / "in", Checkpoint(tmp_path / "original")
    for number in range(3):
        feed(source, number)
    run(spark, case, source, original.path)
    batch = original.newest_commit()
    assert batch is not None
    copied = integrity.files_of(original, batch).files
    work = Checkpoint(lineages.work_copy(tmp_path, original.path, copied, str(uuid.uuid4())))
    open_state(spark, work, []).run(3)
    made = integrity.files_of(work, batch + 1)
    assert made.defects == ()
    lineages.make(tmp_path / "made", work.path, made.files, Lineage(id=str(uuid.uuid4())))
    for number in (3, 4):
        feed(source, number)
    expected = run(spark, case, source, original.path)
    repartitioned = run(spark, case, source, tmp_path / "made" / "checkpoint")
    assert any(expected.values())
    assert list(repartitioned.values()) == list(expected.values())


def test_spark_refuses_state_in_memory(spark: SparkSession, tmp_path: Path) -> None:
    feed(tmp_path / "in", 0)
    run(spark, Case(HASHMAP), tmp_path / "in", tmp_path / "ck")
    with pytest.raises(RefusedError, match=r"STATE_REPARTITION_INVALID_CHECKPOINT.UNSUPPORTED_PROVIDER"):
        open_state(spark, Checkpoint(tmp_path / "ck"), [], state_format=1).run(4)

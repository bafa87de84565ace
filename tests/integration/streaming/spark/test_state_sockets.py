"""The sockets between keyed functions and their state: Spark alone would leave one open for each task."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ValueState
from airflow_provider_exactlyonce.streaming import key_by
from tests.waiting import eventually

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BATCHES = 15


class Count(KeyedProcessFunction[Any, Any]):
    output = "key BIGINT, rows BIGINT"

    rows: ValueState[tuple[int]] = ValueState("rows BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        (rows,) = self.rows.value() or (0,)
        self.rows.update((rows + 1,))
        yield value.key, rows + 1


def sockets_of(process: int) -> int:
    return len(psutil.Process(process).net_connections("all"))


def test_they_are_closed_with_their_tasks(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    process = int(getattr(jvm, "java.lang.ProcessHandle").current().pid())
    rate = spark.readStream.format("rate-micro-batch").options(rowsPerBatch=20, numPartitions=1).load()
    counted = key_by(rate.selectExpr("value % 5 AS key"), "key").process(Count())
    query = counted.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()

    def is_at(batch: int) -> bool:
        assert query.exception() is None
        progress: Any = query.lastProgress
        return progress is not None and progress["batchId"] >= batch

    try:
        eventually(lambda: is_at(2), "it has begun", poll_seconds=0.1)
        before = sockets_of(process)
        eventually(lambda: is_at(2 + BATCHES), "batches have run", poll_seconds=0.1)
        assert sockets_of(process) < before + BATCHES / 2
    finally:
        query.stop()

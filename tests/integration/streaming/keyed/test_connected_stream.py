"""Rules from a control stream, in Spark: each task sees those of its batch."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state import BroadcastProcessFunction, BroadcastState, Context
from airflow_provider_exactlyonce.streaming import connect

SCHEMA = "is_rule BOOLEAN, name STRING, i BIGINT"


def switch() -> BroadcastProcessFunction[Any, Any, Any]:
    class Switch(BroadcastProcessFunction[Any, Any, Any]):  # in here, so that workers get it by value
        output = "i BIGINT, switch BIGINT, known BIGINT, copy INT"
        control_order_by = ("i",)
        values: BroadcastState[str, int] = BroadcastState("STRING", "BIGINT")

        def process_element(self, value: Any, context: Context) -> Iterator[Any]:
            yield value.i, self.values.get("switch"), len(list(self.values.items())), context.key[0]

        def process_broadcast_element(self, value: Any, context: Context) -> None:
            self.values.put(value.name, value.i)

    return Switch()


def feed(folder: Path, batches: list[list[Mapping[str, Any]]]) -> None:
    folder.mkdir()
    for number, rows in enumerate(batches):
        file = folder / f"{number}.json"
        file.write_text("\n".join(map(json.dumps, rows)))
        os.utime(file, (1_700_000_000 + number,) * 2)


def test_every_copy_sees_the_rules_of_its_batch_also_after_a_restart(spark: SparkSession, tmp_path: Path) -> None:
    data = [{"is_rule": False, "i": number} for number in range(40)]
    batches: list[list[Mapping[str, Any]]] = [
        [*data],
        [*data, {"is_rule": True, "name": "switch", "i": 2}, {"is_rule": True, "name": "switch", "i": 1}],
        [*data],
        [{"is_rule": True, "name": "switch", "i": 7}, {"is_rule": True, "name": "other", "i": 0}, *data],
    ]
    feed(tmp_path / "in", batches)
    collected: dict[int, list[Any]] = {}

    def keep(result: DataFrame, batch: int) -> None:
        collected[batch] = result.collect()
        if batch == 2 and len(collected) == 3:
            raise RuntimeError("once")

    def start() -> None:
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(tmp_path / "in"))
        answered = connect(
            source.where("NOT is_rule").select("i"), source.where("is_rule").select("name", "i"), copies=3
        )
        writer = answered.process(switch()).writeStream.foreachBatch(keep)
        stream = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        stream.awaitTermination()

    with pytest.raises(Exception, match="once"):
        start()
    del collected[0]
    start()
    expected = {1: (2, 1), 2: (2, 1), 3: (7, 2)}
    for batch, (value, known) in expected.items():
        assert sorted(row.i for row in collected[batch]) == list(range(40))
        assert {(row.switch, row.known) for row in collected[batch]} == {(value, known)}
        assert len({row["copy"] for row in collected[batch]}) == 3


def test_no_copy_of_the_rules_is_refused(spark: SparkSession) -> None:
    frame = spark.range(1).select(F.col("id").alias("i"))
    with pytest.raises(RefusedError, match="copies=0: at least 1"):
        connect(frame, frame.select(F.lit("x").alias("name"), "i"), copies=0).process(switch())

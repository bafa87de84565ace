"""The contract of the adapter for Spark's private parts.

When this fails with another Spark: ``missing_part`` names what is gone or renamed. Mend ``streaming/spark/steering.py``
after the source of Spark (its classes are named there), run this again, and then ``test_restore.py`` with ``-m ""``.
Until then nothing is lost: a pipeline whose Spark lacks a part is replayed with one start of the query per recorded
batch.
"""

from __future__ import annotations

import json
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from pyspark.sql import functions as F

from airflow_provider_exactlyonce.streaming.job.kafka_source import KafkaSource
from airflow_provider_exactlyonce.streaming.spark import steering
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from airflow_provider_exactlyonce.streaming.spark.steering import SteeredQuery, SteeringError, missing_part
from tests.integration.streaming.replay.harness import Bench
from tests.integration.streaming.replay.shapes import SCHEMA, with_time
from tests.waiting import HANG_SECONDS


def test_this_spark_has_every_part_that_steering_touches(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    spark = open_session("contract")
    assert missing_part(spark) is None
    gone = ((f"{steering._RUNTIME}.StreamExecution", "sundial"),)
    monkeypatch.setattr(steering, "_FIELDS", gone)
    assert "sundial" in str(missing_part(spark))


def test_a_steered_batch_is_what_it_was_told_and_the_next_one_is_sparks_own(bench: Bench, tmp_path: Path) -> None:
    spark, topics = open_session("contract"), bench.topics("windowed")
    bench.input().send(topics)
    source = KafkaSource(topics[""], schema=SCHEMA, max_offsets_per_trigger=10)
    ends: list[dict[str, int]] = []
    headers: list[dict[str, Any]] = []
    queries: list[Any] = []
    started = Event()

    def callback(frame: Any, batch: int) -> None:
        frame.collect()
        _, header, line = (tmp_path / "ck" / "offsets" / str(batch)).read_text().split("\n")
        headers.append(json.loads(header))
        ends.append(json.loads(line)[topics[""]])
        if batch == 0:
            assert started.wait(HANG_SECONDS)
            queries.append(SteeredQuery(spark, queries[0]))
            queries[1].forget_operator_watermarks()
            queries[1].steer(
                [json.dumps({topics[""]: {"0": 20, "1": 7}})], timestamp=1_234_567, watermark=1_000_100_000
            )
        elif batch == 1:
            queries[1].release()

    stream = with_time(source.read(spark, bench.config)).groupBy(F.window("at", "10 seconds")).count()
    query = (
        stream.writeStream.outputMode("update")
        .option("checkpointLocation", str(tmp_path / "ck"))
        .foreachBatch(callback)
        .trigger(availableNow=True)
        .start()
    )
    queries.append(query)
    started.set()
    assert query.awaitTermination(240)
    assert sum(ends[0].values()) == 10
    assert ends[1] == {"0": 20, "1": 7}, "more than the limit, because it was told so"
    assert (headers[1]["batchWatermarkMs"], headers[1]["batchTimestampMs"]) == (1_000_100_000, 1_234_567)
    assert 0 < sum(ends[2].values()) - 27 <= 10, "the limit holds again"
    assert headers[2]["batchTimestampMs"] > 1e12, "and so does the clock"
    assert sum(ends[-1].values()) == 40, "and the query ends where what was available at its start does"


def test_a_source_of_another_kind_is_refused_by_name(bench: Bench, tmp_path: Path) -> None:
    spark = open_session("contract")
    query = (
        spark.readStream.format("rate")
        .load()
        .writeStream.option("checkpointLocation", str(tmp_path))
        .foreachBatch(lambda frame, batch: None)
        .start()
    )
    try:
        query.processAllAvailable()
        with pytest.raises(SteeringError, match="RateStreamMicroBatchStream can't be steered"):
            SteeredQuery(spark, query)
    finally:
        query.stop()

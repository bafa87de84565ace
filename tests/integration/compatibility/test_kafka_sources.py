"""What Spark does with the offsets of a Kafka source that is another one now."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.streaming import KafkaSource


def run(spark: Any, config: Mapping[str, str], checkpoint: Path, *topics: str) -> int:
    """Read what is there of some topics; returns how many records there were."""
    counts: list[int] = []
    frames = [KafkaSource(topic).read(spark, config) for topic in topics]
    union = frames[0] if len(frames) == 1 else frames[0].union(frames[1])

    def count(batch: DataFrame, _: int) -> None:
        counts.append(batch.count())

    query = union.writeStream.option("checkpointLocation", str(checkpoint)).foreachBatch(count)
    query.trigger(availableNow=True).start().awaitTermination()
    return sum(counts)


@pytest.mark.slow
def test_spark_stops_at_a_topic_that_is_renamed_and_at_sources_in_another_order(
    spark: Any, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    first, second = make_topic(partitions=1), make_topic(partitions=1)
    producer = Producer(dict(kafka_config))

    def send() -> None:
        for topic in (first, second):
            producer.produce(topic, b"x")
        assert producer.flush(30) == 0

    send()
    assert run(spark, kafka_config, tmp_path / "single", first) == 1
    assert run(spark, kafka_config, tmp_path / "both", first, second) == 2
    send()
    for name, topics in (("single", [second]), ("both", [second, first])):
        shutil.copytree(tmp_path / name, tmp_path / f"{name}-new")
        with pytest.raises(StreamingQueryException, match=f"{first}-0"):
            run(spark, kafka_config, tmp_path / f"{name}-new", *topics)
    assert run(spark, kafka_config, tmp_path / "both", first, second) == 2

"""A new pipeline that begins at a time or at offsets, compared with what an ordinary consumer reads from there on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.integration.streaming.harness import read_committed

pytestmark = pytest.mark.usefixtures("signals_as_before")

START = 1_767_225_600_000  # 2026-01-01
HOUR = 3_600_000


def test_records_from_that_time_on_are_read_and_of_a_partition_without_them_what_comes(
    jvm: None, tmp_path: Path, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic, sink = make_topic(partitions=3), make_topic(partitions=1)
    producer = Producer(dict(kafka_config))

    def send(partition: int, *hours: int) -> None:
        for hour in hours:
            text = f"{partition} at {hour}"
            producer.produce(topic, partition=partition, key=text, value=text, timestamp=START + hour * HOUR)
        producer.flush(30)

    source = KafkaSource(topic, starting_offsets=moments.text(START))
    job = pipeline(name=f"p-{topic}", source=source, sink=KafkaSink(sink, key="key"))(
        lambda records: records.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    )

    def run() -> list[str]:
        options = DriverOptions(
            home=Home(tmp_path / "home"), config=dict(kafka_config), token=str(uuid.uuid4()), until="available"
        )
        assert Driver(job, options).run() == 0
        return sorted(json.loads(record.value or b"")["value"] for record in read_committed(kafka_config, sink))

    send(0, -10, -1, 0, 5, -3)
    send(1, -10, -2)
    assert run() == ["0 at -3", "0 at 0", "0 at 5"]
    with LedgerReader(kafka_config, job.name) as reader:
        first = next(iter(reader.commits()))
    assert first.source[topic][0] == (2, 5)

    send(1, -1, 7)
    send(2, -9)
    assert run() == ["0 at -3", "0 at 0", "0 at 5", "1 at -1", "1 at 7", "2 at -9"]


def test_offsets_are_begun_at_exactly_and_only_the_first_start_looks_at_them(
    jvm: None,
    tmp_path: Path,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic, sink = make_topic(partitions=2), make_topic(partitions=1)

    def send(partition: int, *values: str) -> None:
        producer = Producer(dict(kafka_config))  # a new one knows all partitions
        for value in values:
            producer.produce(topic, partition=partition, key=value, value=value)
        producer.flush(30)

    def run(first: Mapping[int, int]) -> int:
        source = KafkaSource(topic, starting_offsets={topic: first})
        job = pipeline(name=f"p-{topic}", source=source, sink=KafkaSink(sink, key="key"))(
            lambda records: records.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
        )
        options = DriverOptions(
            home=Home(tmp_path / "home"), config=dict(kafka_config), token=str(uuid.uuid4()), until="available"
        )
        return Driver(job, options).run()

    def written() -> list[str]:
        return sorted(json.loads(record.value or b"")["value"] for record in read_committed(kafka_config, sink))

    send(0, "a", "b", "c", "d")
    send(1, "k", "l")
    for first, refusal in (
        ({0: 2}, f"partition 1 of topic {topic} is not in the source's starting_offsets"),
        ({0: 2, 1: 0, 2: 0}, f"partition 2 of topic {topic} does not exist"),
        ({0: 2, 1: 3}, f"partition 1 of topic {topic} has the offsets 0 to 2 "),
    ):
        assert run(first) == RefusedError.exit_code
        assert refusal in caplog.text

    assert run({0: 3, 1: 2}) == 0
    assert written() == ["d"]
    admin = AdminClient(dict(kafka_config))
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    send(1, "m")
    send(2, "x")
    assert run({0: 3, 1: 2}) == 0
    assert written() == ["d", "m", "x"]
    with LedgerReader(kafka_config, f"p-{topic}") as reader:
        assert next(iter(reader.commits())).source[topic] == {0: (3, 4), 1: (2, 2)}

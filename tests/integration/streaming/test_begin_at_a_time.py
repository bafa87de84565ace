"""A new pipeline that begins at a time, compared with what an ordinary consumer reads from there on."""

from __future__ import annotations

import json
import signal
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from confluent_kafka import Producer

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.streaming import KafkaSink, KafkaSource, pipeline
from airflow_provider_exactlyonce.streaming.driver.driver import Driver
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from tests.integration.streaming.harness import read_committed

START = 1_767_225_600_000  # 2026-01-01
HOUR = 3_600_000


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


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

"""What the encoder writes, a real broker accepts, and librdkafka and Kafka's own Java consumer give back unchanged."""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pyspark
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME, Consumer, TopicPartition
from hypothesis import given, settings
from hypothesis import strategies as st
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from airflow_provider_exactlyonce.jars.cache import broker_jars
from airflow_provider_exactlyonce.jars.java import java_executable
from airflow_provider_exactlyonce.kafka.compression import ATTRIBUTES, Compression
from airflow_provider_exactlyonce.kafka.record_batch import Body, with_header
from airflow_provider_exactlyonce.kafka.transaction import add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import Producer, WireClient
from tests.integration.kafka.test_wire import initialised
from tests.unit.kafka.record_rows import LATEST, NOW, PROPERTY, TIMESTAMPS, Row, encode, expected, rows
from tests.waiting import HANG_SECONDS

PARTITIONS = 3
ANY_TIME = {"message.timestamp.before.max.ms": str(LATEST), "message.timestamp.after.max.ms": str(LATEST)}


@dataclass
class Transaction:
    """A transaction to append bodies in."""

    client: WireClient
    name: str
    producer: Producer
    sequences: dict[tuple[str, int], int]

    def append(self, topic: str, body: Body) -> int:
        """Append a body and return its offset."""
        sequence = self.sequences.get((topic, body.partition), 0)
        if not sequence:
            add_partitions(self.client, self.name, self.producer, topic, [body.partition])
        self.sequences[topic, body.partition] = sequence + body.records
        stamped = with_header(body, producer_id=self.producer.id, epoch=self.producer.epoch, base_sequence=sequence)
        return produce(self.client, self.name, topic, {body.partition: b"".join(stamped)})[body.partition]

    def end(self) -> None:
        self.client.end_transaction(self.name, self.producer, commit=True)
        initialised(self.client, self.name, self.producer)  # waits for the markers


@pytest.fixture(scope="module")
def client(kafka_config: Mapping[str, str]) -> Iterator[WireClient]:
    with WireClient(kafka_config) as client:
        yield client


def begin(client: WireClient) -> Transaction:
    name = f"t-{uuid.uuid4()}"
    _, producer = initialised(client, name)
    return Transaction(client=client, name=name, producer=producer, sequences={})


def varied_rows(count: int) -> list[Row]:
    """Rows of every kind, among them long ones of noise and some that compress well."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    texts = [b"", b"k", "Käse 鍵".encode(), b"customer-%d" % generator.randrange(1 << 30), b"abc" * 30]
    values = [None, b"", b'{"paid": 1}', b"text " * 300, generator.randbytes(3_000), b"0" * 70_000]
    return [
        Row(
            key=generator.choice([None, *texts]),
            value=generator.choices(values, weights=[2, 2, 9, 9, 3, 1])[0],
            headers=generator.choice(
                [None, [], [("origin", b"shop"), ("origin", None), ("größe", b"\0\xff"), ("", b"x" * 200)]]
            ),
            timestamp=NOW + generator.randrange(-10_000_000, 10_000_000),
            partition=generator.choice([0, 0, 0, 1, 2]),
        )
        for _ in range(count)
    ]


def consumer_of(config: Mapping[str, str], isolation: str) -> Consumer:
    """Make a consumer that verifies checksums."""
    return Consumer(
        {
            **config,
            "group.id": "independent-reader",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 20,
            "isolation.level": isolation,
            "check.crcs": True,
            "enable.auto.commit": False,
        }
    )


def read_with_librdkafka(
    consumer: Consumer, topic: str, offsets: Mapping[int, int], records: int
) -> list[tuple[Row, int]]:
    """Read so many records from these offsets on, by partition; with each one's timestamp type."""
    consumer.assign([TopicPartition(topic, partition, offset) for partition, offset in offsets.items()])
    messages: list[tuple[Row, int]] = []
    deadline = time.monotonic() + HANG_SECONDS
    while len(messages) < records:
        assert time.monotonic() < deadline, f"{len(messages)} of {records} records of {topic}"
        for message in consumer.consume(records - len(messages), 1.0):
            assert not message.error(), message.error()
            kind, timestamp = message.timestamp()
            row = Row(
                key=message.key(),
                value=message.value(),
                headers=cast(list[tuple[str, bytes | None]], message.headers() or []),
                timestamp=timestamp,
                partition=cast(int, message.partition()),
            )
            messages.append((row, kind))
    return sorted(messages, key=lambda item: item[0].partition)


@pytest.mark.parametrize("codec", ATTRIBUTES)
@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_librdkafka_reads_the_same_records(
    codec: str,
    timestamp_type: str,
    client: WireClient,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
) -> None:
    written = varied_rows(800)
    topic = make_topic(partitions=PARTITIONS, **ANY_TIME, **{"message.timestamp.type": timestamp_type})
    transaction, begun = begin(client), time.time()
    bodies = encode(written, body_bytes_maximum=300_000, compression=Compression(codec), plain_bytes_maximum=1_500_000)
    for body in bodies:
        transaction.append(topic, body)
    transaction.end()
    assert codec in {body.compression.codec for body in bodies}
    consumer = consumer_of(kafka_config, "read_committed")
    read = read_with_librdkafka(consumer, topic, dict.fromkeys(range(PARTITIONS), 0), len(written))
    consumer.close()
    if timestamp_type == "CreateTime":
        assert [row for row, _ in read] == expected(written)
        assert {kind for _, kind in read} == {TIMESTAMP_CREATE_TIME}
    else:
        assert [contents(row) for row, _ in read] == [contents(row) for row in expected(written)]
        assert {kind for _, kind in read} == {TIMESTAMP_LOG_APPEND_TIME}
        assert all(begun - 1 < row.timestamp / 1000 < time.time() + 1 for row, _ in read)


def contents(row: Row) -> tuple[object, ...]:
    """What of a row the broker doesn't change."""
    return row.partition, row.key, row.value, row.headers


def test_librdkafka_reads_whatever_is_encoded(
    client: WireClient, kafka_config: Mapping[str, str], make_topic: Callable[..., str]
) -> None:
    topic = make_topic(partitions=PARTITIONS, **ANY_TIME)
    transaction, consumer = begin(client), consumer_of(kafka_config, "read_uncommitted")

    @settings(PROPERTY, max_examples=40)
    @given(
        written=rows(partitions=st.integers(0, PARTITIONS - 1), timestamps=TIMESTAMPS),
        body_bytes_maximum=st.sampled_from([25_000, 1_000_000]),
        compression=st.sampled_from([Compression(codec) for codec in ATTRIBUTES]),
        plain_bytes_maximum=st.sampled_from([None, 200_000]),
    )
    def write_and_read(
        written: list[Row], body_bytes_maximum: int, compression: Compression, plain_bytes_maximum: int | None
    ) -> None:
        starts: dict[int, int] = {}
        for body in encode(
            written,
            body_bytes_maximum=body_bytes_maximum,
            compression=compression,
            plain_bytes_maximum=plain_bytes_maximum,
        ):
            offset = transaction.append(topic, body)
            starts.setdefault(body.partition, offset)
        read = read_with_librdkafka(consumer, topic, starts, len(written))
        assert [row for row, _ in read] == expected(written)

    write_and_read()
    consumer.close()
    transaction.end()


@pytest.fixture(scope="module")
def java() -> Iterator[JavaGateway]:
    """Give a JVM with Kafka's own client, of the broker's version."""
    port, process = launch_gateway(
        jarpath=str(next(Path(pyspark.__file__).parent.glob("jars/py4j-*.jar"))),
        classpath=":".join(map(str, broker_jars())),
        javaopts=["-Xmx256m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"],
        java_path=str(java_executable()),
        die_on_exit=True,
        return_proc=True,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    yield gateway
    process.stdin.close()
    process.wait()
    gateway.shutdown()  # before that, py4j would wait for a thread that reads what the JVM may still send


def read_with_java(java: JavaGateway, config: Mapping[str, str], topic: str, records: int) -> list[Row]:
    """Read a topic from its start with Kafka's own consumer, checksums verified."""
    bytes_of = "org.apache.kafka.common.serialization.ByteArrayDeserializer"
    settings_of_consumer = {
        **config,
        "key.deserializer": bytes_of,
        "value.deserializer": bytes_of,
        "isolation.level": "read_committed",
        "check.crcs": "true",
    }
    consumer = java.jvm.org.apache.kafka.clients.consumer.KafkaConsumer(settings_of_consumer)
    places = [java.jvm.org.apache.kafka.common.TopicPartition(topic, number) for number in range(PARTITIONS)]
    consumer.assign(places)
    consumer.seekToBeginning(places)
    records_read: list[Row] = []
    deadline = time.monotonic() + HANG_SECONDS
    while len(records_read) < records:
        assert time.monotonic() < deadline, f"{len(records_read)} of {records} records of {topic}"
        polled = consumer.poll(java.jvm.java.time.Duration.ofSeconds(1)).iterator()
        while polled.hasNext():
            records_read.append(row_of_java(polled.next()))
    consumer.close()
    return sorted(records_read, key=lambda row: row.partition)


def row_of_java(record: Any) -> Row:
    return Row(
        key=record.key(),
        value=record.value(),
        headers=[(header.key(), header.value()) for header in record.headers().toArray()],
        timestamp=record.timestamp(),
        partition=record.partition(),
    )


@pytest.mark.parametrize("codec", ATTRIBUTES)
def test_kafkas_own_consumer_reads_the_same_records(
    codec: str,
    client: WireClient,
    java: JavaGateway,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
) -> None:
    written: Sequence[Row] = varied_rows(150)
    topic = make_topic(partitions=PARTITIONS, **ANY_TIME)
    transaction = begin(client)
    for body in encode(written, body_bytes_maximum=300_000, compression=Compression(codec)):
        transaction.append(topic, body)
    transaction.end()
    assert read_with_java(java, kafka_config, topic, len(written)) == expected(written)

"""Keys go where librdkafka's murmur2 partitioner, which is the Java client's, sends them."""

from __future__ import annotations

import random
from collections.abc import Callable

import pyarrow as pa
import pytest
from confluent_kafka import Message, Producer

from airflow_provider_exactlyonce.kafka.murmur2 import partitions_for_keys


def sample_keys(generator: random.Random) -> list[bytes]:
    """Empty, every length up to 70, long, non-ASCII text and binary keys."""
    keys = [generator.randbytes(length) for length in range(71) for _ in range(5)]
    keys += [generator.randbytes(10_000), generator.randbytes(10_001), b"\0" * 7, b"\xff" * 10_003]
    keys += [text.encode() for text in ("Käse", "ключ", "鍵", "🔑🔑", "a\u0301", "customer-4711", " ")]
    return keys


@pytest.mark.parametrize("partition_count", [1, 4, 23])
def test_keys_go_to_the_partitions_that_librdkafka_chooses(
    partition_count: int, kafka_config: dict[str, str], make_topic: Callable[..., str]
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    keys = sample_keys(random.Random(seed))
    topic = make_topic(partitions=partition_count)
    chosen: dict[int, int | None] = {}
    failures: list[object] = []

    def delivered(row: int) -> Callable[[object, Message], None]:
        def report(error: object, message: Message) -> None:
            if error is not None:
                failures.append(error)
            chosen[row] = message.partition()

        return report

    producer = Producer({**kafka_config, "partitioner": "murmur2"})
    for row, key in enumerate(keys):
        producer.produce(topic, key=key, value=b"v", on_delivery=delivered(row))
    assert producer.flush(30) == 0
    assert not failures
    expected = [chosen[row] for row in range(len(keys))]
    assert set(expected) == set(range(partition_count))
    assert partitions_for_keys(pa.array(keys, pa.binary()), partition_count).tolist() == expected

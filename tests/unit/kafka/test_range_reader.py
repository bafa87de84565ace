"""Ranges of partitions, read from the cluster that librdkafka brings within this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Message, Producer

from airflow_provider_exactlyonce.kafka import range_reader
from airflow_provider_exactlyonce.kafka.range_reader import RangeReader, ReadTimedOutError, read_range
from tests.clocks import StandingClock


@pytest.fixture(scope="module")
def config() -> Iterator[dict[str, str]]:
    """Give a cluster with ten records in each of the two partitions of topic ``t``."""
    producer = Producer({"test.mock.num.brokers": 1, "log_level": 2})
    [broker] = producer.list_topics("t", timeout=30).brokers.values()
    for number in range(20):
        producer.produce("t", f"{number}".encode(), partition=number % 2)
    assert producer.flush(30) == 0
    yield {"bootstrap.servers": f"{broker.host}:{broker.port}"}
    del producer  # the cluster is gone with it


def offsets(records: Iterator[Message]) -> list[tuple[int | None, int | None]]:
    return sorted((record.partition(), record.offset()) for record in records)


def test_a_range_ends_before_its_end_and_the_reader_may_be_used_again(config: dict[str, str]) -> None:
    with RangeReader(config, "test") as reader:
        read = offsets(reader.read({("t", 0): (2, 5), ("t", 1): (8, 10)}))
        assert read == [(0, 2), (0, 3), (0, 4), (1, 8), (1, 9)]
        assert offsets(reader.read({("t", 0): (9, 10)})) == [(0, 9)]
        assert offsets(reader.read({("t", 0): (5, 5)})) == []


def test_a_reader_that_stops_early_leaves_nothing_for_the_next_range(config: dict[str, str]) -> None:
    with RangeReader(config, "test") as reader:
        assert next(reader.read({("t", 0): (0, 10)})).offset() == 0
        assert offsets(reader.read({("t", 1): (9, 10)})) == [(1, 9)]


def test_what_does_not_come_is_named(config: dict[str, str]) -> None:
    with (
        RangeReader(config, "test", timeout_seconds=0.2) as reader,
        pytest.raises(ReadTimedOutError, match=r"for 0\.2 s of t-0 up to offset 11"),
    ):
        list(reader.read({("t", 0): (8, 12)}))


@pytest.mark.parametrize("ranges", [{("t", 0): (9, 10)}, {("t", 0): (0, 10), ("t", 1): (0, 10)}])
def test_the_time_that_the_records_reader_takes_is_not_the_topic_s(
    config: dict[str, str], monkeypatch: pytest.MonkeyPatch, ranges: dict[tuple[str, int], tuple[int, int]]
) -> None:
    clock = StandingClock()
    monkeypatch.setattr(range_reader, "time", clock)
    count = 0
    with RangeReader(config, "test") as reader:
        for _ in reader.read(ranges):
            clock.sleep(60)
            count += 1
    assert count == sum(end - start for start, end in ranges.values())


def test_the_last_offset_of_a_committed_range_is_part_of_it(config: dict[str, str]) -> None:
    assert offsets(read_range(config, {"t": {0: (8, 9)}})) == [(0, 8), (0, 9)]
    assert offsets(read_range(config, {})) == []

"""Who asks for what is not there leaves no client behind: each has threads that look at their sockets for ever."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets
from airflow_provider_exactlyonce.kafka.wire import WireClient
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from tests.integration.streaming.replay.harness import client_threads


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """In a large process Python's garbage collector comes once in a long while."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_the_reader_of_a_ledger_that_is_not_there_leaves_no_client(kafka_config: dict[str, str]) -> None:
    before = client_threads()
    for _ in range(3):
        with LedgerReader(kafka_config, "no-such-pipeline") as reader:
            assert reader.tail() is None
    assert client_threads() == before


def test_who_asks_for_topics_and_partitions_that_are_not_there_leaves_no_client(kafka_config: dict[str, str]) -> None:
    before = client_threads()
    for _ in range(3):
        assert StableOffsets(kafka_config).describe(["no-such-topic"]) == {}
        with pytest.raises(ExactlyOnceError):
            StableOffsets(kafka_config).last_stable([("no-such-topic", 0)])
    assert client_threads() == before


def test_a_wire_client_closes_what_it_has_asked_with(kafka_config: dict[str, str]) -> None:
    before = client_threads()
    with WireClient(kafka_config) as client:
        assert client.offsets.describe(["no-such-topic"]) == {}
    assert client_threads() == before

"""Offsets of a cluster whose broker was killed, asked by a client that knew it before."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka.stable_offsets import StableOffsets


@pytest.mark.slow  # a broker of its own, twice
def test_offsets_are_told_soon_after_a_brokers_restart(tmp_path: Path) -> None:
    with EmbeddedBroker(tmp_path / "broker") as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient(dict(config))
        admin.create_topics([NewTopic("t", 1, 1)])["t"].result(30)
        producer = Producer(dict(config))
        producer.produce("t", b"before")
        assert producer.flush(30) == 0
        offsets = StableOffsets(config)
        assert offsets.last_stable([("t", 0)]) == {("t", 0): 1}
        broker.kill()
        broker.start()
        producer.produce("t", b"after")
        assert producer.flush(30) == 0
        assert offsets.last_stable([("t", 0)]) == {("t", 0): 2}

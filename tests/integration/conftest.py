"""A pipeline whose gates are asked, and another application that writes into its topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable

import pytest
from confluent_kafka import Producer

from tests.integration.hand_written import HandWrittenPipeline


@pytest.fixture
def pipeline(kafka_config: dict[str, str], make_topic: Callable[..., str]) -> HandWrittenPipeline:
    made = HandWrittenPipeline(kafka_config, source=make_topic(partitions=2), sink=make_topic(partitions=3))
    made.claim()
    return made


@pytest.fixture
def foreign(kafka_config: dict[str, str]) -> Producer:
    """Give another application's transactional producer."""
    producer = Producer({**kafka_config, "transactional.id": f"foreign-{uuid.uuid4()}"})
    producer.init_transactions(30)
    return producer

"""What tests of several rooms need: a pipeline, another application that writes into its topics, a session of Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from tests.integration.hand_written import HandWrittenPipeline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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


@pytest.fixture(scope="module")
def spark(jvm: None) -> Iterator[SparkSession]:
    """Give a session in this process, for what needs no driver of its own; with code generation, as users have it."""
    from tests.integration.spark_session import spark_session

    as_users = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}
    with spark_session(as_users, log_level="ERROR") as session:
        yield session

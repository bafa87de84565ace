"""A producer id has 32,767 epochs; the coordinator then gives out another one, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka.transaction import LAST_EPOCH
from airflow_provider_exactlyonce.kafka.wire import Code, WireClient
from tests.integration.kafka.alone import Stage, on_stage
from tests.integration.kafka.proxy import Api, Proxy, cut_after


@pytest.fixture
def stage(
    broker: EmbeddedBroker, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[Stage]:
    with (
        Proxy(broker.state.port) as proxy,
        on_stage(proxy, kafka_config, tmp_path / "home", make_topic(partitions=1)) as stage,
    ):
        yield stage


def spend_epochs(stage: Stage, until: int) -> None:
    """Take one epoch after another, past the proxy and without the abort that goes before each."""
    session = stage.alone.run.session
    with WireClient(stage.config) as client:
        while session.producer.epoch < until:
            code, producer = client.init_producer_id(session.transactional_id, session.producer, 60_000)
            if code == Code.NONE:
                session.producer = producer


@pytest.mark.slow
@pytest.mark.parametrize("lost", [False, True])
def test_a_run_goes_on_with_another_producer_id_when_the_epochs_are_used_up(stage: Stage, lost: bool) -> None:
    """With transactions on both sides of the change.

    :param lost: whether the answer with the new producer id is lost, and asked for again
    """
    stage.process()
    session = stage.alone.run.session
    first = session.producer.id
    spend_epochs(stage, LAST_EPOCH - 1)
    stage.process()
    assert (session.producer.id, session.producer.epoch) == (first, LAST_EPOCH)
    if lost:
        stage.proxy.on(Api.INIT_PRODUCER_ID, cut_after)
    stage.process()
    assert session.producer.id != first
    assert session.producer.epoch == 0
    stage.process(2)
    assert session.producer.epoch == 2
    stage.check(more_claims=0)

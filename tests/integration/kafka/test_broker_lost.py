"""The broker is killed around the commit, and comes back; once with each version of Kafka's transactions."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.kafka.wire import Code
from tests.integration.kafka.alone import Stage, on_stage
from tests.integration.kafka.proxy import Api, Cut, Exchange, Fault, Proxy, answered, cut_after, cut_before, twice


@dataclass
class Murder:
    """Kills the broker when the commit passes, and starts it again."""

    broker: EmbeddedBroker
    restart: threading.Thread | None = field(default=None)

    def __call__(self, moment: str) -> Fault:
        def fault(exchange: Exchange) -> bytes:
            if moment == "during":
                exchange.upstream.send(exchange.request)
            if moment == "after":
                exchange.forward()
            self.broker.kill()
            self.restart = threading.Thread(target=self.broker.start)
            self.restart.start()
            raise Cut

        return fault


@pytest.fixture(
    scope="module",
    params=[0, pytest.param(2, marks=pytest.mark.slow)],
    ids=lambda version: f"transaction.version={version}",
)
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Stage, Murder]]:
    features = {"transaction.version": request.param} if request.param == 0 else {}
    with EmbeddedBroker(tmp_path_factory.mktemp("broker"), features=features) as broker:
        config = {"bootstrap.servers": broker.bootstrap_servers}
        admin = AdminClient({**config, "log_level": 0})
        admin.create_topics([NewTopic("sink", 2, 1)])["sink"].result(30)
        with (
            Proxy(broker.state.port) as proxy,
            on_stage(proxy, config, tmp_path_factory.mktemp("home"), "sink") as stage,
        ):
            stage.process()
            yield stage, Murder(broker)


@pytest.mark.slow  # the crash matrix kills brokers too
@pytest.mark.parametrize("moment", ["before", "during", "after"])
def test_a_broker_that_dies_around_a_commit_comes_back_to_exactly_one(stage: tuple[Stage, Murder], moment: str) -> None:
    on, murder = stage
    on.proxy.on(Api.END_TRANSACTION, murder(moment), where=lambda request: request.commits)
    on.process(2)
    assert murder.restart is not None
    murder.restart.join()
    on.check(more_claims=0)


@pytest.mark.parametrize("fault", [cut_before, cut_after, twice], ids=lambda fault: fault.__name__)
def test_a_commit_is_sent_until_it_is_answered(stage: tuple[Stage, Murder], fault: Fault) -> None:
    on, _ = stage
    on.proxy.on(Api.END_TRANSACTION, fault, times=2, where=lambda request: request.commits)
    on.process(2)
    on.check(more_claims=0)


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize("code", [Code.INVALID_TXN_STATE, Code.PRODUCER_FENCED])
def test_the_ledger_decides_what_a_refused_commit_was(stage: tuple[Stage, Murder], code: Code, executed: bool) -> None:
    on, _ = stage
    on.proxy.on(Api.END_TRANSACTION, answered(code, executed=executed), where=lambda request: request.commits)
    on.process(2)
    on.check(more_claims=1)

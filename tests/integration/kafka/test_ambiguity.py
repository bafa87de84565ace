"""Every ambiguity around the commit, made by a proxy in front of a real broker, and what the ledger makes of it.

A batch ends committed exactly once, at the first attempt or at a later one; never both, never lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import StopRequestedError
from airflow_provider_exactlyonce.kafka.wire import Code
from tests.integration.kafka.alone import Stage, check, on_stage, started
from tests.integration.kafka.proxy import Api, Cut, Exchange, Fault, Proxy, answered, cut_after, cut_before, hold, twice


@pytest.fixture(scope="module")
def stage(
    broker: EmbeddedBroker,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """Give one run for all tests here, which reaches the broker through the proxy and has committed a batch."""
    with (
        Proxy(broker.state.port) as proxy,
        on_stage(proxy, kafka_config, tmp_path_factory.mktemp("home"), make_topic(partitions=2)) as stage,
    ):
        stage.process()
        yield stage


def on_commit(stage: Stage, fault: Fault, times: int = 1) -> None:
    stage.proxy.on(Api.END_TRANSACTION, fault, times=times, where=lambda request: request.commits)


@pytest.mark.parametrize("fault", [cut_before, cut_after, twice])
def test_a_commit_whose_request_or_answer_is_lost_or_doubled_is_sent_until_it_is_answered(
    stage: Stage, fault: Fault
) -> None:
    on_commit(stage, fault, times=2)
    stage.process(2)
    stage.check(more_claims=0)


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize(
    "code", [Code.CONCURRENT_TRANSACTIONS, Code.NOT_COORDINATOR, Code.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_a_coordinator_that_is_busy_or_moves_is_asked_again(stage: Stage, code: Code, executed: bool) -> None:
    on_commit(stage, answered(code, executed=executed), times=2)
    stage.process(2)
    stage.check(more_claims=0)


@pytest.mark.parametrize("executed", [True, False])
@pytest.mark.parametrize(
    "code",
    [
        Code.INVALID_TXN_STATE,
        Code.PRODUCER_FENCED,
        Code.INVALID_PRODUCER_EPOCH,
        Code.INVALID_PRODUCER_ID_MAPPING,
        Code.UNKNOWN_SERVER_ERROR,
    ],
)
def test_the_ledger_decides_what_a_refused_commit_was(
    stage: Stage, code: Code, executed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    on_commit(stage, answered(code, executed=executed))
    stage.process(2)
    assert ("attempt 1 of" in caplog.text) == (not executed), "only what was not executed is attempted again"
    stage.check(more_claims=1)


def test_a_commit_that_arrives_after_the_next_batch_has_begun_is_refused(stage: Stage) -> None:
    on_commit(stage, hold)  # its repetition is executed
    stage.process()
    session = stage.alone.run.session
    session.begin()
    offset = session.write(stage.topic, 0, b"k", b"not committed")
    (late,) = stage.proxy.release()
    assert Code(int.from_bytes(late[9:11], "big")) is Code.PRODUCER_FENCED
    place = (stage.topic, 0)
    assert session.client.offsets.last_stable([place])[place] <= offset, "the open attempt is still open"
    session.abort()
    stage.process()
    stage.check(more_claims=0)


@pytest.mark.parametrize("api", [Api.PRODUCE, Api.ADD_PARTITIONS])
@pytest.mark.parametrize("begun", [True, False])
def test_a_request_of_an_older_attempt_that_arrives_late_changes_nothing(stage: Stage, api: Api, begun: bool) -> None:
    """Before the next begin a late AddPartitionsToTxn opens a transaction; the next begin ends it."""
    stage.proxy.on(api, hold)  # its repetition is executed
    stage.process()
    session = stage.alone.run.session
    if begun:
        session.begin()
        session.write(stage.topic, 0, b"k", b"not committed")
    stage.proxy.release()
    if begun:
        session.abort()
    stage.process(2)
    stage.check(more_claims=0)


@pytest.mark.slow
def test_a_stop_ends_a_driver_whose_commit_is_in_doubt_while_the_cluster_is_away(
    broker: EmbeddedBroker, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic, home = make_topic(partitions=1), tmp_path / "home"
    with Proxy(broker.state.port) as proxy:
        with on_stage(proxy, kafka_config, home, topic) as stage:
            stage.process()

            def vanish(exchange: Exchange) -> bytes:
                exchange.forward()
                proxy.away, stage.alone.stop = True, "stop"
                raise Cut

            on_commit(stage, vanish)
            with pytest.raises(StopRequestedError, match="the next run's ledger tells whether batch 1 is committed"):
                stage.alone.process(1)
        proxy.away = False
        with started(proxy.config, home, stage.alone.run.pipeline, topic, token="second") as successor:
            successor.process(1, 2)
            assert successor.events == [(1, True), (2, False)]
    check(kafka_config, stage.alone.run.pipeline, topic, 3, [1, 2])


@pytest.mark.parametrize("fault", [cut_before, cut_after, twice])
@pytest.mark.parametrize("api", [Api.INIT_PRODUCER_ID, Api.ADD_PARTITIONS, Api.PRODUCE])
def test_lost_and_doubled_requests_before_the_commit_are_repeated(stage: Stage, api: Api, fault: Fault) -> None:
    stage.proxy.on(api, fault, times=2)
    stage.process(2)
    stage.check(more_claims=0)

"""Who may disturb whom: stragglers of our own, a superseded run, and requests that arrive late."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.control import lease
from airflow_provider_exactlyonce.devkit.broker import EmbeddedBroker
from airflow_provider_exactlyonce.exceptions import FencedError, RefusedError
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError, add_partitions
from airflow_provider_exactlyonce.kafka.wire import NO_PRODUCER, Code, WireClient
from tests.integration.kafka.alone import Stage, check, on_stage, started
from tests.integration.kafka.proxy import Api, Exchange, Proxy, answered, cut_after, cut_before
from tests.waiting import HANG_SECONDS, eventually


@pytest.fixture(autouse=True)
def _short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """No driver beats here; a successor finds each of them silent after this."""
    monkeypatch.setattr(lease, "STALE_SECONDS", 0.5)


@pytest.fixture
def stage(
    broker: EmbeddedBroker, kafka_config: Mapping[str, str], make_topic: Callable[..., str], tmp_path: Path
) -> Iterator[Stage]:
    with (
        Proxy(broker.state.port) as proxy,
        on_stage(proxy, kafka_config, tmp_path / "home", make_topic(partitions=2)) as stage,
    ):
        stage.process()
        yield stage


def test_after_the_claim_only_the_current_producer_asks_for_an_epoch(stage: Stage) -> None:
    """Batches, aborts, lost answers and recoveries of a whole run, as they were on the wire."""
    stage.process()
    session = stage.alone.run.session
    for _ in range(2):
        session.begin()
        session.write(stage.topic, 0, b"k", b"aborted")
        session.abort()
    stage.proxy.on(Api.INIT_PRODUCER_ID, cut_after)
    stage.process()
    stage.proxy.on(Api.INIT_PRODUCER_ID, cut_before)
    stage.process()
    fenced = answered(Code.PRODUCER_FENCED, executed=False)
    stage.proxy.on(Api.END_TRANSACTION, fenced, where=lambda request: request.commits)
    stage.process(2)
    stage.proxy.on(Api.INIT_PRODUCER_ID, fenced)
    stage.process(2)
    stage.check(more_claims=2)
    asked = [request.producer for request in stage.proxy.requests if request.api == Api.INIT_PRODUCER_ID]
    periods = [list(group) for _, group in itertools.groupby(asked, lambda producer: producer == NO_PRODUCER)]
    claims, own = periods[::2], periods[1::2]
    assert all(producer == NO_PRODUCER for repeated in claims for producer in repeated)
    assert len(claims) == len(own) == stage.claims
    for producers in own:
        assert len({producer.id for producer in producers}) == 1
        steps = {later.epoch - earlier.epoch for earlier, later in itertools.pairwise(producers)}
        assert steps <= {0, 1}, f"each is what the answer before gave, or is repeated: {producers}"


def test_a_straggler_that_reopens_the_transaction_after_an_abort_is_ended_by_the_next_begin(stage: Stage) -> None:
    session = stage.alone.run.session
    session.begin()
    session.write(stage.topic, 0, b"k", b"aborted")
    straggler = session.producer
    session.abort()
    add_partitions(session.client, session.transactional_id, straggler, stage.topic, [1])
    stage.process()
    stage.check(more_claims=0)


def test_a_straggler_between_abort_and_epoch_is_recovered_under_the_same_run(stage: Stage) -> None:
    """The new epoch's request meets the straggler's transaction, and may be refused without a successor."""
    session = stage.alone.run.session
    session.begin()
    straggler = session.producer
    session.abort()

    def reopen_first(exchange: Exchange) -> bytes:
        with WireClient(stage.config) as other:
            add_partitions(other, session.transactional_id, straggler, stage.topic, [1])
        return exchange.forward()

    stage.proxy.on(Api.INIT_PRODUCER_ID, reopen_first)
    claim = stage.alone.run.tail.claim_offset
    stage.process()
    assert stage.alone.run.number == 1
    stage.check(more_claims=int(stage.alone.run.tail.claim_offset > claim))


def test_a_right_that_is_taken_away_ends_the_run_by_name(stage: Stage) -> None:
    denied = answered(Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, executed=False)
    stage.proxy.on(Api.INIT_PRODUCER_ID, denied, times=2)
    with pytest.raises(RefusedError, match=r"lacks the right DESCRIBE and WRITE on transactional\.id exactlyonce\.p-"):
        stage.alone.process(1)
    stage.check(more_claims=0)


def test_a_superseded_run_leaves_its_successors_open_transaction_alone(stage: Stage, tmp_path: Path) -> None:
    pipeline = stage.alone.run.pipeline
    with started(stage.config, tmp_path / "home", pipeline, stage.topic, token="second") as successor:
        session = successor.run.session
        session.begin()
        session.write(stage.topic, 0, b"k", b"aborted")
        with pytest.raises(FencedError, match=r"run 1 of .* is superseded by run 2"):
            stage.alone.process(1)
        session.abort()  # it would answer PRODUCER_FENCED
        successor.process(1)
    check(stage.config, pipeline, stage.topic, 2, [1, 2])


def test_a_claim_that_arrives_late_costs_the_successor_an_attempt_and_not_its_place(
    stage: Stage, tmp_path: Path
) -> None:
    """(-1, -1) can't be conditional. What a superseded run sent before it knew is settled by the ledger."""
    sent, go = threading.Event(), threading.Event()

    def late(exchange: Exchange) -> bytes:
        sent.set()
        assert go.wait(HANG_SECONDS)
        return exchange.forward()

    stage.proxy.on(Api.INIT_PRODUCER_ID, late)
    errors: list[Exception] = []

    def reclaim() -> None:
        try:
            stage.alone.run.reclaim()
        except FencedError as error:
            errors.append(error)

    thread = threading.Thread(target=reclaim)
    thread.start()
    assert sent.wait(HANG_SECONDS)
    pipeline = stage.alone.run.pipeline
    with started(stage.config, tmp_path / "home", pipeline, stage.topic, token="second") as successor:
        successor.process(1)
        session = successor.run.session
        session.begin()
        session.write(stage.topic, 0, b"k", b"aborted")
        go.set()
        thread.join()
        assert [str(error).partition(":")[0] for error in errors] == [f"run 1 of {pipeline} is superseded by run 2"]
        with pytest.raises(ProducerLostError):
            session.abort()
        successor.run.reclaim()
        successor.process(2)
    check(stage.config, pipeline, stage.topic, 3, [1, 2, 2])


@pytest.mark.parametrize(
    "step",
    [
        pytest.param("after-claim", marks=pytest.mark.slow),
        pytest.param("after-begin", marks=pytest.mark.slow),
        "after-pre-commit",
        "after-end-transaction",
        pytest.param("after-commit", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_frozen_at_a_step_exits_and_leaves_its_successor_alone(
    step: str,
    kafka_config: Mapping[str, str],
    make_topic: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lease, "STALE_SECONDS", 1.0)  # the successor's
    topic = make_topic(partitions=2)
    pipeline, home = f"p-{topic}", tmp_path / "home"
    condition = "run=1" if step == "after-claim" else "batch=1"
    zombie = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.kafka.alone", json.dumps(kafka_config), str(home), pipeline, topic],
        env={**os.environ, failpoints.VARIABLE: f"{step}:{condition}:signal=STOP"},
        start_new_session=True,
    )
    try:
        eventually(lambda: os.waitid(os.P_PID, zombie.pid, os.WSTOPPED | os.WNOHANG | os.WNOWAIT), "it is frozen")
        with started(kafka_config, home, pipeline, topic, token="second") as successor:
            last = successor.run.tail.commit
            done = last.batch + 1 if last else 0
            successor.process(done)
            session = successor.run.session
            session.begin()
            session.write(topic, 0, b"k", b"aborted")
            os.killpg(zombie.pid, signal.SIGCONT)
            assert zombie.wait() == FencedError.exit_code
            session.abort()  # it would answer PRODUCER_FENCED
            successor.process(done + 1)
        check(kafka_config, pipeline, topic, done + 2, [1, 2])
    finally:
        if zombie.poll() is None:
            os.killpg(zombie.pid, signal.SIGKILL)
            zombie.wait()

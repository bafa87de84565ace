"""Kafka's part of the protocol while its requests fail: lost on the way, or executed and not answered.

The real run, coordinator, session, sequencer and sink on a real broker, in this process; an independent reader compares
record by record. Frozen and killed drivers are in `tests/integration/protocol`.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.start_checks import reconcile
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import BatchFailedError, ExactlyOnceError
from airflow_provider_exactlyonce.kafka import preflight, retry, transaction
from airflow_provider_exactlyonce.kafka.wire import UnansweredError, WireClient
from airflow_provider_exactlyonce.ledger.records import ledger_topic
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.commit import run as runs
from airflow_provider_exactlyonce.streaming.commit import write_stage
from airflow_provider_exactlyonce.streaming.commit.batch import planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.testing.fault_injection import (
    Fault,
    InjectedFaultError,
    Kind,
    Seam,
    target_call,
)
from tests.conftest import MakeTopic
from tests.crash_matrix.observer import Observer
from tests.crash_matrix.verdict import Findings, Judge
from tests.integration.protocol import source
from tests.integration.protocol.driver import PlainWriter, _process
from tests.integration.protocol.tasks import arrow, close_connections

SEED = int(os.environ.get("EXACTLYONCE_FAULT_SEED", "1"))
BATCHES = 3
STEPS = ("init_producer_id", "add_partitions", "produce", "end_transaction")
FAULTS = [
    Fault(step=step, call=call, kind=kind, following=following)
    for step in STEPS
    for call in (1, 2, 3, 5)
    for kind in (Kind.REQUEST_LOST, Kind.ANSWER_LOST)
    for following in (0, 2)
]


class InProcess(PlainWriter):
    """Its tasks run in this process, one after the other."""

    def _run_tasks(self, frame: Any, server: Any, tag: str) -> Any:
        task = self._write_task(server.address)
        try:
            return [write_stage.write_rows(arrow(frame[number::2]), task, number, 0) for number in range(2)]
        except Exception as error:
            raise BatchFailedError(server.failure or str(error)) from error

    def _cancel_tasks(self, frame: Any, tag: str) -> None:
        """Do nothing: they end by themselves."""


@pytest.fixture(params=[None, 0.0], ids=["patient", "impatient"])
def faulty_wire(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the requests fail that change something; impatient: none is sent again, so that a claim has to settle it."""
    for step in STEPS:
        real: Callable[..., Any] = getattr(WireClient, step)

        def call(self: WireClient, *given: Any, step: str = step, real: Any = real, **named: Any) -> Any:
            try:
                return target_call(step, lambda: real(self, *given, **named))
            except InjectedFaultError as error:
                raise UnansweredError(str(error)) from error

        monkeypatch.setattr(WireClient, step, call)
    monkeypatch.setattr(runs, "_CLAIM_PAUSE_SECONDS", 0.0)
    if request.param is not None:

        def impatient(act: Callable[[], int], *, timeout_seconds: float, **named: Any) -> int:
            return retry.until_definite(act, timeout_seconds=0.0 if in_seam() else timeout_seconds, **named)

        monkeypatch.setattr(transaction, "until_definite", impatient)


_met: list[Seam] = []


def in_seam() -> bool:
    """Tell whether a fault has been met that is not settled yet: other repetitions are the broker's."""
    return bool(_met and _met[-1].met)


class Pipeline:
    """A pipeline of few batches, and what it owes."""

    def __init__(self, config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> None:
        self.config, self.home = config, tmp_path / "home"
        self.name = f"requests-{uuid.uuid4().hex[:8]}"
        self.source, self.sink = make_topic(partitions=source.PARTITIONS), make_topic(partitions=2)
        self.batches = 0

    def live(self, faults: Sequence[Fault], seed: int) -> None:
        """Commit some more batches, whatever fails."""
        self.batches += BATCHES
        seam = Seam(faults)
        _met.append(seam)
        for _ in range(20):
            try:
                seam.call("life", lambda: self._live(seed))
            except ExactlyOnceError as error:
                if error.exit_code != 1:
                    raise AssertionError(f"{[str(fault) for fault in faults]}: {error}") from error
            except InjectedFaultError:
                continue  # the calls that fail after a fault reach into this life, which does not begin
            else:
                return
        raise AssertionError(f"{[str(fault) for fault in faults]}: 20 runs did not commit the batches")

    def judge(self, seed: int) -> Findings:
        """Compare each record with what is owed."""
        observer = Observer(self.config, self.sink, ledger_topic(self.name))
        try:
            observer.catch_up(observer.decided_ends() or {})
            judge = Judge(self.source, self.sink, source.owed)
            findings = judge.judge(observer.commits, observer.rows)
        finally:
            observer.close()
        assert (judge.commit, judge.ends) == (self.batches, source.ends(seed, self.batches - 1))
        return findings

    def _live(self, seed: int) -> None:
        options = RunOptions(
            config=self.config, token=uuid.uuid4().hex, version="v", transaction_timeout_milliseconds=60_000
        )
        run = Run(Home(self.home), self.name, options)
        try:
            with SequencerListener(settings.sequencer_endpoint(lambda name: None, "local[2]")) as listener:
                targets = preflight.check_topics(run.client, sinks=[self.sink])
                sink_options = TransactionOptions(definition=KafkaSink(self.sink))
                attempt = BatchAttempt(run, sink_options, targets, listener)
                sink = BatchTransaction(attempt, InProcess(attempt), lambda: False)
                run.start()
                checkpoint = Checkpoint(run.home.checkpoint(run.lineage.id))
                reconcile(checkpoint, run.lineage, run.tail)
                callbacks = Callbacks(
                    plan=lambda number: planned_batch(checkpoint, run.sources, run.lineage.id, number),
                    stop_reason=lambda: None,
                    committed=lambda *_: None,
                )
                coordinator = CommitCoordinator(sink, callbacks, max_batch_attempts=3, first_pause_seconds=0)
                spec = {"source": self.source, "seed": seed, "batches": self.batches}
                _process(spec, checkpoint, coordinator)
        finally:
            run.close()
            close_connections()


def pairs() -> list[list[Fault]]:
    """Return all pairs of faults at different calls."""
    faults = [fault for fault in FAULTS if fault.call in (2, 5) and not fault.following]
    both = combinations(faults, 2)
    return [[one, other] for one, other in both if (one.step, one.call) != (other.step, other.call)]


def triples(seed: int, number: int) -> list[list[Fault]]:
    generator = random.Random(seed)
    return [generator.sample(FAULTS, 3) for _ in range(number)]


@pytest.fixture
def pipeline(kafka_config: dict[str, str], make_topic: MakeTopic, tmp_path: Path) -> Iterator[Pipeline]:
    yield Pipeline(kafka_config, make_topic, tmp_path)
    _met.clear()


def goes_through(pipeline: Pipeline, cases: Sequence[Sequence[Fault]]) -> None:
    """Take one pipeline through all cases, and judge it after each ten."""
    for number, faults in enumerate(cases, start=1):
        pipeline.live(faults, SEED)
        if number % 10 == 0 or number == len(cases):
            named = [str(fault) for case in cases[max(0, number - 10) : number] for fault in case]
            findings = pipeline.judge(SEED)
            assert not findings, f"{findings}: seed {SEED}, one of: {named}"


@pytest.mark.usefixtures("faulty_wire")
def test_no_record_is_lost_or_doubled_when_requests_fail(pipeline: Pipeline) -> None:
    goes_through(pipeline, triples(SEED, 3))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("faulty_wire")
@pytest.mark.parametrize(
    "cases",
    [
        [[fault] for fault in FAULTS],
        pairs(),
        triples(SEED + 1, 100),
    ],
    ids=["each fault", "each pair", "random triples"],
)
def test_no_record_is_lost_or_doubled_whichever_requests_fail(pipeline: Pipeline, cases: list[list[Fault]]) -> None:
    goes_through(pipeline, cases)

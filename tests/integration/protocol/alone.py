"""A pipeline in this thread: the real run, coordinator and sinks, and one task instead of Spark's."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from airflow_provider_exactlyonce.checkpoint.layout import ClaimedCheckpoint
from airflow_provider_exactlyonce.checkpoint.start_checks import check_topic_ids, first_repeated, reconcile
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.ledger.reader import LedgerReader
from airflow_provider_exactlyonce.ledger.records import CommitRecord
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.commit import row_router, write_stage
from airflow_provider_exactlyonce.streaming.commit.batch import Batch, planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.replay import owed_batch
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import DIGEST_FIELD, column_of
from airflow_provider_exactlyonce.streaming.sinks.spi import Sink, SinkContext
from tests.integration.protocol.tasks import arrow, close_connections, digest, encoded


class Frame:
    """A batch's rows, and what the Spark job that computes them is told."""

    def __init__(self, rows: Sequence[dict[str, Any]]) -> None:
        self.rows, self.properties = rows, dict[str, Any]()
        self.sparkSession = self.sparkContext = self

    def setLocalProperty(self, name: str, value: str | None) -> None:  # noqa: N802 - Spark's name
        self.properties[name] = value


class OneTask(TransactionalWriter):
    """All sinks, written by one task in the driver's thread."""

    def __init__(self, attempt: BatchAttempt) -> None:
        super().__init__(attempt)
        self._tasks = attempt.others.tasks()

    def recompute(self, frame: Any) -> tuple[int, int]:
        self._hand_out(frame)
        return (0, 0) if self._definition is None else _sums(frame)

    def _cancel_tasks(self, frame: Any, tag: str) -> None:
        pass

    def _run_tasks(self, frame: Any, server: Any, tag: str) -> Any:
        self._hand_out(frame)
        return [write_stage.write_rows(_for_kafka(frame), self._write_task(server.address), 0, 0)]

    def _run_job(self, stage: Any, tag: str, *_: Any) -> Any:
        self._hand_out(stage)
        return [{}]

    def _hand_out(self, frame: Any) -> None:
        shares = frame.properties.get(row_router.SHARES_PROPERTY)
        rows = [{**row, DIGEST_FIELD: digest(json.dumps(row).encode())} for row in frame.rows]
        batch = pa.record_batch({column_of(number): pa.array(rows) for number in range(len(self._tasks))})
        with row_router.Tee(self._tasks, shares, 0) as tee:
            for _ in tee.passing(iter([batch])) if rows else ():
                pass
            self._attempt.others.collect_results([tee.finish()])


def _for_kafka(frame: Frame) -> Iterator[pa.RecordBatch]:
    """Yield a row at a time, with its topic if it names one."""
    for row, record in zip(frame.rows, encoded(frame.rows), strict=True):
        for batch in arrow([record]):
            yield batch.append_column("topic", pa.array([row["topic"]])) if "topic" in row else batch


def _sums(frame: Frame) -> tuple[int, int]:
    return len(frame.rows), sum(digest(value) for _, value in encoded(frame.rows)) % 2**64


def offsets_text(topic: str, ends: Mapping[int, int], *, batch: int = 0) -> str:
    header = {"batchWatermarkMs": 0, "batchTimestampMs": 1_700_000_000_000 + batch, "conf": {}}
    return "\n".join(("v1", json.dumps(header), json.dumps({topic: {str(at): end for at, end in ends.items()}})))


@dataclass(kw_only=True)
class Alone:
    """One pipeline; batch N reads records N*10 to N*10+9 of its source's partition 0, unless a test plans otherwise."""

    config: Mapping[str, str]
    name: str
    source: str
    home: Home
    sinks: Sequence[Sink] = ()
    kafka: KafkaSink | None = None
    rows: Any = field(default=lambda offset: {"id": offset, "k": f"k{offset % 7}", "v": offset / 4})

    @contextmanager
    def life(self, *, version: str = "v", accept: bool = False, diverged: Any = None) -> Iterator[Life]:
        """Start a run; its end is that of a process which dies."""
        options = RunOptions(
            config=dict(self.config), token=str(uuid.uuid4()), version=version, transaction_timeout_milliseconds=60_000
        )
        with ExitStack() as stack:
            run = Run(self.home, self.name, options)
            stack.callback(run.close)
            stack.callback(close_connections)
            listener = stack.enter_context(SequencerListener(settings.sequencer_endpoint(lambda name: None, "local")))
            context = SinkContext(pipeline=self.name, home=self.home.path)
            committers = {sink.name: sink.open(context) for sink in self.sinks}
            for committer in committers.values():
                stack.callback(committer.close)
            others = SinkGroup(self.name, committers, accept_nondeterminism=accept)
            tail = run.check()
            newest, newest_run = (tail.commit, tail.place.run) if tail else (None, 0)
            others.check(newest, newest_run, first_repeated(self.home, self.home.current()))
            named = self.kafka.topics if self.kafka else []
            topics = preflight.check_topics(run.client, sources=[self.source], sinks=named)
            check_topic_ids({name: of.topic_id for name, of in topics.items()}, tail)
            targets = {name: topics[name] for name in named}
            attempt = BatchAttempt(run, TransactionOptions(definition=self.kafka), targets, listener, others)
            sink = BatchTransaction(attempt, OneTask(attempt), lambda: False)
            run.start()
            yield Life(self, run, sink, others, diverged)

    def lineage_at(self, commit: int) -> Lineage:
        """Make a lineage that goes on after a commit, as a restore does, and point the home to it."""
        old = self.home.current()
        with LedgerReader(self.config, self.name) as reader:
            tail = reader.tail()
        assert old is not None and tail is not None
        batch = old.batch_of(commit)
        lineage = replace(
            old,
            id=str(uuid.uuid4()),
            base_batch=batch,
            base_commit=commit,
            parent=old.id,
            parent_run=tail.place.run,
            parent_commit=tail.place.commit,
        )
        target, source = self.home.checkpoint(lineage.id), self.home.checkpoint(old.id)
        for log in ("offsets", "commits"):
            (target / log).mkdir(parents=True)
            for number in range(batch + 1):
                (target / log / str(number)).write_bytes((source / log / str(number)).read_bytes())
        (target / "sources/0").mkdir(parents=True)
        (target / "sources/0/0").write_bytes((source / "sources/0/0").read_bytes())
        self.home.remember(lineage)
        self.home.use(lineage.id)
        return lineage


class Life:
    """One run of a pipeline, from its claim on."""

    def __init__(self, alone: Alone, run: Run, sink: BatchTransaction, others: SinkGroup, diverged: Any) -> None:
        self.alone, self.run, self.sink, self.others = alone, run, sink, others
        self.checkpoint = ClaimedCheckpoint(run.home.checkpoint(run.lineage.id), run.check_superseded)
        self.recorded: CommitRecord | None = None
        self.told: list[tuple[int, bool]] = []
        refuse = {} if diverged is None else {"diverged": diverged}
        self.coordinator = CommitCoordinator(
            sink,
            Callbacks(
                plan=self.plan,
                stop_reason=lambda: None,
                committed=lambda record, _, before: self.told.append((record.commit, before)),
                **refuse,
            ),
            max_batch_attempts=3,
        )

    def fit(self) -> bool:
        """Do what a start does after its claim; returns whether commits have to be replayed."""
        needs_replay = reconcile(self.checkpoint, self.run.lineage, self.run.tail)
        first = first_repeated(self.run.home, self.run.lineage)
        self.others.claim(self.run.number, self.run.tail.commit, first)
        owed = self.others.owed(self.run.tail.commit)
        if owed is not None and not needs_replay:
            owed_batch.plan(self.checkpoint, self.run.lineage, owed, self.run.sources, None, [])
        return needs_replay

    def plan(self, number: int) -> Batch:
        batch = planned_batch(self.checkpoint, self.run.sources, self.run.lineage.id, number)
        return replace(batch, recorded=self.recorded)

    def batch(
        self, number: int, *, end: int | None = None, noted: bool = True, recorded: CommitRecord | None = None
    ) -> None:
        """Do what Spark does with a batch: plan it, unless that was done, call back, note that it is done.

        :param end: where it ends in the source, when it is planned now
        :param noted: whether Spark comes to note it
        :param recorded: the commit that a replay finds for it
        """
        if recorded is not None:
            self.checkpoint.write_offsets(number, recorded.offsets)
        self.plan_next(number, end=end)
        self.recorded = recorded
        start, stop = self.plan(number).source[self.alone.source][0]
        self.coordinator.process(Frame([self.alone.rows(offset) for offset in range(start, stop)]), number)  # type: ignore[arg-type]
        if noted:
            self.note(number)

    def plan_next(self, number: int, *, end: int | None = None) -> None:
        """Plan a batch, unless that was done."""
        initial = self.checkpoint.path / "sources/0/0"
        if not initial.exists():
            initial.parent.mkdir(parents=True)
            initial.write_text("v1\n" + json.dumps({self.alone.source: {"0": 0}}))
        if self.checkpoint.offsets(number) is None:
            ends = {0: number * 10 + 10 if end is None else end}
            self.checkpoint.write_offsets(number, offsets_text(self.alone.source, ends, batch=number))

    def note(self, number: int) -> None:
        """Note that a batch is done."""
        (self.checkpoint.path / "commits").mkdir(exist_ok=True)
        (self.checkpoint.path / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')

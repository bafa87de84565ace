"""The driver: one process that runs one pipeline from its start to its end."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, ClaimedCheckpoint
from airflow_provider_exactlyonce.checkpoint.recovery import recover
from airflow_provider_exactlyonce.checkpoint.start_checks import (
    check_first_offsets,
    check_sources_go_on,
    check_topic_ids,
    first_repeated,
    reconcile,
    settle_first_positions,
)
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control import releases, requests, standbys
from airflow_provider_exactlyonce.control.lease import Lease
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import (
    AlreadyRunningError,
    DivergedError,
    ExactlyOnceError,
    RefusedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges
from airflow_provider_exactlyonce.ledger.topic_identity import check_sources_are_there, known_sources
from airflow_provider_exactlyonce.storage.store import ChangedError
from airflow_provider_exactlyonce.streaming.analysis import determinism, feedback
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import ExecutedBatch
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import check_read_once
from airflow_provider_exactlyonce.streaming.analysis.source_mark import sources_of
from airflow_provider_exactlyonce.streaming.commit.at_least_once import AtLeastOnceWriter
from airflow_provider_exactlyonce.streaming.commit.at_most_once import AtMostOnceSink
from airflow_provider_exactlyonce.streaming.commit.batch import Batch, planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_sink import TransactionalSink
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup, written_tables
from airflow_provider_exactlyonce.streaming.driver import rehearsal
from airflow_provider_exactlyonce.streaming.driver.lifecycle import DriverLifecycle, listen
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from airflow_provider_exactlyonce.streaming.job import guarantees
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointingMode, OnCancellation
from airflow_provider_exactlyonce.streaming.job.guarantees import DeliveryGuarantee
from airflow_provider_exactlyonce.streaming.job.source import table_begins
from airflow_provider_exactlyonce.streaming.replay import owed_batch
from airflow_provider_exactlyonce.streaming.replay.replay import Comparison, Replay, check_replay, open_replay
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import jvm

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

log = logging.getLogger("exactlyonce")

#: How a pipeline's batches are committed, by what it guarantees.
SINKS: Final[Mapping[CheckpointingMode, Callable[[BatchAttempt, Callable[[], bool]], TransactionalSink]]] = {
    CheckpointingMode.EXACTLY_ONCE: lambda attempt, stop: BatchTransaction(attempt, TransactionalWriter(attempt), stop),
    CheckpointingMode.AT_LEAST_ONCE: lambda attempt, stop: BatchTransaction(attempt, AtLeastOnceWriter(attempt), stop),
    CheckpointingMode.AT_MOST_ONCE: AtMostOnceSink,
}


class Driver:
    """Runs one pipeline; :meth:`run` is called once."""

    def __init__(self, pipeline: PipelineDefinition, options: DriverOptions) -> None:
        self._pipeline: Final = pipeline
        self._options: Final = options
        self._lifecycle: Final = DriverLifecycle(pipeline, options, pipeline.name)
        self._standing_by: Final = ExitStack()
        self._replay: Replay | None = None
        self._accepts_other_rows = options.accept_nondeterminism

    def run(self) -> int:
        """Run to the end; returns the process's exit code."""
        return self._lifecycle.run(self._work, self._delete_checkpoint)

    def _work(self) -> None:
        """Do what the driver is for; returns when it is done."""
        self._options.home.check_can_be_made()
        with self._standing_by:
            self._drive(self._stand_by() if self._options.standby else None)

    def _drive(self, left: Lease | None) -> None:
        """Start and run; what needs no Spark is checked before Spark starts.

        :param left: the lease of the driver that this one takes over from, None for none
        """
        run = self._lifecycle.open_run(
            RunOptions(
                config=self._options.config,
                token=self._options.token,
                version=self._pipeline.version,
                transaction_timeout_milliseconds=self._pipeline.transaction_timeout_seconds * 1000,
                left=left,
                accept_home=self._options.accept_home,
                allow_single_replica=self._options.allow_single_replica,
                ledger_retention=self._pipeline.ledger_retention,
                source_patterns=self._pipeline.source_patterns,
                source_connections=self._pipeline.source_connections,
            ),
        )
        releases.check_start(run.home, run.options.version, run.options.token)
        if job := self._pipeline.job:
            releases.check_kept(run.home, run.options.version, job.hash)
        topics = self._lifecycle.check_topics(run, self._pipeline.sink_topics)  # before the seconds that Spark takes
        tail = run.check()
        run.sources.check(tail, [source.topics for source in self._pipeline.sources.values()])
        other_cluster_topics = self._lifecycle.check_topics_elsewhere(run)
        feedback.check_topics(
            run.pipeline,
            self._pipeline.sink_topics,
            run.sources.here(other_cluster_topics),
            allowed=self._pipeline.allow_feedback,
        )
        patterns = [
            source.topics for source in self._pipeline.sources.values() if source.topics.pattern and not source.may_lose
        ]
        check_sources_are_there(
            self._lifecycle.topics_read(run), known_sources(tail.commit if tail else None), patterns
        )
        check_topic_ids(_ids(topics), tail, _ids(other_cluster_topics))
        if tail is None or tail.commit is None:
            for source in self._pipeline.sources.values():
                if source.first_offsets:
                    check_first_offsets(run.sources.offsets, source.first_offsets, run.sources.topics(source.topics))
                    run.sources.read_by(source.topics).check_begins(source.first_offsets)
        recover(
            run.home,
            run.pipeline,
            self._options.config,
            tail,
            allow_empty_state=self._options.allow_empty_state,
            accept_nondeterminism=self._options.accept_nondeterminism,
        )
        committers = self._open_committers(run)
        first = first_repeated(run.home, run.home.current())
        newest, newest_run = (tail.commit, tail.place.run) if tail else (None, 0)
        SinkGroup(run.pipeline, committers).check(newest, newest_run, first)
        spark = self._lifecycle.open_session()
        with listen(spark) as listener:
            self._supervised(spark, run, listener, topics, tail, committers)

    def _stand_by(self) -> Lease | None:
        """Wait for the turn of a standby, with Spark up and the plan checked; returns the lease of the lost driver.

        What is found out here ends a standby that could not run. Nothing of it is used: the start that follows is that
        of any driver, but for Spark's session, which is there. Others see the standby until they see its claim, so that
        a stop in between is meant for it: whoever asks the lost driver asks it.
        """
        home, token = self._options.home, self._options.token
        turn = standbys.turn_of(home, token, self._options.supervisor)
        if not standbys.keeps_waiting(turn):
            return turn.left
        releases.check_start(home, self._pipeline.version, token)
        left_lease = standbys.check_only(home, self._pipeline.name)
        spark = self._lifecycle.open_session()
        if spark.conf.get("spark.submit.deployMode", "client") == "cluster":
            raise RefusedError("--standby warm needs deploy mode client: in a cluster its manager starts each driver")
        self._plan_result(spark)
        rehearsal.rehearse(spark)
        self._standing_by.enter_context(leases.holding(home.standby, self._pipeline.name, token, left_lease))
        log.info("standby: ready, waits for the end of the driver")

        def check_wanted() -> None:
            if reason := self._lifecycle.stop.reason():
                raise StopRequestedError(reason)
            if jvm.is_stopped(spark):
                raise ExactlyOnceError("Spark has ended while the standby was waiting")

        standbys.await_turn(home, turn, check_wanted)
        log.info("standby: takes over")
        if (left := turn.left) is not None:
            self._lifecycle.stop.ask(lambda: requests.stop_requested(home, left.token))
        return turn.left

    def _plan_result(self, spark: SparkSession) -> tuple[DataFrame, list[str], DeliveryGuarantee]:
        """Return the stream that goes to the sinks, what may give other rows in it, and what the pipeline gives."""
        result = self._lifecycle.result(spark)
        self._pipeline.check(result)
        check_read_once(result)
        unsure = determinism.find(result)
        settings = dict(spark.sparkContext.getConf().getAll())
        return result, unsure, self._promise(guarantees.examine(self._pipeline, result, unsure, settings))

    def _supervised(
        self,
        spark: SparkSession,
        run: Run,
        listener: SequencerListener,
        topics: Mapping[str, TopicFacts],
        tail: LedgerTail | None,
        committers: dict[str, SinkCommitter],
    ) -> None:
        # Whatever can be refused is, before the start of the run fences anybody.
        result, unsure, guarantee = self._plan_result(spark)
        sources = sources_of(result)
        if not any(source.may_lose for source in self._pipeline.sources.values()):
            check_sources_go_on(tail, sources)
        for name, rows in self._pipeline.routes.other_rows(result).items():
            committers[name].expect_columns(rows.schema)
        run.guarantee = guarantee.gives
        check_replay(run, tail, unsure, accept_nondeterminism=self._options.accept_nondeterminism)
        lineage = run.home.current()
        accepted = lineage is not None and lineage.accept_nondeterminism
        others = SinkGroup(run.pipeline, committers, accept_nondeterminism=self._accepts_other_rows or accepted)
        sink = self._sink(spark, run, listener, topics, others)
        stream = sink.prepare(result)
        releases.check_start(run.home, run.options.version, run.options.token)  # an upgrade may have begun meanwhile
        self._lifecycle.report.tables = partial(written_tables, committers)
        self._lifecycle.start_run(run, spark, others)
        with suppress(AlreadyRunningError):  # after a freeze another one may stand by already
            self._standing_by.close()
        checkpoint = ClaimedCheckpoint(run.home.checkpoint(run.lineage.id), run.check_superseded)
        begins = table_begins(self._pipeline.sources.values(), self._lifecycle.begins)
        settle_first_positions(checkpoint, sources, begins)
        try:
            needs_replay = reconcile(checkpoint, run.lineage, run.tail)
        except (RefusedError, ChangedError):
            run.check_superseded()  # frozen since its claim, it may see what its successor has done since
            raise
        first = first_repeated(run.home, run.lineage)
        others.claim(run.number, run.tail.commit, first)
        owed = others.owed(run.tail.commit)
        needs_replay = needs_replay or (
            owed is not None and first <= run.tail.place.commit
        )  # it comes before what is owed
        if needs_replay:
            self._open_replay(spark, run, checkpoint, goes_live=owed is None)
        self._lifecycle.stop.begin()
        if not needs_replay and run.tail.commit is not None and self._lifecycle.stop.reached(run.tail.commit):
            return
        jobs.write(run.home, run.lineage.id, self._pipeline.describe(spark, result, unsure))
        if job := self._pipeline.job:
            releases.keep(run.home, run.options.version, job.path, job.content)
        self._serve_savepoints(run)
        attempts = guarantee.attempts(self._pipeline.max_batch_attempts)
        self._commit_batches(spark, run, stream, self._coordinator(run, checkpoint, sink, attempts), owed)

    def _sink(
        self,
        spark: SparkSession,
        run: Run,
        listener: SequencerListener,
        topics: Mapping[str, TopicFacts],
        others: SinkGroup,
    ) -> TransactionalSink:
        definition, config = self._pipeline.sink, self._options.config

        def bad_source_records(ranges: SourceRanges) -> DataFrame | None:
            bad_topic = definition.bad_topic if definition else None
            return self._pipeline.bad_source_records(spark, config, bad_topic, ranges)

        options = TransactionOptions(
            definition=definition,
            routes=self._pipeline.routes,
            bad_source_records=bad_source_records if definition and definition.diverts else None,
            allow_feedback=self._pipeline.allow_feedback,
            executed=lambda batch: ExecutedBatch(spark, batch.lineage),
            late=self._pipeline.late_rows,
        )
        targets = {topic: topics[topic] for topic in self._pipeline.sink_topics}
        attempt = BatchAttempt(run, options, targets, listener, others)
        return SINKS[self._pipeline.mode](attempt, self._stop_requested)

    def _open_replay(self, spark: SparkSession, run: Run, checkpoint: ClaimedCheckpoint, *, goes_live: bool) -> None:
        self._replay = open_replay(spark, run, checkpoint, self._comparison(run), goes_live=goes_live)
        self._lifecycle.closing.callback(self._replay.close)
        # Whoever waits for it to be live must see that it isn't yet.
        self._lifecycle.report.tell(replay=self._replay.report)

    def _coordinator(
        self, run: Run, checkpoint: Checkpoint, sink: TransactionalSink, attempts: int
    ) -> CommitCoordinator:
        return CommitCoordinator(
            sink,
            Callbacks(
                plan=lambda number: self._plan(checkpoint, run, number),
                stop_reason=self._lifecycle.stop.reason,
                committed=self._on_commit,
                diverged=lambda record, error: self._on_difference(self._comparison(run), record, error),
            ),
            max_batch_attempts=attempts,
        )

    def _commit_batches(
        self,
        spark: SparkSession,
        run: Run,
        stream: DataFrame,
        coordinator: CommitCoordinator,
        owed: SinkEntry | None,
    ) -> None:
        """Replay what has to be, then commit one batch after the other until the query's end.

        :param owed: the commit that a sink has and the ledger lacks
        """
        self._lifecycle.report.tell(state=DriverState.RUNNING, progressed=time.time())
        replay = self._replay
        runner = self._lifecycle.runner(
            run, stream, coordinator.process, lambda: replay is not None and replay.needs_restart()
        )
        if replay is not None and not runner.run_recorded(replay):
            return
        if owed is not None:
            checkpoint = ClaimedCheckpoint(run.home.checkpoint(run.lineage.id), run.check_superseded)
            owed_batch.plan(checkpoint, run.lineage, owed, run.sources, spark, sources_of(stream))
        runner.run_live()

    def _promise(self, guarantee: DeliveryGuarantee) -> DeliveryGuarantee:
        """Hold the pipeline to what its links can give, and tell what that is."""
        guarantee.check()
        self._lifecycle.report.tell(guarantee=guarantee.gives, weaker=guarantee.reason if guarantee.is_weaker else None)
        if guarantee.is_weaker:
            self._accepts_other_rows = True  # what was accepted: a batch that is run again may not find the same again
            log.warning(
                "guarantee=%s is declared, and what can be had is %s, which allow_weaker=True accepts: %s",
                guarantee.declared.value,
                guarantee.gives,
                guarantee.reason,
            )
        if guarantee.warning is not None:
            log.warning("%s", guarantee.warning)
        return guarantee

    def _stop_requested(self) -> bool:
        return self._lifecycle.stop.reason() is not None

    def _open_committers(self, run: Run) -> dict[str, SinkCommitter]:
        context = SinkContext(pipeline=run.pipeline, home=run.home.path, stop_requested=self._stop_requested)
        committers = {}
        for share in self._pipeline.routes.others:
            committers[share.sink.name] = share.sink.open(context)
            self._lifecycle.closing.callback(committers[share.sink.name].close)
        return committers

    def _plan(self, checkpoint: Checkpoint, run: Run, number: int) -> Batch:
        self._lifecycle.report.batch_began = time.time()
        batch = planned_batch(checkpoint, run.sources, run.lineage.id, number)
        if batch.source.keys() - (run.tail.commit.source if run.tail.commit else {}).keys():
            self._lifecycle.topics_read(run)  # two patterns may have found the new one
        return batch if self._replay is None else self._replay.recorded(batch)

    def _is_replaying(self) -> bool:
        return self._replay is not None and self._replay.pending

    def _on_difference(self, comparison: Comparison, record: CommitRecord, error: DivergedError) -> None:
        """Decide what follows from other rows of a commit that is run again."""
        if self._replay is not None and self._is_replaying():
            self._replay.judge(record, error)
        else:
            self._lifecycle.report.tell(replay=comparison.report(record, error))

    def _comparison(self, run: Run) -> Comparison:
        accept = self._accepts_other_rows or run.lineage.accept_nondeterminism
        return Comparison(version=run.options.version, accept=accept)

    def _serve_savepoints(self, run: Run) -> None:
        service = SavepointService(
            run.home,
            run.lineage.id,
            self._options.token,
            retention=self._pipeline.checkpoint.savepoints,
            batch_of=lambda record: self._batch_of(run, record),
        )
        self._lifecycle.savepoints = service
        self._lifecycle.stop.ask(service.stop_reason)
        service.start(run.tail.commit)

    def _batch_of(self, run: Run, record: CommitRecord) -> int | None:
        """Return the batch whose state is that of a commit; None when there is none, or it is not run yet."""
        batch = run.lineage.batch_of(record.commit)
        return None if self._is_replaying() or run.lineage.state_of(batch) != record.commit else batch

    def _on_commit(self, record: CommitRecord, seconds: float, was_committed: bool) -> None:
        lifecycle, replay = self._lifecycle, self._replay if self._is_replaying() else None
        lifecycle.report.batch_began = None
        if replay is not None:
            replay.repeated()
            lifecycle.report.tell(replay=replay.report, progressed=time.time())
        if lifecycle.savepoints is not None:
            lifecycle.savepoints.committed(record)
        if replay is not None:
            return
        lifecycle.stop.committed(record)
        lifecycle.report.committed(record, seconds, before=was_committed)

    def _delete_checkpoint(self, run: Run) -> None:
        """Delete the checkpoint of a pipeline that was cancelled, if it says so and nobody may go on from it."""
        if self._pipeline.checkpoint.on_cancellation is not OnCancellation.DELETE:
            return
        if not run.number:
            log.info("no checkpoint is deleted, though the pipeline says on_cancellation=delete: it is not claimed yet")
            return
        path = run.home.checkpoint(run.lineage.id)
        try:
            if (reason := self._why_retained()) is not None:
                log.info("%s stays, though the pipeline says on_cancellation=delete: %s", path, reason)
                return
            run.delete_checkpoint()
        except (ExactlyOnceError, UnansweredError, OSError) as error:
            log.warning("%s is not deleted, though the pipeline says on_cancellation=delete: %s", path, error)
        else:
            log.info("%s is deleted, as the pipeline says on_cancellation=delete; savepoints stay", path)

    def _why_retained(self) -> str | None:
        """Return why a stop is no cancellation, or who still needs the checkpoint; None when it may go.

        After a signal alone, and after the end of a task, a supervisor may start the next driver.
        """
        home, token, savepoints = self._options.home, self._options.token, self._lifecycle.savepoints
        if requests.stop_requested(home, token) is None:
            return "a signal has stopped the driver, and nobody had asked for a stop"
        if (owner := requests.killed_by(home, token)) is not None:
            return f"the driver was stopped with its task, {owner}"
        if savepoints is None or not savepoints.owes_none:
            return "it is not certain that each savepoint that was asked for is taken, and whoever asked may take it"
        return None


def _ids(topics: Mapping[str, TopicFacts]) -> dict[str, str]:
    return {name: topic.topic_id for name, topic in topics.items()}

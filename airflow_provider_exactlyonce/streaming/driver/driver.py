"""The driver: one process that runs one pipeline from its start to its end."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from airflow_provider_exactlyonce.checkpoint import job as jobs
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint
from airflow_provider_exactlyonce.checkpoint.recovery import recover
from airflow_provider_exactlyonce.control import commands, releases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.control.lease import HEARTBEAT_SECONDS
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import (
    Decision,
    DivergedError,
    ExactlyOnceError,
    RefusedError,
    StopRequestedError,
)
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.ledger.reader import LedgerTail
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SourceRanges, ledger_topic
from airflow_provider_exactlyonce.policies.termination import AVAILABLE, target_of
from airflow_provider_exactlyonce.streaming import settings
from airflow_provider_exactlyonce.streaming.analysis import determinism
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import ExecutedBatch
from airflow_provider_exactlyonce.streaming.commit.at_least_once import KafkaAtLeastOnce
from airflow_provider_exactlyonce.streaming.commit.at_most_once import KafkaAtMostOnce
from airflow_provider_exactlyonce.streaming.commit.batch import Batch, planned_batch
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.coordinator import Callbacks, CommitCoordinator
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.commit.start_checks import check_topic_ids, first_repeated, reconcile
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.driver.savepoint_service import SavepointService
from airflow_provider_exactlyonce.streaming.driver.status_reporter import DriverReport
from airflow_provider_exactlyonce.streaming.driver.stop_condition import Goal
from airflow_provider_exactlyonce.streaming.job import driver_log, guarantees, mistakes
from airflow_provider_exactlyonce.streaming.job.checkpoint_config import CheckpointingMode, OnCancellation, Pause
from airflow_provider_exactlyonce.streaming.job.guarantees import Plan
from airflow_provider_exactlyonce.streaming.replay import owed_batch
from airflow_provider_exactlyonce.streaming.replay.replay import (
    Comparison,
    OneStartPerBatchError,
    Replay,
    check_replay,
    open_replay,
)
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import errors, spark_log
from airflow_provider_exactlyonce.streaming.spark.session import open_session
from airflow_provider_exactlyonce.streaming.spark.state_metrics import StateSizes
from airflow_provider_exactlyonce.streaming.spark.steering import missing_part, wait_until_gone

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

log = logging.getLogger("exactlyonce")

_WAIT_SECONDS: Final = 1
#: How a pipeline's batches are committed, by what it guarantees.
SINKS: Final[Mapping[CheckpointingMode, Callable[..., BatchTransaction]]] = {
    CheckpointingMode.EXACTLY_ONCE: BatchTransaction,
    CheckpointingMode.AT_LEAST_ONCE: KafkaAtLeastOnce,
    CheckpointingMode.AT_MOST_ONCE: KafkaAtMostOnce,
}
_LOG_UPDATE_CONFLICT: Final = "CONCURRENT_STREAM_LOG_UPDATE"


class Batches(Protocol):
    """What is called with each batch of a query.

    :ivar failure: what ended the query, None when nothing did
    """

    failure: ExactlyOnceError | None

    def process(self, frame: DataFrame, number: int) -> None:
        """Process one micro-batch; the callback of ``foreachBatch``."""


class Driver:
    """Runs one pipeline; :meth:`run` is called once."""

    def __init__(self, pipeline: PipelineDefinition, options: DriverOptions) -> None:
        self._pipeline: Final = pipeline
        self._options: Final = options
        self._report: Final = DriverReport(options.home, options.token, pipeline.name)
        self._signal: str | None = None
        self._interrupted = False  # by a signal, which may have ended Spark, too
        self._watermark: int | None = None
        self._done: str | None = None  # why no further batch is wanted, once the run's work is done
        self._goal: Final = Goal(options.home, target_of(options.until), options.goal)
        self._lost_lease: Final = threading.Event()
        self._ended: Final = threading.Event()
        self._state_sizes: Final = StateSizes()
        self._others: SinkGroup | None = None
        self._savepoints: SavepointService | None = None
        self._replay: Replay | None = None
        self._run: Run | None = None
        self._plan_of_links: Plan | None = None
        self._spark: SparkSession | None = None
        self._closing: Final = ExitStack()

    def run(self) -> int:
        """Run to the end; returns the process's exit code."""
        self._heed_signals()
        try:
            self._drive()
        except StopRequestedError as error:
            if self._done:
                return self._end(DriverState.FINISHED)
            log.info("stopped: %s", error)
            return self._stopped(self._run)
        except Exception as error:
            return self._failed(error)
        else:
            return self._end(DriverState.FINISHED)
        finally:
            self._ended.set()
            if self._savepoints is not None:
                self._savepoints.close(serve=False)
            if self._run is not None:
                self._run.close()
            if self._spark is not None:
                self._spark.stop()
            if self._replay is not None:
                self._replay.close()
            self._closing.close()

    def _drive(self) -> None:
        """Do what the driver is for; returns when it is done. What needs no Spark is checked before it starts."""
        self._options.home.check_can_be_made()
        run = self._open_run(
            self._options.home,
            self._pipeline.name,
            RunOptions(
                config=self._options.config,
                token=self._options.token,
                version=self._pipeline.version,
                transaction_timeout_milliseconds=self._pipeline.transaction_timeout_seconds * 1000,
                accept_home=self._options.accept_home,
                allow_single_replica=self._options.allow_single_replica,
                ledger_retention=self._pipeline.ledger_retention,
            ),
        )
        releases.check_start(run.home, run.options.version, run.options.token)
        if job := self._pipeline.job:
            releases.check_kept(run.home, run.options.version, job.hash)
        topics = self._check_topics(run)  # before the seconds that a Spark session takes
        tail = run.check()
        check_topic_ids({name: topic.topic_id for name, topic in topics.items()}, tail)
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
        SinkGroup(run.pipeline, committers).check(tail.commit if tail else None, first)
        spark = self._open_session()
        with SequencerListener(sequencer_endpoint(spark)) as listener:
            self._supervised(spark, run, listener, topics, tail, committers)

    def _open_run(self, home: Home, pipeline: str, options: RunOptions) -> Run:
        self._run = Run(home, pipeline, options)
        return self._run

    def _open_session(self) -> SparkSession:
        self._spark = open_session(self._pipeline.name)
        self._heed_signals()  # a new session has taken SIGINT
        spark_log.quieten(self._spark)
        self._apply_settings(self._spark)
        return self._spark

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
        result = self._result(spark)
        definition, config = self._pipeline.sink, self._options.config
        self._pipeline.check(result)
        unsure = determinism.find(result)
        plan = self._promise(
            guarantees.examine(self._pipeline, result, unsure, dict(spark.sparkContext.getConf().getAll()))
        )
        run.guarantee = plan.gives
        check_replay(run, tail, unsure, accept_nondeterminism=self._options.accept_nondeterminism)

        def bad_source_records(ranges: SourceRanges) -> DataFrame | None:
            bad_topic = definition.bad_topic if definition else None
            return self._pipeline.bad_source_records(spark, config, bad_topic, ranges)

        lineage = run.home.current()
        accepted = self._options.accept_nondeterminism or (lineage is not None and lineage.accept_nondeterminism)
        accept = accepted or self._may_differ()
        self._others = others = SinkGroup(run.pipeline, committers, accept_nondeterminism=accept)
        sink = SINKS[self._pipeline.mode](
            definition,
            run,
            targets={topic: topics[topic] for topic in self._pipeline.sink_topics},
            bad_source_records=bad_source_records if definition and definition.diverts else None,
            listener=listener,
            stop_requested=lambda: self._stop_reason() is not None,
            shares=self._pipeline.shares,
            others=others,
            allow_feedback=self._pipeline.allow_feedback,
            executed=lambda batch: ExecutedBatch(spark, batch.lineage),
            late=self._pipeline.late_rows,
        )
        stream = sink.prepare(result)
        releases.check_start(run.home, run.options.version, run.options.token)  # an upgrade may have begun meanwhile
        self._start_run(run, spark)
        checkpoint = Checkpoint(run.home.checkpoint(run.lineage.id))
        try:
            needs_replay = reconcile(checkpoint, run.lineage, run.tail)
        except RefusedError:
            run.check_superseded()  # frozen since its claim, it may see what its successor has done since
            raise
        first = first_repeated(run.home, run.lineage)
        others.claim(run.number, run.tail.commit, first)
        owed = others.owed(run.tail.commit)
        needs_replay = needs_replay or (
            owed is not None and first <= run.tail.place.commit
        )  # it comes before what is owed
        if needs_replay:
            self._replay = open_replay(spark, run, checkpoint, self._comparison(run), goes_live=owed is None)
            self._report.tell(replay=self._replay.report)  # who waits for it to be live must see that it isn't yet
        self._goal.begin(self._report.status.commit)
        if not needs_replay and run.tail.commit is not None and self._has_reached(run.tail.commit):
            return
        jobs.write(run.home, run.lineage.id, self._pipeline.describe(spark, result, unsure))
        if job := self._pipeline.job:
            releases.keep(run.home, run.options.version, job.path, job.content)
        self._serve_savepoints(run)
        attempts = plan.attempts(self._pipeline.max_batch_attempts)
        self._commit_batches(spark, run, stream, self._coordinator(run, checkpoint, sink, attempts), owed)

    def _coordinator(
        self, run: Run, checkpoint: Checkpoint, sink: BatchTransaction, attempts: int
    ) -> CommitCoordinator:
        return CommitCoordinator(
            sink,
            Callbacks(
                plan=lambda number: self._plan(checkpoint, run, number),
                stop_reason=self._stop_reason,
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
        self._report.tell(state=DriverState.RUNNING, progressed=time.time())
        if self._replay is not None and not self._replay_first(self._replay, spark, run, stream, coordinator):
            return
        checkpoint = Checkpoint(run.home.checkpoint(run.lineage.id))
        if owed is not None:
            owed_batch.plan(checkpoint, run.lineage, owed, self._options.config, spark)
        self._wait(self._start_query(stream, checkpoint.path, coordinator), run, coordinator)

    def _promise(self, plan: Plan) -> Plan:
        """Hold the pipeline to what its links can give, and tell what that is."""
        plan.check()
        self._plan_of_links = plan
        self._report.tell(guarantee=plan.gives, weaker=plan.reason if plan.is_weaker else None)
        if plan.is_weaker:
            log.warning(
                "guarantee=%s is declared, and what can be had is %s, which allow_weaker=True accepts: %s",
                plan.declared.value,
                plan.gives,
                plan.reason,
            )
        if plan.warning is not None:
            log.warning("%s", plan.warning)
        return plan

    def _result(self, spark: SparkSession) -> DataFrame:
        """Return the stream that goes to the sink.

        :raises RefusedError: when the job's function can't make it, with the line
        """
        try:
            return self._pipeline.result(spark, self._options.config)
        except ExactlyOnceError:
            raise
        except Exception as error:
            meaning = mistakes.meaning_in_function(error, job.name) if (job := self._pipeline.job) else None
            if meaning is None:
                raise
            raise meaning from error

    def _open_committers(self, run: Run) -> dict[str, SinkCommitter]:
        context = SinkContext(pipeline=run.pipeline, home=run.home.path)
        committers = {}
        for share in self._pipeline.shares.others:
            committers[share.sink.name] = share.sink.open(context)
            self._closing.callback(committers[share.sink.name].close)
        return committers

    def _start_run(self, run: Run, spark: SparkSession) -> None:
        for name, work in (("heartbeat", lambda: self._beat(run)), ("lag", lambda: self._measure_lag(run))):
            threading.Thread(target=self._repeat, args=(name, work), name=name, daemon=True).start()
        run.start()
        self._report.own()
        self._report.read(run.tail.commit.source if run.tail.commit else {})
        context = spark.sparkContext
        self._report.tell(
            run=run.number,
            lineage=run.lineage.id,
            commit=run.tail.place.commit,
            batch=run.tail.commit.batch if run.tail.commit else -1,
            committed=run.tail.commit.committed / 1000 if run.tail.commit else None,
            application_id=context.applicationId,
            ui_url=context.uiWebUrl,
        )
        log.info(
            "run %d of %s, lineage %s, after commit %d",
            run.number,
            run.pipeline,
            run.lineage.id,
            self._report.status.commit,
        )

    def _replay_first(
        self, replay: Replay, spark: SparkSession, run: Run, stream: DataFrame, coordinator: CommitCoordinator
    ) -> bool:
        """Replay what the ledger is ahead; returns false when the same query has gone on live, and ended."""
        checkpoint = run.home.checkpoint(run.lineage.id)
        impossible = missing_part(spark)
        while replay.prepare(one_start_per_batch=impossible):
            query = self._start_query(stream, checkpoint, coordinator, once=impossible is not None)
            replay.attach(query)
            try:
                self._wait(query, run, coordinator)
            except OneStartPerBatchError as error:
                impossible = str(error)
                log.warning("%s; each recorded batch gets a start of its own", error)
                continue
            replay.check_progress()
            if not replay.pending and impossible is None and replay.goes_live:
                return False
            wait_until_gone(spark, query)
        return True

    def _plan(self, checkpoint: Checkpoint, run: Run, number: int) -> Batch:
        self._report.batch_began = time.time()
        batch = planned_batch(checkpoint, run.client, run.lineage.id, number)
        return batch if self._replay is None else self._replay.recorded(batch)

    def _is_replaying(self) -> bool:
        return self._replay is not None and self._replay.pending

    def _on_difference(self, comparison: Comparison, record: CommitRecord, error: DivergedError) -> None:
        """Decide what follows from other rows of a commit that is run again."""
        if self._replay is not None and self._is_replaying():
            self._replay.judge(record, error)
        else:
            self._report.tell(replay=comparison.report(record, error))

    def _comparison(self, run: Run) -> Comparison:
        accept = self._options.accept_nondeterminism or run.lineage.accept_nondeterminism or self._may_differ()
        return Comparison(version=run.options.version, accept=accept)

    def _may_differ(self) -> bool:
        """Tell whether a weaker guarantee was accepted for what a batch that is run again does not find again."""
        plan = self._plan_of_links
        return plan is not None and plan.is_weaker

    def _apply_settings(self, spark: SparkSession) -> None:
        """Make the settings that the pipeline's declaration asks for, and check what can't change any more."""
        submitted = spark.sparkContext.getConf()
        backend, config = self._pipeline.state_backend, self._pipeline.checkpoint
        lineage = self._options.home.current()
        if backend is not None and lineage is not None:
            checkpoint = Checkpoint(self._options.home.checkpoint(lineage.id))
            backend.check_lineage(lineage.id, checkpoint.conf())
        asked = {
            **config.settings(lambda name: submitted.get(name, None)),
            **(backend.settings(lambda name: submitted.get(name, None)) if backend is not None else {}),
        }
        for name, value in asked.items():
            spark.conf.set(name, value)

    def _serve_savepoints(self, run: Run) -> None:
        self._savepoints = SavepointService(
            run.home,
            run.lineage.id,
            self._options.token,
            retention=self._pipeline.checkpoint.savepoints,
            batch_of=lambda record: None if self._is_replaying() else run.lineage.batch_of(record.commit),
        )
        self._savepoints.start(run.tail.commit)

    def _check_topics(self, run: Run) -> dict[str, TopicFacts]:
        """Check topics and rights, before the ledger is read: a right that is missing is told by its name."""
        return preflight.check_topics(
            run.client,
            sources=[source.topic for source in self._pipeline.sources.values()],
            sinks=self._pipeline.sink_topics,
            ledger=ledger_topic(self._pipeline.name),
            user=self._options.config.get("sasl.username"),
            allow_single_replica=self._options.allow_single_replica,
        )

    def _start_query(
        self, stream: DataFrame, checkpoint: Path, batches: Batches, *, once: bool = False
    ) -> StreamingQuery:
        writer = (
            stream.writeStream.queryName(self._pipeline.name)
            .outputMode(self._pipeline.output_mode)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(Pause(self._pipeline.checkpoint, batches.process, self._stop_reason))
        )
        if once:
            return writer.trigger(once=True).start()
        if self._options.until == AVAILABLE:
            return writer.trigger(availableNow=True).start()
        interval = self._options.interval or self._pipeline.checkpoint.trigger_interval
        return writer.trigger(processingTime=interval).start()

    def _wait(self, query: StreamingQuery, run: Run, batches: Batches) -> None:
        """Wait for the query's end; raises what ended it."""
        try:
            while not query.awaitTermination(_WAIT_SECONDS):
                self._measure_state(query)
                if self._lost_lease.is_set():
                    run.check_superseded()
                if self._replay is not None:
                    self._replay.check_moving()
                    if self._replay.needs_restart() and not query.status["isTriggerActive"]:
                        query.stop()
                        return
                reason = self._stop_reason()
                if reason is not None and not query.status["isTriggerActive"]:
                    query.stop()
                    raise StopRequestedError(reason)
            self._measure_state(query)
        except ExactlyOnceError:
            raise
        except Exception as error:
            if batches.failure is not None:
                raise batches.failure from error
            if _LOG_UPDATE_CONFLICT in str(error):
                run.check_superseded()
            raise
        finally:
            if query.isActive:
                self._signal = self._signal or "the query ends"  # no further attempt of the batch
                query.stop()

    def _measure_state(self, query: StreamingQuery) -> None:
        sizes = self._state_sizes.follow(query, self._report.status.batch)
        if sizes is not None:
            self._report.tell(state_sizes=sizes)

    def _on_commit(self, record: CommitRecord, seconds: float, before: bool) -> None:
        self._report.batch_began = None
        replay = self._replay if self._is_replaying() else None
        if replay is not None:
            replay.repeated()
            self._report.tell(replay=replay.report, progressed=time.time())
        if self._savepoints is not None:
            self._savepoints.committed(record)
        if replay is not None:
            return
        self._look_whether_drained(record)
        self._has_reached(record)
        self._report.committed(record, seconds, before=before)

    def _has_reached(self, record: CommitRecord) -> bool:
        self._done = self._done or self._goal.reached(record.commit, record.watermark)
        return self._done is not None

    def _look_whether_drained(self, record: CommitRecord) -> None:
        """See a query that processing time keeps going: with timers by it, Spark plans batches without data for ever.

        A batch without data whose watermark has not moved has no other reason; and all that was available is committed.
        """
        empty = bool(record.source) and all(
            start == end for ranges in record.source.values() for start, end in ranges.values()
        )
        if self._options.until == AVAILABLE and empty and record.watermark == self._watermark:
            self._done = "all that was available is committed"
        self._watermark = record.watermark

    def _repeat(self, name: str, work: Callable[[], None]) -> None:
        while True:
            try:
                work()
            except Exception as error:  # a sign of life must not end with one failure
                log.warning("%s: %s", name, error, extra=driver_log.AWAY if name == "lag" else None)
            if self._ended.wait(HEARTBEAT_SECONDS):
                return

    def _beat(self, run: Run) -> None:
        """Renew lease and status; asks no network, so that it goes on while Kafka does not answer."""
        if run.beat():
            self._lost_lease.clear()
        else:
            self._lost_lease.set()
        self._report.tell(undelivered=self._others.undelivered if self._others else {})

    def _measure_lag(self, run: Run) -> None:
        offsets = run.client.offsets
        self._report.available(
            offsets.last_stable(offsets.partitions(source.topic for source in self._pipeline.sources.values()))
        )

    def _stop_reason(self) -> str | None:
        if self._report.status.state is DriverState.RUNNING:
            self._done = self._done or self._goal.reached(self._report.status.commit, self._report.status.watermark)
        reason = self._done or self._signal or commands.stop_requested(self._options.home, self._options.token)
        return reason or (self._savepoints.stop_reason() if self._savepoints is not None else None)

    def _heed_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _: object) -> None:
        if self._interrupted and number == signal.SIGINT:  # somebody at a terminal has no patience
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._signal, self._interrupted = f"signal {signal.Signals(number).name}", True

    def _stopped(self, run: Run | None) -> int:
        code = self._end(DriverState.STOPPED)
        if run is not None and self._pipeline.checkpoint.on_cancellation is OnCancellation.DELETE:
            path = run.home.checkpoint(run.lineage.id)
            log.info("%s is deleted, as the pipeline says on_cancellation=delete; savepoints stay", path)
            shutil.rmtree(path, ignore_errors=True)
        return code

    def _end(self, state: DriverState) -> int:
        if self._savepoints is not None:
            self._savepoints.close(serve=True)
        self._ended.set()
        self._report.ended(state)
        return 0

    def _failed(self, error: Exception) -> int:
        self._ended.set()
        if self._interrupted and (not isinstance(error, ExactlyOnceError) or error.decision is Decision.REPLAY_BATCH):
            log.info("stopped: %s, in the middle of a batch; the ledger says whether it is committed", self._signal)
            self._report.ended(DriverState.STOPPED)
            return 0
        known = error if isinstance(error, ExactlyOnceError) else None
        if known is None or known.decision is Decision.REPLAY_BATCH:
            known = errors.meaning_of(error) or known
        if known:
            log.error("%s: %s", type(known).__name__, known)
        else:
            log.exception("the driver failed")
        return self._report.failed(error, known)


def sequencer_endpoint(spark: SparkSession) -> settings.SequencerEndpoint:
    """Return where this driver's sequencer listens."""
    return settings.sequencer_endpoint(lambda name: spark.conf.get(name, None), str(spark.sparkContext.master))

"""The driver of a backfill: runs a part of a pipeline's source again, beside the pipeline, and ends.

It has a home, a lineage, a transactional.id and a ledger of its own, so that the pipeline is not touched: it may run,
stop, be upgraded meanwhile. Only one backfill of a pipeline runs at a time. Each batch that is written is committed as
the pipeline's are; a last record, without rows, has the result of the finished backfill. The same request finds that
record, and nothing is run.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import time
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.backfill import progress, results, workspace
from airflow_provider_exactlyonce.backfill.begin import begin
from airflow_provider_exactlyonce.backfill.plan import BackfillStep, PlanInputs, plan
from airflow_provider_exactlyonce.backfill.progress import BackfillProgress
from airflow_provider_exactlyonce.backfill.request import BackfillRequest, Output
from airflow_provider_exactlyonce.backfill.resolve import positions_to_json
from airflow_provider_exactlyonce.backfill.workspace import SavedRequest, StartedBackfill
from airflow_provider_exactlyonce.checkpoint import lineages
from airflow_provider_exactlyonce.checkpoint.layout import Checkpoint, ClaimedCheckpoint
from airflow_provider_exactlyonce.checkpoint.recovery import write_start
from airflow_provider_exactlyonce.checkpoint.savepoints import Savepoints
from airflow_provider_exactlyonce.checkpoint.start_checks import check_topic_ids
from airflow_provider_exactlyonce.control.home import Home, Lineage
from airflow_provider_exactlyonce.control.status import DriverState
from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError, StopRequestedError
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.kafka.topic_partition import by_topic
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.commit_range import RecordedCommits
from airflow_provider_exactlyonce.ledger.reader import LedgerReader, LedgerTail
from airflow_provider_exactlyonce.ledger.records import (
    KAFKA,
    CommitRecord,
    SourceRanges,
    backfill_pipeline,
    ledger_topic,
)
from airflow_provider_exactlyonce.ledger.retention import LedgerRetention
from airflow_provider_exactlyonce.ledger.source_clusters import SourceClusters
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics
from airflow_provider_exactlyonce.policies.termination import AVAILABLE
from airflow_provider_exactlyonce.streaming.analysis import determinism, feedback
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import ExecutedBatch
from airflow_provider_exactlyonce.streaming.analysis.late_rows import LateRowsPolicy
from airflow_provider_exactlyonce.streaming.analysis.logical_plans import check_read_once, check_sources
from airflow_provider_exactlyonce.streaming.analysis.source_mark import sources_of
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt, TransactionOptions
from airflow_provider_exactlyonce.streaming.commit.batch_transaction import BatchTransaction
from airflow_provider_exactlyonce.streaming.commit.exactly_once import TransactionalWriter
from airflow_provider_exactlyonce.streaming.commit.run import Run, RunOptions
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.driver.lifecycle import DriverLifecycle, listen
from airflow_provider_exactlyonce.streaming.driver.options import DriverOptions
from airflow_provider_exactlyonce.streaming.job.kafka_source import KafkaSource
from airflow_provider_exactlyonce.streaming.replay.backfill_batches import BackfillBatches, BackfillOptions
from airflow_provider_exactlyonce.streaming.replay.backfill_steps import BackfillSteps
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_provider_exactlyonce.streaming.job.definition import PipelineDefinition

log = logging.getLogger("exactlyonce")

#: The last record of a backfill is what keeps it from being written twice: none of them ever goes.
_KEEP_ALL: Final = LedgerRetention(commits=10**12)


class BackfillDriver:
    """Runs one backfill; :meth:`run` is called once."""

    def __init__(self, pipeline: PipelineDefinition, options: DriverOptions) -> None:
        self._pipeline: Final = pipeline
        self._options: Final = options
        options_until_done = replace(options, until=AVAILABLE)
        self._lifecycle: Final = DriverLifecycle(pipeline, options_until_done, backfill_pipeline(pipeline.name))
        self._source_ids: dict[str, str] = {}

    def run(self) -> int:
        """Run to the end; returns the process's exit code."""
        return self._lifecycle.run(self._drive)  # once stopped, its checkpoint stays: it goes on from there

    def _drive(self) -> None:
        if self._asked.pipeline != self._pipeline.name:
            raise RefusedError(
                f"the job declares pipeline {self._pipeline.name}, and the backfill is of {self._asked.pipeline}"
            )
        sink_topics = self._sink_topics()  # what a backfill can't serve is refused before anything is begun
        home = self._options.home
        with workspace.turn(home, self._check_stop) as sure:
            self._lifecycle.report.own(alone=True)  # who has the turn
            self._lifecycle.report.tell()
            config = self._options.config
            clusters = SourceClusters(config, self._pipeline.source_connections)
            self._pipeline.topics_read(clusters)
            start = begin(home, config, self._pipeline.version, clusters, self._source_topics, sure)
            result = self._run_again(*start, sink_topics) if isinstance(start, tuple) else start
            workspace.write_result(home, result)
            workspace.forget(home, sure)

    def _run_again(
        self, begun: StartedBackfill, done: BackfillProgress | None, sink_topics: list[str]
    ) -> Mapping[str, Any]:
        run = self._lifecycle.open_run(
            RunOptions(
                config=self._options.config,
                token=self._options.token,
                version=begun.version,
                transaction_timeout_milliseconds=self._pipeline.transaction_timeout_seconds * 1000,
                accept_home=True,  # they have one identity in common, and a directory each
                allow_single_replica=self._options.allow_single_replica,
                ledger_retention=_KEEP_ALL,
                backfill=begun.name,
                plan=begun.resolved.to_json(),
                source_connections=self._pipeline.source_connections,
            ),
        )
        topics = self._lifecycle.check_topics(run, sink_topics)
        self._check_sources(run, topics)
        steps = self._plan_steps(begun)
        spark = self._lifecycle.open_session()
        with listen(spark) as listener:
            return self._execute(spark, run, listener, topics, begun, steps, done)

    def _check_sources(self, run: Run, topics: Mapping[str, TopicFacts]) -> None:
        """Check that the sources are those that the pipeline has read.

        :param topics: of the pipeline's cluster
        """
        with LedgerReader(self._options.config, self._asked.pipeline) as reader:
            tail = reader.tail()
        run.sources.check(tail, self._source_topics)
        other_cluster_topics = self._lifecycle.check_topics_elsewhere(run)
        self._source_ids = {name: topic.topic_id for name, topic in {**topics, **other_cluster_topics}.items()}
        on_cluster = {name: topic.topic_id for name, topic in topics.items()}
        check_topic_ids(on_cluster, tail, {name: self._source_ids[name] for name in other_cluster_topics})
        own_cluster_topics = run.sources.here(other_cluster_topics)
        feedback.check_topics(
            self._pipeline.name, self._sink.topics, own_cluster_topics, allowed=self._pipeline.allow_feedback
        )

    def _plan_steps(self, begun: StartedBackfill) -> list[BackfillStep]:
        request = self._asked.request
        limits = [
            (source.topics, source.max_offsets_per_trigger)
            for source in self._pipeline.sources.values()
            if isinstance(source, KafkaSource) and source.max_offsets_per_trigger
        ]
        terms = PlanInputs(state=request.state, kind=request.kind, version=begun.version, limits=limits)
        with LedgerReader(self._options.config, self._asked.pipeline) as reader:
            if reader.tail() is None:
                return plan(begun.resolved, terms, ())
            return plan(begun.resolved, terms, reader.commits(begun.resolved.base_commit + 1))

    def _execute(
        self,
        spark: SparkSession,
        run: Run,
        listener: SequencerListener,
        topics: Mapping[str, TopicFacts],
        begun: StartedBackfill,
        steps: list[BackfillStep],
        done: BackfillProgress | None,
    ) -> Mapping[str, Any]:
        config = self._options.config
        result = self._lifecycle.result(spark)
        check_sources(result)
        check_read_once(result)
        self._check_deterministic(steps, determinism.find(result))
        order = sources_of(result)
        declared = self._pipeline.kafka_sink("a backfill")
        if self._asked.request.topic and declared.topic_column:
            result = result.drop(declared.topic_column)

        def bad_source_records(ranges: SourceRanges) -> DataFrame | None:
            return self._pipeline.bad_source_records(spark, config, self._sink.bad_topic, ranges)

        options = TransactionOptions(
            definition=self._sink,
            bad_source_records=bad_source_records if self._sink.diverts else None,
            allow_feedback=self._pipeline.allow_feedback,
            mark=begun.name if self._asked.request.kind is Output.REEMIT else None,
            executed=lambda batch: ExecutedBatch(spark, batch.lineage),
            late=self._late_policy,
        )
        targets = {topic: topics[topic] for topic in self._sink_topics()}
        attempt = BatchAttempt(run, options, targets, listener)
        stop = self._lifecycle.stop
        sink = BatchTransaction(attempt, TransactionalWriter(attempt), lambda: stop.reason() is not None)
        stream = sink.prepare(result)
        with LedgerReader(config, run.pipeline) as reader:
            lineage, done = self._lineage(begun, order, done, reader.tail())
        self._lifecycle.start_run(run, spark, SinkGroup(run.pipeline, {}))
        workspace.note_ledger(run.home, run.tail)
        written = self._written(begun, topics)
        if written.result is not None:
            return written.result
        last = max((step.commit or 0 for step in steps), default=0)
        backfill_steps = BackfillSteps(
            spark,
            ClaimedCheckpoint(run.home.checkpoint(lineage.id), run.check_superseded),
            steps,
            commits=RecordedCommits(LedgerReader(config, self._asked.pipeline), begun.resolved.base_commit + 1, last)
            if last
            else None,
            sources=order,
            done=done,
            written=written.batches if self._writes else None,
        )
        with contextlib.closing(backfill_steps):
            self._lifecycle.report.tell(state=DriverState.RUNNING, progressed=time.time())
            self._run_steps(run, stream, sink, backfill_steps)
            return self._complete(run, begun, backfill_steps)

    @functools.cached_property
    def _asked(self) -> SavedRequest:
        return workspace.asked_of(self._options.home)

    @functools.cached_property
    def _sink(self) -> KafkaSink:
        return _sink(self._pipeline, self._asked.request)

    @functools.cached_property
    def _late_policy(self) -> LateRowsPolicy:
        return _late_rows_policy(self._pipeline, self._sink)

    @property
    def _source_topics(self) -> list[SourceTopics]:
        return [source.topics for source in self._pipeline.sources.values()]

    @property
    def _writes(self) -> bool:
        return self._asked.request.kind is not Output.COMPARE

    def _written(self, begun: StartedBackfill, topics: Mapping[str, TopicFacts]) -> results.BackfillWritten:
        """Return the written batches, now that the claim keeps others from writing more.

        :raises RefusedError: when one of their topics was recreated since
        :raises ExactlyOnceError: when a request in other words has begun meanwhile
        """
        written = results.written_of(self._options.config, self._asked.pipeline, begun.name)
        if written.begun is not None and not begun.resolved.writes_the_same(written.begun):
            raise ExactlyOnceError(
                f"backfill {begun.name} was begun elsewhere meanwhile, as another range of the source. Start it again"
            )
        for record in written.batches:
            pairs = [(topic, id, self._source_ids.get(topic)) for topic, id in record.source_topic_ids.items()]
            sinks = record.sink_topic_ids.items()
            pairs += [(topic, id, topics[topic].topic_id) for topic, id in sinks if topic in topics]
            for topic, recorded_id, current_id in pairs:
                if current_id not in (None, recorded_id):
                    raise RefusedError(
                        f"topic {topic} was recreated since backfill {begun.name} has written {len(written.batches)} "
                        "batches: what it held is gone. Ask for another topic, or for what is missing by its offsets"
                    )
        return written

    def _run_steps(self, run: Run, stream: DataFrame, sink: BatchTransaction, steps: BackfillSteps) -> None:
        checkpoint = Checkpoint(run.home.checkpoint(run.lineage.id))
        batches = BackfillBatches(
            run,
            sink,
            steps,
            checkpoint,
            BackfillOptions(
                writes=self._writes,
                accept_nondeterminism=self._options.accept_nondeterminism,
                max_batch_attempts=self._pipeline.max_batch_attempts,
                stop_reason=self._lifecycle.stop.reason,
                committed=self._report_batch,
                progressed=lambda: self._lifecycle.report.tell(progressed=time.time()),
            ),
        )
        self._lifecycle.runner(run, stream, batches.process).run_recorded(steps)

    def _complete(self, run: Run, begun: StartedBackfill, steps: BackfillSteps) -> Mapping[str, Any]:
        """Write the record that ends the backfill; returns the result."""
        done = steps.done
        result = results.describe(
            self._asked.pipeline,
            self._asked.request,
            begun,
            steps.written,  # the ledger's last one may be hidden still, behind its transaction's markers
            suppressed=steps.suppressed,
            compared=steps.compared,
            differences=list(done.differences.values()),
            diverged=list(done.diverged.values()),
        )
        before = run.tail.place
        run.session.begin()
        now = int(time.time() * 1000)
        record = CommitRecord(
            pipeline=run.pipeline,
            commit=before.commit + 1,
            lineage=run.lineage.id,
            batch=done.batch + 1,
            run=run.number,
            version=begun.version,
            source=by_topic({partition: (end, end) for partition, end in sorted(begun.resolved.ends.items())}),
            source_topic_ids={},
            sink={},
            offsets="",
            watermark=0,
            batch_timestamp=now,
            rows=0,
            digest=0,
            producer_id=run.session.producer.id,
            epoch=run.session.producer.epoch,
            started=now,
            committed=now,
            before=before,
            backfill=begun.name,
            result=result,
            late_total=run.tail.commit.late_total if run.tail.commit is not None else 0,
        )
        offset = run.session.write(ledger_topic(run.pipeline), 0, record.key, records.encode(record))
        run.session.commit(lambda: self._lifecycle.stop.reason() is not None)
        run.committed(record, offset)
        workspace.note_ledger(run.home, run.tail)
        failpoints.reach("backfill-done")
        log.info("backfill %s is done: %s", begun.name, json.dumps(result))
        return result

    def _lineage(
        self, begun: StartedBackfill, order: list[SourceTopics], done: BackfillProgress | None, tail: LedgerTail | None
    ) -> tuple[Lineage, BackfillProgress]:
        """Make the backfill's lineage, or find it, and advance it past other backfills' commits since."""
        home = self._options.home
        lineage = home.current() if done is not None else None
        if lineage is None or done is None:
            lineages.remove_unfinished(home.lineages, None)  # it is this backfill's turn
            lineage = self._new_lineage(begun, order)
            done = BackfillProgress(base=lineage.base_batch)
            progress.write(Checkpoint(home.checkpoint(lineage.id)), done)
            home.use(lineage.id)
            failpoints.reach("backfill-prepared")
        claim = tail.claim if tail is not None else None
        lineage = replace(
            lineage,
            cluster_id=tail.cluster_id if tail is not None else None,
            ledger_topic_id=tail.topic_id if tail is not None else None,
            last_commit=tail.place.commit if tail is not None else 0,
            parent_run=claim.run if claim is not None else 0,
            parent_commit=tail.place.commit if tail is not None else 0,
        )
        home.remember(lineage)
        return lineage, done

    def _new_lineage(self, begun: StartedBackfill, order: list[SourceTopics]) -> Lineage:
        home, resolved = self._options.home, begun.resolved
        if resolved.savepoint is None:
            lineage = Lineage(id=str(uuid.uuid4()))
            checkpoint = home.checkpoint(lineage.id)
            home.begin_checkpoint(lineage)
            begins = positions_to_json(resolved.begins)
            for number, topics in enumerate(order):
                write_start(checkpoint / "sources" / str(number), json.dumps(topics.share(begins)))
            home.remember(lineage)
            return lineage
        savepoints = Savepoints(Home(self._asked.home).savepoints)
        savepoint = savepoints.get(resolved.savepoint)
        lineage = Lineage(id=str(uuid.uuid4()), base_batch=savepoint.batch, savepoint=savepoint.id)
        source = savepoints.checkpoint(savepoint.id).path
        lineages.make(home.lineages / lineage.id, source, savepoint.files, lineage)
        return lineage

    def _sink_topics(self) -> list[str]:
        return [*self._sink.topics, *([self._late_policy.topic] if self._late_policy.topic is not None else [])]

    def _report_batch(self, record: CommitRecord) -> None:
        status = self._lifecycle.report.status
        rows = status.rows + record.rows
        self._lifecycle.report.tell(
            commit=record.commit,
            committed=record.committed / 1000,
            batch=record.batch,
            commits_of_run=status.commits_of_run + 1,
            rows=rows,
            rows_by_sink={KAFKA: rows},
            records=status.records + (record.records or 0),
            late_rows=status.late_rows + (record.late_rows or 0),
            late_total=record.late_total,
            watermark=record.watermark,
        )

    def _check_stop(self) -> None:
        reason = self._lifecycle.stop.reason()
        if reason is not None:
            raise StopRequestedError(reason)

    def _check_deterministic(self, steps: list[BackfillStep], unsure: list[str]) -> None:
        exact = [step.commit for step in steps if step.exact]
        if exact and unsure and not self._options.accept_nondeterminism:
            raise RefusedError(
                f"commits {exact[0]} to {exact[-1]} of pipeline {self._pipeline.name} have to be run again, and the "
                f"job may give other rows each time: {'; '.join(unsure)}. Make it deterministic, or accept that state "
                "and output may differ: --accept-nondeterminism"
            )


def _sink(pipeline: PipelineDefinition, request: BackfillRequest) -> KafkaSink:
    """Return where the rows go; offsets of a consumer group follow the pipeline's alone.

    :raises RefusedError: when the pipeline has sinks that a backfill can't serve
    """
    if others := [share.sink.name for share in pipeline.routes.others]:
        raise RefusedError(
            f"pipeline {pipeline.name} has the sink {others[0]}, and a backfill writes to Kafka only: run it with a "
            "version of the job that has only a KafkaSink"
        )
    sink = pipeline.kafka_sink("a backfill")
    if request.topic is None:
        return replace(sink, offsets_group=None)
    if request.topic in sink.topics:
        raise RefusedError(
            f"{request.topic} is a topic of the pipeline's own sink, and nobody could tell the backfill's rows apart "
            "there: ask for output 'reemit', which marks them"
        )
    backfill_sink = replace(sink, offsets_group=None, topic=request.topic, topic_column=None, bad_records_topic=None)
    same_cluster_topics = [source.topics for source in pipeline.sources.values() if source.conn_id is None]
    read_topics = {topic for topic in backfill_sink.topics if any(topic in topics for topics in same_cluster_topics)}
    feedback.check_topics(pipeline.name, backfill_sink.topics, read_topics, allowed=pipeline.allow_feedback)
    return backfill_sink


def _late_rows_policy(pipeline: PipelineDefinition, sink: KafkaSink) -> LateRowsPolicy:
    """Return the policy for late rows; their topic, if any, is that beside the backfill's own topic."""
    declared = pipeline.late_rows
    if declared.topic is None or sink.topic == pipeline.kafka_sink("a backfill").topic:
        return declared
    return replace(declared, topic=f"{sink.topic}.late")

"""One Kafka transaction per micro-batch, after the commits of the other sinks."""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    DivergedError,
    ExactlyOnceError,
    RefusedError,
    invariant,
)
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.compression import Compression
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.records import KAFKA, CommitRecord, OtherSink, SinkRange, SourceRanges
from airflow_provider_exactlyonce.ledger.topic_identity import check_sinks, check_sources, known_sources
from airflow_provider_exactlyonce.streaming.analysis import feedback, late_rows, logical_plans
from airflow_provider_exactlyonce.streaming.analysis.executed_batch import BatchCounts, ExecutedBatch
from airflow_provider_exactlyonce.streaming.analysis.late_rows import COUNT_LATE_ROWS, LateRowsPolicy
from airflow_provider_exactlyonce.streaming.commit.arrow_batching import BatchSizer, BatchStats
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_sink import TransactionalSink
from airflow_provider_exactlyonce.streaming.commit.run import Run
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup, different
from airflow_provider_exactlyonce.streaming.commit.written_topics import WrittenTopics
from airflow_provider_exactlyonce.streaming.sequencer.client import Address
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, TopicPartition, Written
from airflow_provider_exactlyonce.streaming.sequencer.listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
from airflow_provider_exactlyonce.streaming.sinks.kafka.sink import KafkaSink
from airflow_provider_exactlyonce.streaming.sinks.shares import Shares
from airflow_provider_exactlyonce.streaming.sinks.spi import Share
from airflow_provider_exactlyonce.streaming.spark import errors, typed_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_provider_exactlyonce.streaming.commit import write_stage

_GRANT_TIMEOUT_SECONDS: Final = 150.0  # a grant spans two requests, each of which may be repeated for a minute
_WRITING_SHARE: Final = 0.9  # of the transaction's time; the rest is for pre-commit and commit

#: {topic-partition: (rows, digest)} of one task
_Answer = dict[TopicPartition, tuple[int, int]]


@dataclass(frozen=True, kw_only=True)
class Sums:
    """What a batch attempt has written to Kafka.

    :param rows: records, bad ones left out
    :param digest: sum modulo 2**64 of their xxhash64
    :param bad: records in the topic for bad ones
    """

    rows: int
    digest: int
    bad: int


class BatchTransaction(TransactionalSink):
    """The sinks of a running query, and their commit: one Kafka transaction with the records and the ledger's record.

    Other sinks commit before it, see :mod:`airflow_provider_exactlyonce.streaming.sinks.spi`.

    :param definition: what the user declared, None when no sink is Kafka
    :param run: the driver's hold on the pipeline
    :param targets: the topics that the definition names, as the cluster has them
    :param listener: where the tasks' sequencer listens
    :param stop_requested: tells that a commit without an answer should not be waited for any longer
    :param bad_source_records: makes, of a batch's source ranges, the frame of the records that do not fit their schema,
        in the columns of :func:`airflow_provider_exactlyonce.streaming.sinks.kafka.columns.encode`
    :param mark: the backfill that every record is marked with, None for records without a mark
    :param shares: the Kafka sink's share and those of the others, None when Kafka gets the whole result alone
    :param others: the sinks that are not Kafka, None for none
    :param allow_feedback: rows may go to a topic that the batch has read
    :param executed: looks at the plan of the batch at hand, before it runs; None leaves unknown what was late
    :param late: what becomes of rows behind the watermark
    :raises RefusedError: when the consumer group for the offsets has members
    """

    def __init__(
        self,
        definition: KafkaSink | None,
        run: Run,
        *,
        targets: Mapping[str, TopicFacts],
        listener: SequencerListener,
        stop_requested: Callable[[], bool],
        bad_source_records: Callable[[SourceRanges], DataFrame | None] | None = None,
        mark: str | None = None,
        shares: Shares | None = None,
        others: SinkGroup | None = None,
        allow_feedback: bool = False,
        executed: Callable[[Batch], ExecutedBatch] | None = None,
        late: LateRowsPolicy = COUNT_LATE_ROWS,
    ) -> None:
        self._definition: Final = definition
        self._shares: Final = shares or Shares(kafka=Share(definition), others=())
        self._others: Final = others or SinkGroup(run.pipeline, {})
        self._run: Final = run
        self._listener: Final = listener
        self._stop_requested: Final = stop_requested
        self._bad_source_records: Final = bad_source_records
        self._mark: Final = mark
        self._allow_feedback: Final = allow_feedback
        self._executed: Final = executed
        self._late_rows: Final = late
        self._arrow_rows: Final = BatchSizer()
        self._targets = dict(targets)
        self._written_topics: Final = WrittenTopics(run, definition, late.topic)
        self._batch: Batch | None = None
        self._sink: dict[str, dict[int, SinkRange]] = {}
        self._plan: ExecutedBatch | None = None
        self._counts: BatchCounts | None = None
        self._pre_committed: tuple[CommitRecord, int] | None = None
        if definition is not None and definition.offsets_group is not None:
            user = run.options.config.get("sasl.username")
            preflight.check_group(run.client, definition.offsets_group, user=user)

    @property
    @override
    def time_limit_seconds(self) -> float:
        return self._run.options.transaction_timeout_milliseconds / 1000 * _WRITING_SHARE

    @override
    def prepare(self, result: DataFrame) -> DataFrame:
        from airflow_provider_exactlyonce.streaming.commit import write_stage

        self._arrow_rows.plan(result.sparkSession, runs_python=logical_plans.runs_python(result))
        rows, tasks = self._shares.of(result), self._others.tasks()
        if self._definition is None:
            return write_stage.write_stage(rows, None, tasks)
        topic = self._definition.topic
        limit = self._targets[topic].batch_bytes_maximum if topic is not None else None
        records = columns.encode(self._definition, rows, batch_bytes_maximum=limit, carried=self._shares.carried)
        if self._mark is not None:
            records = columns.marked(records, self._mark)
        return write_stage.write_stage(records, self._writer_settings(self._definition), tasks)

    @override
    def begin(self, batch: Batch) -> None:
        failpoints.note(batch=batch.number)
        self._batch, self._sink, self._pre_committed = batch, {}, None
        self._plan = self._counts = None
        try:
            self._run.session.begin()
        except UnansweredError as error:
            raise BatchFailedError(f"the batch could not be begun: {error}") from error
        failpoints.reach("after-begin")

    @override
    def committed(self, batch: Batch) -> CommitRecord | None:
        newest = self._run.tail.place.commit
        commit = self._run.lineage.commit_of(batch.number)
        if commit > newest:
            check_sources(batch.source_topic_ids, known_sources(self._run.newest_own))
            return None
        record = batch.recorded or (self._run.tail.commit if commit == newest else None)
        if record is None:
            raise RefusedError(
                f"Spark runs batch {batch.number} of lineage {batch.lineage}, which is commit {commit}, and the ledger "
                f"is at commit {newest}: the checkpoint was rolled back"
            )
        if not batch.offsets.same_sources(parse_offsets(record.offsets)):
            raise RefusedError(
                f"batch {batch.number} of lineage {batch.lineage} is committed (commit {record.commit}) up to the "
                f"source offsets {parse_offsets(record.offsets).kafka_ends()}, and Spark would run it up to "
                f"{batch.offsets.kafka_ends()}: the checkpoint was rolled back or changed. Skipping the batch would "
                "lose data"
            )
        check_sources(batch.source_topic_ids, known_sources(record))
        return record

    @override
    def rebuild(self, frame: DataFrame, record: CommitRecord, diverged: Callable[[DivergedError], None]) -> None:
        self._others.begin(self._open_batch(), record.commit)
        self._look_at_plan()
        with self._others.told_to_tasks(frame):
            rows, digest = self.recompute(frame)
        self._count(frame)
        found = {KAFKA: OtherSink(rows=rows, digest=digest), **self._others.sums}
        known = {KAFKA: OtherSink(rows=record.rows, digest=record.digest), **record.others}
        for name, recorded in known.items():
            if name in found and found[name] != recorded:
                text = different(f"the ledger has {name}'s share of", record.commit, recorded, found[name])
                diverged(DivergedError(f"{text}: its state would not fit its output"))
        if record.late is not None and self._counts is not None and record.late != self._counts.late:
            was, now = (late_rows.shown(late) or "none" for late in (record.late, self._counts.late))
            diverged(
                DivergedError(
                    f"commit {record.commit} left out rows behind the watermark: {was}; run again it leaves out: "
                    f"{now}. Its state would not fit its output"
                )
            )
        self._others.pre_commit()
        self._others.commit()
        self._others.settled(record)

    @override
    def write(self, frame: DataFrame) -> None:
        tag = f"exactlyonce-{uuid.uuid4()}"
        self._others.begin(self._open_batch(), self._run.tail.place.commit + 1)
        self._look_at_plan()
        with self._others.told_to_tasks(frame):
            if self._definition is None:
                self._write_to_others(frame, tag)
            else:
                self._write_to_all(frame, tag)
        self._others.check_known()

    def _write_to_all(self, frame: DataFrame, tag: str) -> None:
        with SequencerServer(
            self._listener,
            grant_timeout_seconds=_GRANT_TIMEOUT_SECONDS,
            attempt_timeout_seconds=self.time_limit_seconds,
            on_failure=lambda: self._cancel_tasks(frame, tag),
        ) as server:
            answers = self._run_tasks(frame, server, tag)
            try:
                written = server.result(len(answers))
            except AttemptFailedError as error:
                raise BatchFailedError(str(error)) from error
        self._sink = _agreed(written, answers)
        self._check_late_topic()

    def _check_late_topic(self) -> None:
        """Check that as many late rows were written as were left out.

        :raises BatchFailedError: when they are others
        """
        if self._late_rows.topic is None or self._counts is None:
            return
        rows = sum(of.rows for of in self._sink.get(self._late_rows.topic, {}).values())
        if rows != self._counts.late_rows:
            raise BatchFailedError(
                f"{self._counts.late_rows:,} rows behind the watermark were left out, and {rows:,} of them were found "
                f"for {self._late_rows.topic}: the job does not give the same rows for the same input"
            )

    def _write_to_others(self, frame: DataFrame, tag: str) -> None:
        limit = threading.Timer(self.time_limit_seconds, self._cancel_tasks, (frame, tag))
        limit.start()
        try:
            self._run_job(frame, tag)
            self._count(frame, tag)
        finally:
            limit.cancel()
        self._judge_late_rows()

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        batch, run = self._open_batch(), self._run
        self._check_topics()
        self._others.pre_commit()
        before, expired = run.tail.place, run.expired()
        written, counts, others = self._sums(), self._counts, self._others.sums
        topic_ids = self._topic_ids_written(written)
        newest = run.tail.commit
        record = CommitRecord(
            pipeline=run.pipeline,
            commit=before.commit + 1,
            lineage=batch.lineage,
            batch=batch.number,
            run=run.number,
            version=run.options.version,
            source=batch.source,
            source_topic_ids=batch.source_topic_ids,
            sink=self._sink,
            sink_topic_ids=topic_ids,
            earlier_sink_topics=self._written_topics.earlier(topic_ids),
            former_sink_topics=self._written_topics.former(topic_ids),
            sink_topics_since=self._written_topics.told_since(before.commit + 1),
            offsets=batch.offsets.text,
            watermark=batch.offsets.watermark,
            batch_timestamp=batch.offsets.timestamp,
            rows=written.rows,
            digest=written.digest,
            bad_records=written.bad,
            producer_id=run.session.producer.id,
            epoch=run.session.producer.epoch,
            started=started_milliseconds,
            committed=int(time.time() * 1000),
            before=replace(before, oldest=expired.oldest),
            others=others,
            reemits_from=run.lineage.reemits if batch.number == run.lineage.base_batch + 1 else None,
            backfill=run.options.backfill,
            guarantee=run.guarantee,
            primary=next(iter(others), KAFKA) if self._definition is None else KAFKA,
            records=counts.records if counts else None,
            late=counts.late if counts else None,
            late_total=(newest.late_total if newest else 0) + (counts.late_rows if counts else 0),
            late_topic=self._late_rows.topic,
        )
        group = self._definition.offsets_group if self._definition else None
        if group is not None and batch.source:
            ends = {(topic, number): end for topic, of in batch.source.items() for number, (_, end) in of.items()}
            run.session.write_offsets(group, ends, f"commit {record.commit}")
        ledger = records.ledger_topic(run.pipeline)
        offset = run.session.write(ledger, 0, record.key, records.encode(record), tombstones=expired.keys)
        self._pre_committed = record, offset
        failpoints.reach("after-pre-commit")
        return record

    @override
    def commit(self) -> None:
        invariant(self._pre_committed is not None, "commit follows pre-commit")
        record, offset = self._pre_committed  # type: ignore[misc]
        try:
            self._others.commit()
        except CommitUnknownError:
            raise
        except ExactlyOnceError:
            self.abort()  # no commit was sent to Kafka yet
            raise
        self._run.session.commit(self._stop_requested)
        self._run.committed(record, offset)
        self._others.settled(record)

    @override
    def abort(self) -> None:
        self._others.abort()
        self._run.session.abort()

    @override
    def recover(self) -> None:
        self._run.reclaim(self._stop_requested)
        at_hand = self._run.lineage.commit_of(self._open_batch().number)  # a replay may be far behind the ledger
        self._others.claim(self._run.number, self._run.tail.commit, at_hand)

    def _check_topics(self) -> None:
        """Check that all topics are those that the attempt began with; later attempts see added partitions.

        Topics that rows have named in earlier batches only are forgotten: they may be gone by now.
        """
        read = self._open_batch().source
        feedback.check_topics(self._run.pipeline, self._sink, read, allowed=self._allow_feedback)
        declared = (*(self._definition.topics if self._definition else ()), self._late_rows.topic)
        named = {*declared, *self._sink}
        self._targets = {topic: target for topic, target in self._targets.items() if topic in named}
        known = {topic: target.topic_id for topic, target in self._targets.items()}
        partitions = preflight.check_topic_ids(self._run.client, {**self._open_batch().source_topic_ids, **known})
        for topic, target in self._targets.items():
            self._targets[topic] = replace(target, partitions=partitions[topic])
        if new := self._sink.keys() - known.keys():
            allowed = self._run.options.allow_single_replica
            self._targets |= preflight.check_topics(self._run.client, sinks=new, allow_single_replica=allowed)
        check_sinks({topic: target.topic_id for topic, target in self._targets.items()}, self._written_topics.known)

    def _topic_ids_written(self, written: Sums) -> dict[str, str]:
        """Return {topic: id} of those that the attempt has written to."""
        return {topic: self._targets[topic].topic_id for topic in self._sink}

    def _sums(self) -> Sums:
        """Return what was written in the attempt."""
        aside = {self._late_rows.topic, self._definition.bad_topic if self._definition else None}
        good = [of for topic, ranges in self._sink.items() if topic not in aside for of in ranges.values()]
        bad = [of for topic, ranges in self._sink.items() if self._is_bad(topic) for of in ranges.values()]
        digest = sum(of.digest for of in good) % 2**64
        return Sums(rows=sum(of.rows for of in good), digest=digest, bad=sum(of.rows for of in bad))

    def _is_bad(self, topic: str) -> bool:
        return self._definition is not None and topic == self._definition.bad_topic

    def _open_batch(self) -> Batch:
        invariant(self._batch is not None, "a batch attempt is open")
        return self._batch  # type: ignore[return-value]

    def _write_task(self, address: Address) -> write_stage.WriteTask:
        """Return what the tasks of this batch attempt need to know."""
        from airflow_provider_exactlyonce.streaming.commit import write_stage

        invariant(self._definition is not None, "there is a Kafka sink")
        return write_stage.WriteTask(
            settings=self._writer_settings(self._definition),  # type: ignore[arg-type]
            sequencer=address,
            producer=self._run.session.producer,
            targets=self._targets,
        )

    def _writer_settings(self, definition: KafkaSink) -> write_stage.WriterSettings:
        from airflow_provider_exactlyonce.streaming.commit import write_stage

        return write_stage.WriterSettings(
            config=self._run.options.config,
            sequencer_key=self._listener.key,
            transactional_id=self._run.session.transactional_id,
            topic=definition.topic,
            compression=Compression(definition.compression, definition.compression_level),
        )

    def _judge_late_rows(self) -> None:
        if self._counts is not None:
            self._late_rows.judge(self._counts.late)

    # What follows is all that needs Spark.

    def _look_at_plan(self) -> None:
        """Look at the batch's plan before it runs, so that what this attempt counts is known from what others have."""
        self._plan = None if self._executed is None else self._executed(self._open_batch())

    def _count(self, frame: DataFrame, tag: str | None = None) -> None:
        """Count what the attempt has read and left out, once its job has ended.

        :param tag: of the attempt's jobs
        :raises BatchFailedError: when it can't be: what is not known must not be taken for nothing
        """
        if self._plan is None:
            return
        context = frame.sparkSession.sparkContext
        if tag is not None:
            context.addJobTag(tag)
        try:
            self._counts = self._plan.counts()
        except Exception as error:
            raise BatchFailedError(f"the rows behind the watermark could not be counted: {error}") from error
        finally:
            if tag is not None:
                context.removeJobTag(tag)
        offsets = sum(end - start for of in self._open_batch().source.values() for start, end in of.values())
        if (self._counts.records or 0) > offsets:
            raise BatchFailedError(
                f"{self._counts.records:,} records were read of {offsets:,} offsets: Spark has run tasks of the batch "
                "twice, so that what it counts is not to be trusted"
            )

    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        """Run the plan without writing to Kafka; returns rows and digest of its share."""
        answers = self._run_job(frame, f"exactlyonce-{uuid.uuid4()}")
        sums = [of for answer in answers for place, of in answer.items() if not self._is_bad(place.topic)]
        return sum(rows for rows, _ in sums), sum(digest for _, digest in sums) % 2**64

    def _cancel_tasks(self, frame: DataFrame, tag: str) -> None:
        frame.sparkSession.sparkContext.cancelJobsWithTag(tag)

    def _run_tasks(self, frame: DataFrame, server: SequencerServer, tag: str) -> list[_Answer]:
        """Run the stage that writes; returns the answer of each task."""
        from airflow_provider_exactlyonce.streaming.commit import write_stage

        def told(task: write_stage.WriteTask) -> str:
            return write_stage.describe(task, server.attempt)

        task = self._write_task(server.address)
        answers = self._run_job(frame, tag, told(task), lambda: server.failure)
        self._count(frame, tag)
        self._judge_late_rows()
        for aside in self._set_aside():
            stage = write_stage.write_stage(aside, task.settings)
            more = told(replace(task, first_task=len(answers)))
            answers += self._run_job(stage, tag, more, lambda: server.failure)
        return answers

    def _set_aside(self) -> Iterator[DataFrame]:
        """Yield the batch's records that go to other topics than its result: bad ones, and late rows."""
        bad = self._bad_source_records(self._open_batch().source) if self._bad_source_records else None
        if bad is not None:
            yield bad
        if self._late_rows.topic is not None and self._plan is not None and self._counts is not None:
            for late in self._counts.late:
                yield late_rows.as_records(self._plan.late_rows(late), late, self._late_rows.topic)

    def _run_job(
        self, stage: DataFrame, tag: str, attempt: str | None = None, reason: Callable[[], str | None] = lambda: None
    ) -> list[_Answer]:
        """Run a stage's tasks once.

        :param attempt: what they are told of the batch attempt in Kafka, None to write nothing there
        :param reason: why they were cancelled, None when they were not
        """
        from airflow_provider_exactlyonce.streaming.commit import write_stage

        context = stage.sparkSession.sparkContext
        context.addJobTag(tag)
        self._arrow_rows.apply(stage.sparkSession)
        context.setLocalProperty(write_stage.ATTEMPT_PROPERTY, attempt)  # type: ignore[arg-type]  # null removes it
        try:
            told = [json.loads(row["written"]) for row in stage.collect()]
        except Exception as error:
            self._arrow_rows.distrust()
            known = typed_errors.find(f"{reason()}\n{error}")
            if known is not None:
                raise known from error
            why, raised = reason(), errors.raised_in_worker(str(error))
            if why is not None and raised is not None and raised not in why:
                why = f"{raised}. The task that writes says: {why}"
            raise BatchFailedError(why or f"the batch's Spark job failed: {error}") from error
        finally:
            context.setLocalProperty(write_stage.ATTEMPT_PROPERTY, None)  # type: ignore[arg-type]
            context.removeJobTag(tag)
        self._arrow_rows.saw(BatchStats(*one["drawn"]) for one in told)
        if shares := [one["shares"] for one in told if one["shares"]]:
            self._others.answered(shares)
        return [
            {TopicPartition(topic, place): (rows, digest) for topic, place, rows, digest in one["kafka"]}
            for one in told
        ]


def _agreed(written: Mapping[TopicPartition, Written], answers: list[_Answer]) -> dict[str, dict[int, SinkRange]]:
    """Join what the sequencer has seen with what the tasks say, and compare them."""
    rows: dict[TopicPartition, int] = {}
    digests: dict[TopicPartition, int] = {}
    for answer in answers:
        for place, (count, digest) in answer.items():
            rows[place] = rows.get(place, 0) + count
            digests[place] = (digests.get(place, 0) + digest) % 2**64
    granted = {place: of.rows for place, of in written.items()}
    if rows != granted:
        raise BatchFailedError(f"the tasks say that they wrote {rows} rows per partition, the sequencer saw {granted}")
    sink: dict[str, dict[int, SinkRange]] = {}
    for place, of in sorted(written.items()):
        found = SinkRange(first=of.first, last=of.last, rows=of.rows, digest=digests[place])
        sink.setdefault(place.topic, {})[place.partition] = found
    return sink

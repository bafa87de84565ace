"""One Kafka transaction per micro-batch, after the commits of the other sinks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    DivergedError,
    ExactlyOnceError,
    FencedError,
    RefusedError,
    required,
)
from airflow_provider_exactlyonce.kafka import preflight
from airflow_provider_exactlyonce.kafka.topic_partition import by_partition
from airflow_provider_exactlyonce.kafka.transaction import ProducerLostError
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.records import KAFKA, CommitRecord, OtherSink
from airflow_provider_exactlyonce.ledger.topic_identity import check_sinks, check_sources, known_sources
from airflow_provider_exactlyonce.streaming.analysis import feedback, late_rows
from airflow_provider_exactlyonce.streaming.commit.batch import Batch
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt
from airflow_provider_exactlyonce.streaming.commit.batch_sink import TransactionalSink
from airflow_provider_exactlyonce.streaming.commit.batch_writer import BatchWriter
from airflow_provider_exactlyonce.streaming.commit.sink_group import different
from airflow_provider_exactlyonce.streaming.commit.written_topics import WrittenTopics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class BatchTransaction(TransactionalSink):
    """The sinks of a running query, and their commit: one Kafka transaction with the records and the ledger's record.

    Other sinks commit before it, see :mod:`airflow_provider_exactlyonce.streaming.sinks.spi`.

    :param attempt: the batch attempt at hand
    :param writer: writes its rows
    :param stop_requested: tells that a commit without an answer should not be waited for any longer
    :raises RefusedError: when the consumer group for the offsets has members
    """

    def __init__(self, attempt: BatchAttempt, writer: BatchWriter, stop_requested: Callable[[], bool]) -> None:
        self._attempt: Final = attempt
        self._writer: Final = writer
        self._stop_requested: Final = stop_requested
        self._run: Final = attempt.run
        self._others: Final = attempt.others
        self._definition: Final = attempt.options.definition
        self._late_topic: Final = attempt.options.late.topic
        self._written_topics: Final = WrittenTopics(self._run, self._definition, self._late_topic)
        self._pre_committed: tuple[CommitRecord, int] | None = None
        if self._definition is not None and self._definition.offsets_group is not None:
            user = self._run.options.config.get("sasl.username")
            preflight.check_group(self._run.client, self._definition.offsets_group, user=user)

    @property
    @override
    def time_limit_seconds(self) -> float:
        return self._attempt.time_limit_seconds

    @override
    def prepare(self, result: DataFrame) -> DataFrame:
        return self._writer.prepare(result)

    @override
    def begin(self, batch: Batch) -> None:
        failpoints.note(batch=batch.number)
        self._attempt.open(batch)
        self._pre_committed = None
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
        self._others.begin(self._attempt.batch, record.commit)
        self._attempt.look_at_plan()
        with self._others.publish_to_tasks(frame):
            rows, digest = self.recompute(frame)
        self._attempt.count(frame)
        recomputed = {KAFKA: OtherSink(rows=rows, digest=digest), **self._others.sums}
        recorded_sums = {KAFKA: OtherSink(rows=record.rows, digest=record.digest), **record.others}
        for name, recorded in recorded_sums.items():
            if name in recomputed and recomputed[name] != recorded:
                text = different(f"the ledger has {name}'s share of", record.commit, recorded, recomputed[name])
                diverged(DivergedError(f"{text}: its state would not fit its output"))
        if record.late is not None and self._attempt.counts is not None and record.late != self._attempt.counts.late:
            old_late, new_late = (late_rows.shown(late) or "none" for late in (record.late, self._attempt.counts.late))
            diverged(
                DivergedError(
                    f"commit {record.commit} left out rows behind the watermark: {old_late}; run again it leaves out: "
                    f"{new_late}. Its state would not fit its output"
                )
            )
        self._others.pre_commit()
        self._others.commit()
        self._others.settled(record)

    @override
    def write(self, frame: DataFrame) -> None:
        self._others.begin(self._attempt.batch, self._run.tail.place.commit + 1)
        self._attempt.look_at_plan()
        with self._others.publish_to_tasks(frame):
            self._writer.write(frame)
        self._others.verify_committed()

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        batch, run = self._attempt.batch, self._run
        self._check_topics()
        self._others.pre_commit()
        before, expired = run.tail.place, run.expired()
        written, counts, others = self._writer.sums(), self._attempt.counts, self._others.sums
        topic_ids = {topic: self._attempt.targets[topic].topic_id for topic in self._writer.topics}
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
            sink=self._writer.ranges,
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
            late_topic=self._late_topic,
            source_patterns=run.options.source_patterns,
        )
        group = self._definition.offsets_group if self._definition else None
        if group is not None and batch.source:
            ends = {partition: end for partition, (_, end) in by_partition(batch.source).items()}
            run.session.write_offsets(group, ends, f"commit {record.commit}")
        ledger = records.ledger_topic(run.pipeline)
        offset = run.session.write(ledger, 0, record.key, records.encode(record), tombstones=expired.keys)
        self._pre_committed = record, offset
        failpoints.reach("after-pre-commit")
        return record

    @override
    def commit(self) -> None:
        record, offset = required(self._pre_committed, "commit follows pre-commit")
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
        try:
            self._others.abort()
            self._run.session.abort()
        except (FencedError, ProducerLostError):
            raise
        except Exception as error:  # a claim settles the remains of the attempt, too
            raise ProducerLostError(f"the attempt may not be aborted: {type(error).__name__}: {error}") from error

    @override
    def recover(self) -> None:
        self._run.reclaim(self._stop_requested)
        commit = self._run.lineage.commit_of(self._attempt.batch.number)  # a replay may be far behind the ledger
        self._others.claim(self._run.number, self._run.tail.commit, commit)

    def _check_topics(self) -> None:
        """Check that all topics are those that the attempt began with; later attempts see added partitions.

        Topics that rows have named in earlier batches only are forgotten: they may be gone by now.
        """
        attempt, ranges = self._attempt, self._writer.ranges
        sources = self._run.sources
        read = sources.here(attempt.batch.source)
        feedback.check_topics(self._run.pipeline, ranges, read, allowed=attempt.options.allow_feedback)
        named_topics = {*(self._definition.topics if self._definition else ()), self._late_topic, *ranges}
        targets = {topic: target for topic, target in attempt.targets.items() if topic in named_topics}
        sink_ids = {topic: target.topic_id for topic, target in targets.items()}
        by_cluster = sources.by_cluster(attempt.batch.source_topic_ids)
        own_ids = by_cluster.pop(sources.own)
        for cluster, topic_ids in by_cluster.items():
            cluster.check_topic_ids(topic_ids)
        partitions = preflight.check_topic_ids(self._run.client, {**own_ids, **sink_ids})
        targets = {topic: replace(target, partitions=partitions[topic]) for topic, target in targets.items()}
        attempt.targets = targets
        if new_topics := ranges.keys() - sink_ids.keys():
            allowed = self._run.options.allow_single_replica
            attempt.targets |= preflight.check_topics(self._run.client, sinks=new_topics, allow_single_replica=allowed)
        ids = {topic: target.topic_id for topic, target in attempt.targets.items()}
        check_sinks(ids, self._written_topics.known)

    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        """Run the plan without writing to Kafka; returns rows and digest of its share."""
        return self._writer.recompute(frame)

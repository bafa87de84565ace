"""Exactly once: each batch by tasks that all write into one Kafka transaction, by way of the driver's sequencer."""

from __future__ import annotations

import functools
import json
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import AttemptTimedOutError, BatchFailedError, required
from airflow_provider_exactlyonce.kafka.compression import Compression
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.ledger.records import SinkRange
from airflow_provider_exactlyonce.streaming.analysis import logical_plans
from airflow_provider_exactlyonce.streaming.commit import write_stage
from airflow_provider_exactlyonce.streaming.commit.arrow_batching import BatchSizer, BatchStats
from airflow_provider_exactlyonce.streaming.commit.batch_attempt import BatchAttempt
from airflow_provider_exactlyonce.streaming.commit.batch_writer import BatchWriter, Sums
from airflow_provider_exactlyonce.streaming.commit.row_router import add_up
from airflow_provider_exactlyonce.streaming.sequencer.client import Address
from airflow_provider_exactlyonce.streaming.sequencer.core import AttemptFailedError, GrantedRange
from airflow_provider_exactlyonce.streaming.sequencer.server import SequencerServer
from airflow_provider_exactlyonce.streaming.sinks.kafka import columns
from airflow_provider_exactlyonce.streaming.spark import errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_GRANT_TIMEOUT_SECONDS: Final = 150.0  # a grant spans two requests, each of which may be repeated for a minute

#: {topic-partition: (rows, digest)} of one task
_Answer = dict[TopicPartition, tuple[int, int]]


class TransactionalWriter(BatchWriter):
    """Writes rows into the open transaction, and the other sinks' rows beside them, in one Spark job."""

    def __init__(self, attempt: BatchAttempt) -> None:
        super().__init__(attempt)
        self._definition: Final = attempt.options.definition
        self._arrow_rows: Final = BatchSizer()
        self._ranges: dict[str, dict[int, SinkRange]] = {}

    @override
    def prepare(self, result: DataFrame) -> DataFrame:
        self._arrow_rows.plan(result.sparkSession, runs_python=logical_plans.runs_python(result))
        rows, tasks = self._attempt.routes.of(result), self._attempt.others.tasks()
        if self._definition is None:
            return write_stage.write_stage(rows, None, tasks)
        topic = self._definition.topic
        limit = self._attempt.targets[topic].batch_bytes_maximum if topic is not None else None
        records = columns.encode(
            self._definition, rows, batch_bytes_maximum=limit, carried=self._attempt.routes.carried
        )
        if self._attempt.options.mark is not None:
            records = columns.marked(records, self._attempt.options.mark)
        return write_stage.write_stage(records, self._settings, tasks)

    @override
    def write(self, frame: DataFrame) -> None:
        tag = f"exactlyonce-{uuid.uuid4()}"
        if self._definition is None:
            self._write_to_others(frame, tag)
        else:
            self._write_to_all(frame, tag)

    @property
    @override
    def ranges(self) -> Mapping[str, Mapping[int, SinkRange]]:
        return self._ranges

    @property
    @override
    def topics(self) -> Collection[str]:
        return self._ranges.keys()

    @override
    def sums(self) -> Sums:
        rows = digest = bad = 0
        for topic, ranges in self._ranges.items():
            for written in ranges.values():
                if self._attempt.is_bad(topic):
                    bad += written.rows
                elif topic != self._attempt.options.late.topic:
                    rows += written.rows
                    digest = (digest + written.digest) % 2**64
        return Sums(rows=rows, digest=digest, bad=bad)

    @functools.cached_property
    def _settings(self) -> write_stage.WriterSettings:
        definition = required(self._definition, "there is a Kafka sink")
        return write_stage.WriterSettings(
            config=self._attempt.run.options.config,
            sequencer_key=self._attempt.listener.key,
            transactional_id=self._attempt.run.session.transactional_id,
            topic=definition.topic,
            compression=Compression(definition.compression, definition.compression_level),
        )

    def _write_to_all(self, frame: DataFrame, tag: str) -> None:
        with SequencerServer(
            self._attempt.listener,
            grant_timeout_seconds=_GRANT_TIMEOUT_SECONDS,
            attempt_timeout_seconds=self._attempt.time_limit_seconds,
            on_failure=lambda: self._cancel_tasks(frame, tag),
        ) as server:
            try:
                answers = self._run_tasks(frame, server, tag)
                written = server.result(len(answers))
            except (AttemptFailedError, BatchFailedError) as error:
                kind = AttemptTimedOutError if server.timed_out else BatchFailedError
                raise kind(str(error)) from error
        self._ranges = _agreed(written, answers)
        self._check_late_topic()

    def _check_late_topic(self) -> None:
        """Check that as many late rows were written as were left out."""
        topic, counts = self._attempt.options.late.topic, self._attempt.counts
        if topic is None or counts is None:
            return
        rows = sum(written.rows for written in self._ranges.get(topic, {}).values())
        if rows != counts.late_rows:
            raise BatchFailedError(
                f"{counts.late_rows:,} rows behind the watermark were left out, and {rows:,} of them were found for "
                f"{topic}: the job does not give the same rows for the same input"
            )

    def _write_to_others(self, frame: DataFrame, tag: str) -> None:
        with self._attempt.limited(frame.sparkSession.sparkContext, tag):
            self._run_job(frame, tag)
            self._attempt.count(frame, tag)
        self._attempt.judge_late_rows()

    def _write_task(self, address: Address) -> write_stage.WriteTask:
        return write_stage.WriteTask(
            settings=self._settings,
            sequencer=address,
            producer=self._attempt.run.session.producer,
            targets=self._attempt.targets,
        )

    @override
    def recompute(self, frame: DataFrame) -> tuple[int, int]:
        answers = self._run_job(frame, f"exactlyonce-{uuid.uuid4()}")
        sums = [share for answer in answers for (topic, _), share in answer.items() if not self._attempt.is_bad(topic)]
        return sum(rows for rows, _ in sums), sum(digest for _, digest in sums) % 2**64

    def _cancel_tasks(self, frame: DataFrame, tag: str) -> None:
        frame.sparkSession.sparkContext.cancelJobsWithTag(tag)

    def _run_tasks(self, frame: DataFrame, server: SequencerServer, tag: str) -> list[_Answer]:
        def description(task: write_stage.WriteTask) -> str:
            return write_stage.describe(task, server.attempt)

        task = self._write_task(server.address)
        answers = self._run_job(frame, tag, description(task), lambda: server.failure)
        self._attempt.count(frame, tag)
        self._attempt.judge_late_rows()

        def write_records(records: DataFrame) -> list[_Answer]:
            stage = write_stage.write_stage(records, task.settings)
            attempt = description(replace(task, first_task=len(answers)))
            return self._run_job(stage, tag, attempt, lambda: server.failure)

        bad = self._attempt.bad_records()
        if bad is not None:
            bad_answers = write_records(bad)
            self._attempt.check_left_out(sum(rows for answer in bad_answers for rows, _ in answer.values()))
            answers += bad_answers
        for late in self._attempt.late_records():
            answers += write_records(late)
        return answers

    def _run_job(
        self, stage: DataFrame, tag: str, attempt: str | None = None, reason: Callable[[], str | None] = lambda: None
    ) -> list[_Answer]:
        """Run a stage's tasks once.

        :param attempt: describes the batch attempt in Kafka for the tasks, None to write nothing there
        :param reason: why they were cancelled, None when they were not
        """
        context = stage.sparkSession.sparkContext
        context.addJobTag(tag)
        self._arrow_rows.apply(stage.sparkSession)
        context.setLocalProperty(write_stage.ATTEMPT_PROPERTY, attempt)  # type: ignore[arg-type]  # null removes it
        try:
            reports = [json.loads(row["written"]) for row in stage.collect()]
        except Exception as error:
            self._arrow_rows.reset()
            meaning = errors.meaning_of_batch(f"{reason()}\n{error}")
            if meaning is not None:
                raise meaning from error
            cancel_reason, raised = reason(), errors.raised_in_worker(str(error))
            if cancel_reason is not None and raised is not None and raised not in cancel_reason:
                cancel_reason = f"{raised}. The task that writes says: {cancel_reason}"
            raise BatchFailedError(cancel_reason or f"the batch's Spark job failed: {error}") from error
        finally:
            context.setLocalProperty(write_stage.ATTEMPT_PROPERTY, None)  # type: ignore[arg-type]
            context.removeJobTag(tag)
        self._arrow_rows.observe(BatchStats(*report["drawn"]) for report in reports)
        if shares := [report["shares"] for report in reports if report["shares"]]:
            self._attempt.others.collect_results(shares)
        return [
            {(topic, partition): (rows, digest) for topic, partition, rows, digest in report["kafka"]}
            for report in reports
        ]


def _agreed(written: Mapping[TopicPartition, GrantedRange], answers: list[_Answer]) -> dict[str, dict[int, SinkRange]]:
    """Compare the sequencer's ranges with the tasks' answers, and merge them."""
    sums: _Answer = {}
    for answer in answers:
        for partition, (count, digest) in answer.items():
            add_up(sums, partition, count, digest)
    rows = {partition: count for partition, (count, _) in sums.items()}
    granted = {partition: grant.rows for partition, grant in written.items()}
    if rows != granted:
        raise BatchFailedError(f"the tasks say that they wrote {rows} rows per partition, the sequencer saw {granted}")
    sink: dict[str, dict[int, SinkRange]] = {}
    for (topic, number), grant in sorted(written.items()):
        sink_range = SinkRange(first=grant.first, last=grant.last, rows=grant.rows, digest=sums[topic, number][1])
        sink.setdefault(topic, {})[number] = sink_range
    return sink

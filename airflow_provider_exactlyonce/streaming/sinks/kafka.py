"""The Kafka sink: what a user declares, and one Kafka transaction per micro-batch."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.checkpoint.layout import parse_offsets
from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    RefusedError,
    SettingRefusedError,
    invariant,
)
from airflow_provider_exactlyonce.kafka.config import for_confluent
from airflow_provider_exactlyonce.kafka.wire import UnansweredError
from airflow_provider_exactlyonce.ledger import records
from airflow_provider_exactlyonce.ledger.records import CommitRecord, SinkRange
from airflow_provider_exactlyonce.streaming import marked_errors
from airflow_provider_exactlyonce.streaming.batch import Batch
from airflow_provider_exactlyonce.streaming.run import Run
from airflow_provider_exactlyonce.streaming.sequencer import AttemptFailedError, Written
from airflow_provider_exactlyonce.streaming.sequencer_client import Address
from airflow_provider_exactlyonce.streaming.sequencer_listener import SequencerListener
from airflow_provider_exactlyonce.streaming.sequencer_server import SequencerServer
from airflow_provider_exactlyonce.streaming.sinks.base import TransactionalSink

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from airflow_provider_exactlyonce.streaming.sinks import kafka_writer

_GRANT_TIMEOUT_SECONDS: Final = 150.0  # a grant spans two requests, each of which may be repeated for a minute
_WRITING_SHARE: Final = 0.9  # of the transaction's time; the rest is for pre-commit and commit
_RAW_COLUMNS: Final = frozenset({"key", "value"})
_RAW_TYPES: Final = frozenset({"string", "binary"})


@dataclass(frozen=True, kw_only=True)
class _Target:
    """What a batch attempt needs to know of the topic."""

    partitions: int
    batch_bytes_maximum: int


@dataclass(frozen=True)
class KafkaSink:
    """Writes each micro-batch to a topic in one transaction.

    Without ``key``, a frame whose only columns are ``value`` or ``key`` and ``value`` (string or binary) is written as
    it is, as Spark's own sink does. Everything else becomes one JSON object a row, with every column and with nulls.

    :param topic: the topic; it must exist
    :param key: the column whose text or bytes is the record key, None for records without a key
    :param transaction_timeout_seconds: from the first record to the commit of one batch; at most the broker's
        ``transaction.max.timeout.ms``. A batch that takes longer is aborted and attempted again
    """

    topic: str
    key: str | None = None
    transaction_timeout_seconds: int = 300

    def encode(self, frame: DataFrame) -> DataFrame:
        """Return the columns ``key`` (binary), ``value`` (binary) and ``digest`` (bigint) of the frame's records.

        The digest is Spark's xxhash64 over key, its absence, value and its absence.

        :raises RefusedError: when the key column is not there
        """
        from pyspark.sql import functions as F

        key, value = self._columns(frame)
        encoded = frame.select(key.cast("binary").alias("key"), value.cast("binary").alias("value"))
        digest = F.xxhash64("key", F.isnull("key"), "value", F.isnull("value"))
        return encoded.select("key", "value", digest.alias("digest"))

    def _columns(self, frame: DataFrame) -> tuple[Column, Column]:
        from pyspark.sql import functions as F

        types = dict(frame.dtypes)
        if self.key is None and "value" in types and types.keys() <= _RAW_COLUMNS and set(types.values()) <= _RAW_TYPES:
            return (F.col("key") if "key" in types else F.lit(None).cast("binary")), F.col("value")
        value = F.to_json(F.struct(*[F.col(f"`{name}`") for name in frame.columns]), {"ignoreNullFields": "false"})
        if self.key is None:
            return F.lit(None).cast("binary"), value
        if self.key not in types:
            raise RefusedError(f"KafkaSink(key={self.key!r}): the result has the columns {', '.join(frame.columns)}")
        column = F.col(f"`{self.key}`")
        return (column if types[self.key] in _RAW_TYPES else column.cast("string")), value


class KafkaTransaction(TransactionalSink):
    """The Kafka sink of a running query.

    :param definition: what the user declared
    :param run: the driver's hold on the pipeline
    :param listener: where the tasks' sequencer listens
    :param stop_requested: tells that a commit without an answer should not be waited for any longer
    :raises RefusedError: when the topic does not exist, or the broker allows no transaction of that length
    """

    def __init__(
        self, definition: KafkaSink, run: Run, *, listener: SequencerListener, stop_requested: Callable[[], bool]
    ) -> None:
        from confluent_kafka.admin import AdminClient

        self._definition: Final = definition
        self._admin: Final = AdminClient(for_confluent(run.options.config))
        self._run: Final = run
        self._listener: Final = listener
        self._stop_requested: Final = stop_requested
        self._batch: Batch | None = None
        self._sink: dict[int, SinkRange] = {}
        self._pre_committed: tuple[CommitRecord, int] | None = None
        self._target = self._describe_topic()
        self._check_transaction_timeout()

    @property
    @override
    def time_limit_seconds(self) -> float:
        return self._definition.transaction_timeout_seconds

    @override
    def begin(self, batch: Batch) -> None:
        failpoints.note(batch=batch.number)
        self._batch, self._sink, self._pre_committed = batch, {}, None
        try:
            self._run.session.begin()
        except UnansweredError as error:
            raise BatchFailedError(f"the batch could not be begun: {error}") from error
        failpoints.reach("after-begin")

    @override
    def committed(self, batch: Batch) -> CommitRecord | None:
        record = self._run.tail.commit
        if record is None or record.lineage != batch.lineage or record.batch < batch.number:
            return None
        if record.batch > batch.number:
            raise RefusedError(
                f"Spark runs batch {batch.number} of lineage {batch.lineage}, and the ledger has batch {record.batch} "
                f"(commit {record.commit}): the checkpoint was rolled back"
            )
        if not batch.offsets.same_sources(parse_offsets(record.offsets)):
            raise RefusedError(
                f"batch {batch.number} of lineage {batch.lineage} is committed (commit {record.commit}) up to the "
                f"source offsets {parse_offsets(record.offsets).kafka_ends()}, and Spark would run it up to "
                f"{batch.offsets.kafka_ends()}: the checkpoint was rolled back or changed. Skipping the batch would "
                "lose data"
            )
        return record

    @override
    def rebuild(self, frame: DataFrame, record: CommitRecord) -> None:
        rows, digest = self._recompute(frame)
        if (rows, digest) != (record.rows, record.digest):
            raise RefusedError(
                f"batch {record.batch} was committed with {record.rows} rows and digest {record.digest:016x}; run "
                f"again on the same source offsets it gives {rows} rows and {digest:016x}. The job is not "
                "deterministic, or it was changed: its state would not fit its output"
            )

    @override
    def write(self, frame: DataFrame) -> None:
        self._refresh_partitions()
        tag = f"exactlyonce-{uuid.uuid4()}"
        with SequencerServer(
            self._listener,
            grant_timeout_seconds=_GRANT_TIMEOUT_SECONDS,
            attempt_timeout_seconds=self._definition.transaction_timeout_seconds * _WRITING_SHARE,
            on_failure=lambda: self._cancel_tasks(frame, tag),
        ) as server:
            answers = self._run_tasks(frame, server, tag)
            try:
                written = server.result(len(answers))
            except AttemptFailedError as error:
                raise BatchFailedError(str(error)) from error
        self._sink = _agreed({place.partition: of for place, of in written.items()}, answers)

    @override
    def pre_commit(self, started_milliseconds: int) -> CommitRecord:
        batch, run = self._open_batch(), self._run
        before = run.tail.place
        record = CommitRecord(
            pipeline=run.pipeline,
            commit=before.commit + 1,
            lineage=batch.lineage,
            batch=batch.number,
            run=run.number,
            version=run.options.version,
            source=batch.source,
            source_topic_ids=batch.source_topic_ids,
            sink={self._definition.topic: self._sink} if self._sink else {},
            offsets=batch.offsets.text,
            watermark=batch.offsets.watermark,
            batch_timestamp=batch.offsets.timestamp,
            rows=sum(written.rows for written in self._sink.values()),
            digest=sum(written.digest for written in self._sink.values()) % 2**64,
            producer_id=run.session.producer.id,
            epoch=run.session.producer.epoch,
            started=started_milliseconds,
            committed=int(time.time() * 1000),
            before=before,
        )
        offset = run.session.write(records.ledger_topic(run.pipeline), 0, record.key, records.encode(record))
        self._pre_committed = record, offset
        failpoints.reach("after-pre-commit")
        return record

    @override
    def commit(self) -> None:
        invariant(self._pre_committed is not None, "commit follows pre-commit")
        record, offset = self._pre_committed  # type: ignore[misc]
        self._run.session.commit(self._stop_requested)
        self._run.committed(record, offset)

    @override
    def abort(self) -> None:
        self._run.session.abort()

    @override
    def recover(self) -> None:
        self._run.reclaim(self._stop_requested)

    def _refresh_partitions(self) -> None:
        try:
            described = self._run.client.metadata(self._definition.topic)
        except UnansweredError as error:
            raise BatchFailedError(f"partitions of {self._definition.topic}: {error}") from error
        if described is None:
            raise BatchFailedError(f"sink topic {self._definition.topic} does not exist any more")
        self._target = replace(self._target, partitions=len(described.leaders))

    def _describe_topic(self) -> _Target:
        from confluent_kafka.admin import ConfigResource, ResourceType

        topic = self._definition.topic
        described = self._run.client.metadata(topic)
        if described is None:
            raise RefusedError(f"sink topic {topic} does not exist; create it with the partitions that you want")
        resource = ConfigResource(ResourceType.TOPIC, topic)
        settings = self._admin.describe_configs([resource])[resource].result()
        limit = settings["max.message.bytes"].value
        return _Target(partitions=len(described.leaders), batch_bytes_maximum=int(limit))

    def _check_transaction_timeout(self) -> None:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import ConfigResource, ResourceType

        broker = min(self._admin.list_topics(timeout=30).brokers)
        resource = ConfigResource(ResourceType.BROKER, str(broker))
        try:
            settings = self._admin.describe_configs([resource])[resource].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED:
                return  # the broker itself refuses a longer one, when the run takes its transactional.id
            raise
        limit_milliseconds = int(settings["transaction.max.timeout.ms"].value)
        if self._definition.transaction_timeout_seconds * 1000 > limit_milliseconds:
            raise SettingRefusedError(
                "transaction_timeout_seconds of KafkaSink",
                self._definition.transaction_timeout_seconds,
                limit_milliseconds // 1000,
                "it must not exceed the broker's transaction.max.timeout.ms",
            )

    def _open_batch(self) -> Batch:
        invariant(self._batch is not None, "a batch attempt is open")
        return self._batch  # type: ignore[return-value]

    def _write_task(self, address: Address) -> kafka_writer.WriteTask:
        """Return what the tasks of this batch attempt need to know."""
        from airflow_provider_exactlyonce.streaming.sinks import kafka_writer

        return kafka_writer.WriteTask(
            config=self._run.options.config,
            sequencer=address,
            transactional_id=self._run.session.transactional_id,
            producer=self._run.session.producer,
            topic=self._definition.topic,
            partitions=self._target.partitions,
            batch_bytes_maximum=self._target.batch_bytes_maximum,
        )

    # What follows is all that needs Spark.

    def _recompute(self, frame: DataFrame) -> tuple[int, int]:
        """Run the plan without writing; returns rows and digest."""
        from pyspark.sql import functions as F

        encoded = self._definition.encode(frame)
        sums = encoded.agg(F.count("*").alias("rows"), F.sum(F.col("digest").cast("decimal(38,0)")).alias("digest"))
        found = sums.collect()[0]
        return found["rows"], int(found["digest"] or 0) % 2**64

    def _cancel_tasks(self, frame: DataFrame, tag: str) -> None:
        frame.sparkSession.sparkContext.cancelJobsWithTag(tag)

    def _run_tasks(self, frame: DataFrame, server: SequencerServer, tag: str) -> list[dict[int, tuple[int, int]]]:
        """Run the stage that writes; returns {partition: (rows, digest)} of each task."""
        from airflow_provider_exactlyonce.streaming.sinks import kafka_writer

        encoded, task = self._definition.encode(frame), self._write_task(server.address)

        def write(batches: Any) -> Any:
            return kafka_writer.write(batches, task)

        context = encoded.sparkSession.sparkContext
        context.addJobTag(tag)
        try:
            rows = encoded.mapInArrow(write, kafka_writer.RESULT_SCHEMA).collect()
        except Exception as error:
            reason = server.failure
            known = marked_errors.find(f"{reason}\n{error}")
            if known is not None:
                raise known from error
            raise BatchFailedError(reason or f"the batch's Spark job failed: {error}") from error
        finally:
            context.removeJobTag(tag)
        return [
            {int(partition): (of[0], of[1]) for partition, of in json.loads(row["written"]).items()} for row in rows
        ]


def _agreed(written: dict[int, Written], answers: list[dict[int, tuple[int, int]]]) -> dict[int, SinkRange]:
    """Join what the sequencer has seen with what the tasks say, and compare them."""
    rows: dict[int, int] = {}
    digests: dict[int, int] = {}
    for answer in answers:
        for partition, (count, digest) in answer.items():
            rows[partition] = rows.get(partition, 0) + count
            digests[partition] = (digests.get(partition, 0) + digest) % 2**64
    granted = {partition: of.rows for partition, of in written.items()}
    if rows != granted:
        raise BatchFailedError(f"the tasks say that they wrote {rows} rows per partition, the sequencer saw {granted}")
    return {
        partition: SinkRange(first=of.first, last=of.last, rows=of.rows, digest=digests[partition])
        for partition, of in sorted(written.items())
    }

"""The executor's half of the Kafka sink: a task encodes its rows and sends them in turn with the other tasks.

Runs in Spark's Python workers. Encoding goes on while a sender thread waits for grants and acknowledgements.
"""

from __future__ import annotations

import gc
import json
import queue
import struct
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate, islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RecordTooLargeError, RefusedError, required
from airflow_provider_exactlyonce.kafka import preflight, record_batch
from airflow_provider_exactlyonce.kafka.columns import as_binary, flat_numbers
from airflow_provider_exactlyonce.kafka.compression import UNCOMPRESSED, Compression, Shrinkage
from airflow_provider_exactlyonce.kafka.preflight import TopicFacts
from airflow_provider_exactlyonce.kafka.record_batch import Body, OversizedRecord, RefusedRecord
from airflow_provider_exactlyonce.kafka.topic_partition import TopicPartition
from airflow_provider_exactlyonce.kafka.transaction import BatchTooLargeError, add_partitions, produce
from airflow_provider_exactlyonce.kafka.wire import Producer, WireClient
from airflow_provider_exactlyonce.streaming.commit.arrow_batching import MeasuredBatches
from airflow_provider_exactlyonce.streaming.commit.row_router import SHARES_PROPERTY, TaskShare, Tee, add_up
from airflow_provider_exactlyonce.streaming.commit.topic_routing import Router, by_topic
from airflow_provider_exactlyonce.streaming.sequencer.client import (
    Address,
    GrantedPartition,
    SequencerClient,
    attempt_secret,
    first_in_round,
)
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark, marking

if TYPE_CHECKING:
    from pyspark import TaskContext
    from pyspark.sql import DataFrame

FLUSH_BYTES_MINIMUM: Final = 1 << 20
FLUSH_BYTES_MAXIMUM: Final = 8 << 20
_FLUSH_GROWTH_MAXIMUM: Final = 4
_FLUSHES_QUEUED: Final = 2
_NO_PARTITION: Final = -1
REQUEST_BYTES: Final = 1 << 20  # of several bodies; Kafka's own producer has the same limit
CANDIDATES: Final = 64  # also the most bodies of a request; of more, hardly one is free, and the question gets long

_BYTES: Final = ("key", "value")

RESULT_SCHEMA: Final = "task INT, written STRING"

#: The local property of a Spark job that names the open batch attempt; a job without it writes nothing.
ATTEMPT_PROPERTY: Final = "exactlyonce.attempt"


@dataclass(frozen=True, kw_only=True)
class WriterSettings:
    """The settings of the tasks of all batches of a query.

    :param config: client configuration in librdkafka's names
    :param sequencer_key: makes the secret of each batch attempt
    :param topic: for rows without a topic of their own, None when each row has one
    """

    config: Mapping[str, str] = field(repr=False)
    sequencer_key: bytes = field(repr=False)
    transactional_id: str
    topic: str | None
    compression: Compression = UNCOMPRESSED


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """A task's part of a batch attempt.

    :param targets: the topics that the driver knows; a task looks up others
    :param first_task: the number of the attempt's first task in this Spark job
    """

    settings: WriterSettings
    sequencer: Address
    producer: Producer
    targets: Mapping[str, TopicFacts]
    first_task: int = 0


def describe(task: WriteTask, attempt: str) -> str:
    """Return the value of :data:`ATTEMPT_PROPERTY`. Nothing in it is secret: Spark shows and logs such properties.

    :param attempt: the attempt's name
    """
    return json.dumps(
        {
            "attempt": attempt,
            "sequencer": [task.sequencer.host, task.sequencer.port],
            "producer": [task.producer.id, task.producer.epoch],
            "targets": [asdict(target) for target in task.targets.values()],
            "first_task": task.first_task,
        }
    )


def _described(text: str, settings: WriterSettings) -> WriteTask:
    task = json.loads(text)
    host, port = task["sequencer"]
    producer, epoch = task["producer"]
    return WriteTask(
        settings=settings,
        sequencer=Address(host=host, port=port, secret=attempt_secret(settings.sequencer_key, task["attempt"])),
        producer=Producer(id=producer, epoch=epoch),
        targets={target["name"]: TopicFacts(**target) for target in task["targets"]},
        first_task=task["first_task"],
    )


def write_stage(records: DataFrame, settings: WriterSettings | None, shares: Sequence[TaskShare] = ()) -> DataFrame:
    """Return a frame that writes these records in its tasks; each task gives a row in :data:`RESULT_SCHEMA`.

    It is planned once, with the query; the batch's own values come in :data:`ATTEMPT_PROPERTY` and
    :data:`airflow_provider_exactlyonce.streaming.commit.row_router.SHARES_PROPERTY`.

    :param records: the columns of :func:`airflow_provider_exactlyonce.streaming.sinks.kafka.columns.encode`, and those
        of the other sinks' shares
    :param settings: None for a pipeline without a Kafka sink
    :param shares: the other sinks
    """

    def write_partition(batches: Any) -> Any:
        return write(batches, settings, shares)

    if settings is not None:
        # Spark copies a binary value once more for each of its own rows and for Arrow, a string never. It does not look
        # at a string's bytes on the way.
        records = records.withColumns({name: records[name].cast("string") for name in _BYTES})
    return records.mapInArrow(write_partition, RESULT_SCHEMA)


_clients: dict[str, WireClient] = {}
_shrinkages: dict[tuple[str, Compression], Shrinkage] = {}


def _client(config: Mapping[str, str]) -> WireClient:
    """Return this worker process's connection; Spark reuses worker processes, so it serves many tasks."""
    key = json.dumps(dict(config), sort_keys=True)
    if key not in _clients:
        _clients[key] = WireClient(config)
        gc.freeze()  # Spark has every worker look for garbage after each task, and all that is imported is none
    return _clients[key]


def _shrinkage(target: TopicFacts, compression: Compression) -> Shrinkage:
    """Return the compression that this worker process has measured for a topic; it serves many tasks."""
    stored_compression = compression if target.keeps(compression.codec) else UNCOMPRESSED
    return _shrinkages.setdefault((target.topic_id, stored_compression), Shrinkage(stored_compression))


def write(
    batches: Iterator[pa.RecordBatch], settings: WriterSettings | None, shares: Sequence[TaskShare] = ()
) -> Iterator[pa.RecordBatch]:
    """Write one Spark partition's rows, or only sum them up when the job has no batch attempt.

    :param batches: as the records of :func:`write_stage`
    :returns: one row in :data:`RESULT_SCHEMA`; ``written`` is JSON: ``kafka`` is [[topic, partition, rows, digest], …],
        the partition -1 for rows that were only summed up; ``shares`` is
        :data:`airflow_provider_exactlyonce.streaming.commit.row_router.ShareAnswers`, and ``drawn``
        :class:`airflow_provider_exactlyonce.streaming.commit.arrow_batching.BatchStats`
    :raises RecordTooLargeError: when a record is above the topic's limit; the text is marked
    :raises RecordRefusedError: when a record's topic or partition does not exist; the text is marked
    """
    from pyspark import TaskContext

    context = required(TaskContext.get(), "write() runs in a Spark task")
    number = context.partitionId()
    drawing = MeasuredBatches(batches)
    with Tee(shares, context.getLocalProperty(SHARES_PROPERTY), number) as tee:
        rows = tee.passing(iter(drawing)) if shares else iter(drawing)
        written = {} if settings is None else _write_records(rows, settings, context)
        for _ in rows:  # without a Kafka sink they were not iterated
            pass
        share_answers = tee.finish()
    sums = [[*partition, count, digest] for partition, (count, digest) in written.items()]
    yield _answer(number, json.dumps({"kafka": sums, "shares": share_answers, "drawn": drawing.drawn}).encode())


def _write_records(
    rows: Iterator[pa.RecordBatch], settings: WriterSettings, context: TaskContext
) -> dict[TopicPartition, tuple[int, int]]:
    attempt = context.getLocalProperty(ATTEMPT_PROPERTY)
    if attempt is None:
        return _sum_up(rows, settings.topic)
    task = _described(attempt, settings)
    return write_rows(rows, task, task.first_task + context.partitionId(), context.attemptNumber())


def _sum_up(batches: Iterator[pa.RecordBatch], default: str | None) -> dict[TopicPartition, tuple[int, int]]:
    sums: dict[TopicPartition, tuple[int, int]] = {}
    for batch in batches:
        for topic, rows in by_topic(batch, default):
            digest = int(flat_numbers(rows["digest"], np.int64)[0].sum())
            add_up(sums, (topic, _NO_PARTITION), rows.num_rows, digest)
    return sums


def write_rows(
    batches: Iterator[pa.RecordBatch], task: WriteTask, number: int, attempt: int
) -> dict[TopicPartition, tuple[int, int]]:
    """Write one task's rows; needs no Spark.

    :param batches: as those of :func:`write`
    :param number: the task's partition in the stage
    :param attempt: Spark's attempt number
    :returns: {topic-partition: (rows, digest)}
    :raises RecordTooLargeError: when a record is above the topic's limit; the text is marked
    :raises RecordRefusedError: when a record's topic or partition does not exist; the text is marked
    """
    with SequencerClient(task.sequencer, number, attempt) as sequencer:
        router = Router(task.settings.topic, task.targets, lambda topic: _look_up(task, topic))
        sender = _Sender(task, sequencer, number, router.targets)
        for rows in _flushes(batches, _flush_bytes(task)):
            for topic, selected, partitions in router.route(rows):
                sender.put(topic, _encode(selected, partitions, topic, router.targets[topic], task))
        sums = sender.finish()
        sequencer.done()
    return sums


def _answer(task: int, written: bytes) -> pa.RecordBatch:
    """Return one row in :data:`RESULT_SCHEMA`, from buffers: Arrow's own builders import pandas, a second of CPU."""
    lengths = pa.py_buffer(struct.pack("<ii", 0, len(written)))
    columns = [
        pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("<i", task))]),
        pa.Array.from_buffers(pa.string(), 1, [None, lengths, pa.py_buffer(written)]),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["task", "written"])


def _flush_bytes(task: WriteTask) -> int:
    """Return how many bytes to encode at a time: enough for a body of every partition, within the cache."""
    target = task.targets.get(task.settings.topic or "")
    if target is None:
        return FLUSH_BYTES_MAXIMUM
    full_bytes = _shrinkage(target, task.settings.compression).plain_bytes(target.full_batch_bytes)
    # Of bodies that are compressed to a tenth many more bytes are worth a request.
    maximum = FLUSH_BYTES_MAXIMUM * max(1, min(full_bytes // target.batch_bytes_maximum, _FLUSH_GROWTH_MAXIMUM))
    return int(min(max(0.9 * target.partitions * full_bytes, FLUSH_BYTES_MINIMUM), maximum))


def _flushes(batches: Iterator[pa.RecordBatch], flush_bytes: int) -> Iterator[pa.RecordBatch]:
    """Join Spark's small Arrow batches, so that bodies are worth a request."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            gathered.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= flush_bytes:
            yield _joined(gathered)
            gathered, size_bytes = [], 0
    if gathered:
        yield _joined(gathered)


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    joined = batches[0] if len(batches) == 1 else pa.concat_batches(batches)  # which copies even a single one
    for name in _BYTES:
        joined = joined.set_column(joined.schema.get_field_index(name), name, as_binary(joined[name]))
    return joined


def _look_up(task: WriteTask, topic: str) -> TopicFacts:
    """Check a topic that only a row has named; the driver looks at its number of replicas before the commit."""
    try:
        return preflight.check_topics(_client(task.settings.config), sinks=[topic], allow_single_replica=True)[topic]
    except RefusedError as error:
        raise RecordRefusedError(mark(RecordRefusedError, f"a record's topic can't be written: {error}")) from error


def _encode(
    rows: pa.RecordBatch, partitions: NDArray[np.int32], topic: str, target: TopicFacts, task: WriteTask
) -> list[Body]:
    full_bytes, shrinkage = target.full_batch_bytes, _shrinkage(target, task.settings.compression)
    try:
        bodies = record_batch.encode_bodies(
            rows["key"],
            rows["value"],
            rows["digest"],
            partitions,
            timestamps=_timestamps(rows, target),
            headers=rows["headers"] if "headers" in rows.schema.names else None,
            body_bytes_maximum=target.batch_bytes_maximum,
            full_bytes_maximum=full_bytes,
            compression=task.settings.compression,
            plain_bytes_maximum=shrinkage.plain_bytes(full_bytes),
        )
    except OversizedRecord as error:
        raise RecordTooLargeError(mark(RecordTooLargeError, f"topic {topic}: {error}")) from error
    except RefusedRecord as error:
        raise RecordRefusedError(mark(RecordRefusedError, f"topic {topic}: {error}")) from error
    shrinkage.observe(((body.plain_bytes, len(body.payload)) for body in bodies), full_bytes)
    return bodies


def _timestamps(rows: pa.RecordBatch, target: TopicFacts) -> int | NDArray[np.int64]:
    """Return the rows' own timestamps, and the present for those without."""
    now = int(time.time() * 1000)
    if "timestamp" not in rows.schema.names:
        return now
    numbers, valid = flat_numbers(rows["timestamp"], np.int64)
    timestamps = numbers if valid is None else np.where(valid, numbers, now)
    with marking(RecordRefusedError):
        target.check_timestamps(int(timestamps.min()), int(timestamps.max()), now)
    return timestamps


class _Sender:
    """Sends bodies in a thread of its own, a flush at a time, each flush beginning at another partition."""

    def __init__(
        self, task: WriteTask, sequencer: SequencerClient, number: int, targets: Mapping[str, TopicFacts]
    ) -> None:
        self._task = task
        self._sequencer = sequencer
        self._number = number
        self._targets = targets
        self._flushes = 0
        self._sums: dict[TopicPartition, tuple[int, int]] = {}
        self._added: set[TopicPartition] = set()
        self._error: BaseException | None = None
        self._queue: queue.Queue[tuple[str, list[Body]] | None] = queue.Queue(_FLUSHES_QUEUED)
        self._thread = threading.Thread(target=self._run, name="kafka-sender", daemon=True)
        self._thread.start()

    def put(self, topic: str, bodies: list[Body]) -> None:
        """Hand over a flush's bodies for one topic; waits while enough are queued."""
        self._raise_if_failed()
        self._queue.put((topic, bodies))

    def finish(self) -> dict[TopicPartition, tuple[int, int]]:
        """Wait until everything is acknowledged; return the rows and the digest that each partition got."""
        self._queue.put(None)
        self._thread.join()
        self._raise_if_failed()
        return self._sums

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (flush := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._send(*flush)
                except BaseException as error:
                    self._error = error

    def _send(self, topic: str, bodies: list[Body]) -> None:
        """Send bodies in the order in which their partitions are free; one partition's bodies stay in order."""
        self._flushes += 1
        count = self._targets[topic].partitions
        first = first_in_round(self._number, count) + self._flushes
        unsent: dict[int, deque[Body]] = {}
        for body in sorted(bodies, key=lambda body: (body.partition - first) % (count + 1)):
            unsent.setdefault(body.partition, deque()).append(body)
        keyless = unsent.pop(count, deque())
        while unsent:
            offered = list(islice(unsent, CANDIDATES))
            turns = self._sequencer.ask(
                topic, offered, most=_bodies_per_request(unsent[partition][0] for partition in offered)
            )
            self._add(topic, turns, unsent)
            granted_bodies = [unsent[turn.partition].popleft() for turn in turns]
            for turn in turns:
                if not unsent[turn.partition]:
                    del unsent[turn.partition]
            self._append(topic, turns, granted_bodies, asks_next=bool(unsent or keyless))
        while keyless:
            turns = self._sequencer.ask(topic, [(first + step) % count for step in range(min(count, CANDIDATES))])
            self._add(topic, turns, [turn.partition for turn in turns])
            self._append(topic, turns, [keyless.popleft()], asks_next=bool(keyless))

    def _add(self, topic: str, turns: Sequence[GrantedPartition], partitions: Iterable[int]) -> None:
        """Make the turns' partitions part of the transaction, and in the same request all others with records."""
        if all(not turn.add or (topic, turn.partition) in self._added for turn in turns):
            return
        task = self._task
        new_partitions = {(topic, partition) for partition in partitions} - self._added
        client, numbers = _client(task.settings.config), [partition for _, partition in new_partitions]
        with marking(RecordRefusedError, RefusedError):
            add_partitions(client, task.settings.transactional_id, task.producer, topic, numbers)
        self._added |= new_partitions

    def _refuse_single(
        self, topic: str, turns: Sequence[GrantedPartition], bodies: Sequence[Body], error: BatchTooLargeError
    ) -> None:
        """Raise for a large record that the broker has made too large; in each attempt it would again."""
        (body,) = (body for turn, body in zip(turns, bodies, strict=True) if turn.partition == error.partition)
        if body.name is None:
            return  # the limit is another one by now
        target = self._targets[topic]
        raise RecordTooLargeError(
            f"topic {topic}: {body.name} takes {record_batch.HEADER_BYTES + body.plain_bytes} bytes as a record batch, "
            f"and more than {target.batch_bytes_maximum}, the limit, as the broker compresses it "
            f"(compression.type={target.settings['compression.type']}): raise the topic's max.message.bytes or make it "
            "smaller"
        ) from error

    def _append(
        self, topic: str, turns: Sequence[GrantedPartition], bodies: Sequence[Body], *, asks_next: bool
    ) -> None:
        """Append each turn's body, all at once, and give the turns back."""
        task = self._task
        stamped = {
            turn.partition: b"".join(
                record_batch.with_header(
                    body, producer_id=task.producer.id, epoch=task.producer.epoch, base_sequence=turn.sequence
                )
            )
            for turn, body in zip(turns, bodies, strict=True)
        }
        with marking(RecordRefusedError, RefusedError, RecordTooLargeError):
            try:
                offsets = produce(_client(task.settings.config), task.settings.transactional_id, topic, stamped)
            except BatchTooLargeError as error:
                self._refuse_single(topic, turns, bodies, error)
                raise
        for number, (turn, body) in enumerate(zip(turns, bodies, strict=True), 1):
            partition = (topic, turn.partition)
            self._sequencer.release(
                partition, body.records, offsets[turn.partition], more=asks_next or number < len(turns)
            )
            add_up(self._sums, partition, body.records, body.digest)


def _bodies_per_request(bodies: Iterable[Body]) -> int:
    """Return how many of the bodies, whichever they are, go in one request; others wait for them meanwhile."""
    largest_first = sorted((len(body.payload) for body in bodies), reverse=True)
    return max(1, sum(total <= REQUEST_BYTES for total in accumulate(largest_first)))

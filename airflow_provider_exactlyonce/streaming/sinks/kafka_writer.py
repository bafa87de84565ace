"""The executor's half of the Kafka sink: a task encodes its rows and sends them in turn with the other tasks.

Runs in Spark's Python workers. Encoding goes on while a sender thread waits for grants and acknowledgements.
"""

from __future__ import annotations

import json
import queue
import struct
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RecordTooLargeError, RefusedError
from airflow_provider_exactlyonce.kafka import record_batch
from airflow_provider_exactlyonce.kafka.murmur2 import partitions_for_keys
from airflow_provider_exactlyonce.kafka.record_batch import Body, OversizedRecord
from airflow_provider_exactlyonce.kafka.transaction import add_partition, produce
from airflow_provider_exactlyonce.kafka.wire import Producer, WireClient
from airflow_provider_exactlyonce.streaming.marked_errors import mark
from airflow_provider_exactlyonce.streaming.sequencer import TopicPartition
from airflow_provider_exactlyonce.streaming.sequencer_client import Address, SequencerClient

FLUSH_BYTES: Final = 8 << 20
_FLUSHES_QUEUED: Final = 2

RESULT_SCHEMA: Final = "task INT, written STRING"


@dataclass(frozen=True, kw_only=True)
class WriteTask:
    """What a task needs to know.

    :param config: client configuration in librdkafka's names
    :param partitions: number of partitions of the topic
    :param batch_bytes_maximum: the topic's ``max.message.bytes``
    """

    config: Mapping[str, str] = field(repr=False)
    sequencer: Address
    transactional_id: str
    producer: Producer
    topic: str
    partitions: int
    batch_bytes_maximum: int


@dataclass
class _Sums:
    rows: int = 0
    digest: int = 0


_clients: dict[str, WireClient] = {}


def _client(config: Mapping[str, str]) -> WireClient:
    """Return this worker process's connection; Spark reuses worker processes, so it serves many tasks."""
    key = json.dumps(dict(config), sort_keys=True)
    if key not in _clients:
        _clients[key] = WireClient(config)
    return _clients[key]


def write(batches: Iterator[pa.RecordBatch], task: WriteTask) -> Iterator[pa.RecordBatch]:
    """Write one Spark partition's rows.

    :param batches: columns ``key`` (binary), ``value`` (binary), ``digest`` (int64)
    :returns: one row in :data:`RESULT_SCHEMA`; ``written`` is JSON, {partition: [rows, digest]}
    :raises RecordTooLargeError: when a record is above the topic's limit; the text is marked
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise RuntimeError("write() runs in a Spark task")
    number = context.partitionId()
    written = write_rows(batches, task, number, context.attemptNumber())
    yield _answer(number, json.dumps(written).encode())


def write_rows(
    batches: Iterator[pa.RecordBatch], task: WriteTask, number: int, attempt: int
) -> dict[int, tuple[int, int]]:
    """Write one task's rows; needs no Spark.

    :param batches: as those of :func:`write`
    :param number: the task's partition in the stage
    :param attempt: Spark's attempt number
    :returns: {partition: (rows, digest)}
    :raises RecordTooLargeError: when a record is above the topic's limit; the text is marked
    """
    with SequencerClient(task.sequencer, number, attempt) as sequencer:
        sender = _Sender(task, sequencer, start_at=number)
        keyless_at = number
        for rows in _flushes(batches):
            targets, keyless_at = _targets(rows["key"], task.partitions, keyless_at)
            sender.put(_encode(rows, targets, task))
        sums = sender.finish()
        sequencer.done()
    return {partition: (total.rows, total.digest) for partition, total in sums.items()}


def _answer(task: int, written: bytes) -> pa.RecordBatch:
    """Return one row in :data:`RESULT_SCHEMA`, from buffers: Arrow's own builders import pandas, a second of CPU."""
    lengths = pa.py_buffer(struct.pack("<ii", 0, len(written)))
    columns = [
        pa.Array.from_buffers(pa.int32(), 1, [None, pa.py_buffer(struct.pack("<i", task))]),
        pa.Array.from_buffers(pa.string(), 1, [None, lengths, pa.py_buffer(written)]),
    ]
    return pa.RecordBatch.from_arrays(columns, names=["task", "written"])


def _flushes(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join Spark's small Arrow batches, so that bodies are worth a request."""
    gathered: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        if batch.num_rows:
            gathered.append(batch)
            size_bytes += batch.nbytes
        if size_bytes >= FLUSH_BYTES:
            yield pa.concat_batches(gathered)
            gathered, size_bytes = [], 0
    if gathered:
        yield pa.concat_batches(gathered)


def _targets(keys: pa.Array, partitions: int, keyless_at: int) -> tuple[NDArray[np.int32], int]:
    """Return each row's partition; keyless rows go, a flush at a time, to one partition after another."""
    targets = partitions_for_keys(keys, partitions)
    keyless = targets < 0
    if keyless.any():
        targets = np.where(keyless, np.int32(keyless_at % partitions), targets)
        keyless_at += 1
    return targets, keyless_at


def _encode(rows: pa.RecordBatch, targets: NDArray[np.int32], task: WriteTask) -> list[Body]:
    try:
        return record_batch.encode_bodies(
            rows["key"],
            rows["value"],
            rows["digest"],
            targets,
            timestamps=int(time.time() * 1000),
            body_bytes_maximum=task.batch_bytes_maximum,
        )
    except OversizedRecord as error:
        raise RecordTooLargeError(mark(RecordTooLargeError, f"topic {task.topic}: {error}")) from error


class _Sender:
    """Sends bodies in a thread of its own, a flush at a time, each flush beginning at another partition."""

    def __init__(self, task: WriteTask, sequencer: SequencerClient, *, start_at: int) -> None:
        self._task = task
        self._sequencer = sequencer
        self._start_at = start_at
        self._sums: dict[int, _Sums] = {}
        self._error: BaseException | None = None
        self._queue: queue.Queue[list[Body] | None] = queue.Queue(_FLUSHES_QUEUED)
        self._thread = threading.Thread(target=self._run, name="kafka-sender", daemon=True)
        self._thread.start()

    def put(self, bodies: list[Body]) -> None:
        """Hand over a flush; waits while enough are queued."""
        self._raise_if_failed()
        self._queue.put(bodies)

    def finish(self) -> dict[int, _Sums]:
        """Wait until everything is acknowledged; return what was written to each partition."""
        self._queue.put(None)
        self._thread.join()
        self._raise_if_failed()
        return self._sums

    def _raise_if_failed(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while (bodies := self._queue.get()) is not None:
            if self._error is None:
                try:
                    self._send(bodies)
                except BaseException as error:
                    self._error = error

    def _send(self, bodies: list[Body]) -> None:
        self._start_at += 1
        count = self._task.partitions
        for body in sorted(bodies, key=lambda body: (body.partition - self._start_at) % count):
            place = TopicPartition(self._task.topic, body.partition)
            sequence, add = self._sequencer.ask(place)
            offset = self._append(body, sequence, add)
            self._sequencer.release(place, body.records, offset)
            sums = self._sums.setdefault(body.partition, _Sums())
            sums.rows += body.records
            sums.digest = (sums.digest + body.digest) % 2**64

    def _append(self, body: Body, sequence: int, add: bool) -> int:
        task = self._task
        client = _client(task.config)
        header, payload = record_batch.stamp(
            body, producer_id=task.producer.id, epoch=task.producer.epoch, base_sequence=sequence
        )
        try:
            if add:
                add_partition(client, task.transactional_id, task.producer, task.topic, body.partition)
            return produce(client, task.transactional_id, task.topic, body.partition, b"".join((header, payload)))
        except (RecordRefusedError, RefusedError) as error:
            raise type(error)(mark(type(error), str(error))) from error

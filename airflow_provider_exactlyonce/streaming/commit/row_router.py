"""The executor's half of several sinks: one pass over a task's rows, every sink gets its share of each Arrow batch."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.kafka.columns import flat_numbers
from airflow_provider_exactlyonce.streaming.sinks.sink_routes import DIGEST_FIELD, KAFKA_COLUMN
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkWriter

K = TypeVar("K")

#: The local property of a Spark job that says which sinks its tasks write to; without it they only sum up.
SHARES_PROPERTY: Final = "exactlyonce.shares"

#: {sink: [rows, digest, its writer's result, None when it only summed up]}
ShareAnswers = Mapping[str, tuple[int, int, Mapping[str, Any] | None]]


@dataclass(frozen=True)
class TaskShare:
    """A sink's column and writer, for a task.

    :param column: the column with its rows, see ``column_of`` in
        :mod:`airflow_provider_exactlyonce.streaming.sinks.sink_routes`
    """

    name: str
    column: str
    open: OpenWriter


def describe(attempts: Mapping[str, SinkAttempt]) -> str:
    """Return the value of :data:`SHARES_PROPERTY`. Nothing in it is secret: Spark shows and logs such properties.

    :param attempts: by the name of each sink that is written to
    """
    return json.dumps({name: vars(attempt) for name, attempt in attempts.items()})


def add_up(sums: dict[K, tuple[int, int]], key: K, rows: int, digest: int) -> None:
    """Add rows and their digest to the sums (rows, digest) of a key."""
    rows_so_far, digest_so_far = sums.get(key, (0, 0))
    sums[key] = rows_so_far + rows, (digest_so_far + digest) % 2**64


class Tee:
    """Gives the sinks their rows while the batches are iterated through :meth:`passing`.

    :param described: the job's :data:`SHARES_PROPERTY`
    :param task: the task's number
    """

    def __init__(self, shares: Sequence[TaskShare], described: str | None, task: int) -> None:
        self._shares: Final = shares
        self._sums = {share.name: (0, 0) for share in shares}
        self._writers: dict[str, SinkWriter] = {}
        attempts = {name: SinkAttempt(**attempt) for name, attempt in json.loads(described or "{}").items()}
        with ExitStack() as opened:
            for share in shares:
                if share.name in attempts:
                    self._writers[share.name] = share.open(attempts[share.name], task)
                    opened.callback(self._writers[share.name].close)
            self._stack: Final = opened.pop_all()

    def __enter__(self) -> Tee:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def passing(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route the other sinks' shares, and yield the remaining rows for Kafka."""
        for batch in batches:
            for share in self._shares:
                rows = _rows_of(batch, share.column)
                if rows.num_rows:
                    self._take(share.name, rows)
            yield _for_kafka(batch, [share.column for share in self._shares])

    def finish(self) -> ShareAnswers:
        """Return the totals and the result of each sink, after its writer has made the rows durable."""
        answers = {name: writer.finish() for name, writer in self._writers.items()}
        return {name: (rows, digest, answers.get(name)) for name, (rows, digest) in self._sums.items()}

    def _take(self, name: str, rows: pa.RecordBatch) -> None:
        add_up(self._sums, name, rows.num_rows, int(flat_numbers(rows[DIGEST_FIELD], np.int64)[0].sum()))
        if name in self._writers:
            self._writers[name].write(_without(rows, [DIGEST_FIELD]))


def _rows_of(batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
    structs = batch[column]
    if structs.null_count:
        structs = structs.filter(structs.is_valid())
    return pa.RecordBatch.from_struct_array(structs)


def _for_kafka(batch: pa.RecordBatch, others: Sequence[str]) -> pa.RecordBatch:
    if KAFKA_COLUMN in batch.schema.names:
        batch = batch.filter(batch[KAFKA_COLUMN])
    return _without(batch, [KAFKA_COLUMN, *others])


def _without(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    kept = [name for name in batch.schema.names if name not in names]
    return pa.RecordBatch.from_arrays([batch[name] for name in kept], names=kept)

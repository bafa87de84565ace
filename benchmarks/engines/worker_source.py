"""A source of Spark's Data Source API that reads and decodes JSON records in the Python worker.

It is as much as `make bench-source` needs, and no source for a pipeline: each offset below a topic's end must hold a
record, topics keep their partitions, and a record that the blocks do not take stops the query instead of being looked
at closely.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from airflow_provider_exactlyonce.streaming.job.json_blocks import JsonBlocks
from benchmarks.engines.workloads import PARTITIONS

NAME: Final = "kafka-in-the-worker"
SERVERS, TOPIC, BATCH_ROWS = "servers", "topic", "batchRows"
_POLLED_ROWS: Final = 10_000
_PATIENCE_SECONDS: Final = 30.0


@dataclass
class Range(InputPartition):
    """Offsets of one partition, from the first to before the end."""

    partition: int
    first: int
    end: int


class WorkerSource(DataSource):
    """The records' fields by the schema that the reader is given."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  # Spark's name
        return _Reader(dict(self.options), schema)


class _Reader(DataSourceStreamReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._servers, self._topic = options[SERVERS], options[TOPIC]
        self._batch_rows = int(options[BATCH_ROWS.lower()])
        self._schema = schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {str(partition): 0 for partition in range(PARTITIONS)}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadMaxRows(self._batch_rows)

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        rows = limit.max_rows // PARTITIONS if isinstance(limit, ReadMaxRows) else self._batch_rows
        return {partition: min(first + rows, self._end(int(partition))) for partition, first in start.items()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [Range(int(partition), start[partition], end[partition]) for partition in start]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        blocks = JsonBlocks.of(self._schema)
        assert blocks is not None, "a field has a type that blocks do not read"
        columns_of_spark = [
            kind.with_nullable(field.nullable) for kind, field in zip(blocks.fields, self._schema, strict=True)
        ]
        consumer, position = _consumer(self._servers), partition.first
        consumer.assign([TopicPartition(self._topic, partition.partition, position)])
        while position < partition.end:
            messages = consumer.consume(min(_POLLED_ROWS, partition.end - position), _PATIENCE_SECONDS)
            if not messages:
                raise TimeoutError(f"partition {partition.partition} has nothing at offset {position}")
            fits, columns = blocks.decode(pa.array([_value(message) for message in messages], pa.binary()))
            if not fits.all():
                raise ValueError(f"partition {partition.partition} has a bad record after offset {position}")
            position += len(messages)
            yield pa.RecordBatch.from_arrays(columns, schema=pa.schema(columns_of_spark))

    def _end(self, partition: int) -> int:
        consumer = _consumer(self._servers)
        ends = consumer.get_watermark_offsets(TopicPartition(self._topic, partition), timeout=_PATIENCE_SECONDS)
        assert ends is not None, f"partition {partition} does not answer"
        return int(ends[1])


def _value(message: Message) -> Any:
    if message.error():
        raise RuntimeError(str(message.error()))
    return message.value()


@cache
def _consumer(servers: str) -> Consumer:
    """Return this process's consumer."""
    return Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": NAME,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.message.max.bytes": 8 << 20,
            "queued.min.messages": 100_000,
            "fetch.wait.max.ms": 10,
        }
    )

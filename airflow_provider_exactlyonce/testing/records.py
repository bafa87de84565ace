"""A test's input: records as a Kafka topic of one partition would have them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError
from airflow_provider_exactlyonce.ledger.source_topics import SourceTopics

_FIRST: Final = datetime(2024, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, kw_only=True)
class InputRecord:
    """One record of a source.

    :param value: None for a tombstone
    :param topic: which of its source's topics it is of, None for the first
    :param timestamp: its CreateTime
    """

    value: bytes | None
    key: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()
    timestamp: datetime = _FIRST
    topic: str | None = None


#: A record; or a value: a dictionary as JSON, text or bytes as they are, None for a tombstone.
Given = InputRecord | Mapping[str, Any] | str | bytes | None


def record_of(given: Given) -> InputRecord:
    """Return the input as a record.

    :raises ValueError: when a row has a decimal that JSON would have as another number
    """
    if isinstance(given, InputRecord):
        return given
    if isinstance(given, Mapping):
        return InputRecord(value=json.dumps(dict(given), default=_json).encode())
    return InputRecord(value=given.encode() if isinstance(given, str) else given)


def write(path: Path, topics: SourceTopics, first: int, given: Sequence[Given]) -> None:
    """Write records as a Parquet file with the columns of Spark's Kafka source.

    :param topics: of the source
    :param first: the offset of the first
    :raises ExactlyOnceError: when a record is of another topic, or of a pattern's topics and names none
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = [record_of(record) for record in given]
    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    columns = {
        "key": pa.array([record.key for record in records], pa.binary()),
        "value": pa.array([record.value for record in records], pa.binary()),
        "topic": pa.array([_topic(record, topics) for record in records], pa.string()),
        "partition": pa.array([0] * len(records), pa.int32()),
        "offset": pa.array(range(first, first + len(records)), pa.int64()),
        "timestamp": pa.array([record.timestamp for record in records], pa.timestamp("us", tz="UTC")),
        "timestampType": pa.array([0] * len(records), pa.int32()),
        "headers": pa.array(
            [[{"key": key, "value": value} for key, value in record.headers] or None for record in records],
            pa.list_(header),
        ),
    }
    pq.write_table(pa.table(columns), path)


def _topic(record: InputRecord, topics: SourceTopics) -> str:
    topic = record.topic or next(iter(topics.names), None)
    if topic is None or topic not in topics:
        raise ExactlyOnceError(f"a record of topic {topic} for a source of {topics}: give InputRecord(topic=…)")
    return topic


def _json(value: object) -> object:
    if isinstance(value, Decimal):
        number = float(value)
        if Decimal(repr(number)) != value:
            raise ValueError(f"{value!r} of a row has more digits than a float: give the record's value as text")
        return number
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(f"{value!r} of a row has no JSON form: give the record's value as text")

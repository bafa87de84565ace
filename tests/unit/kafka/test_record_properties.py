"""Whatever is encoded, an independent reader of the format (kafka-python's) decodes to the same records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from airflow_provider_exactlyonce.kafka import pieces, record_batch
from airflow_provider_exactlyonce.kafka.record_batch import (
    HEADER_BYTES,
    Body,
    OversizedRecord,
    encode_bodies,
    stamp,
)

NOW = 1_790_000_000_123
LATEST = (1 << 63) - 1
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PROPERTY = settings(
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Row:
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp: int
    partition: int


def contents(longest: int) -> st.SearchStrategy[bytes | None]:
    """Bytes of every size around the limits of views and varints, and text of any script."""
    sized = st.builds(
        lambda length, fill: bytes([fill]) * length,
        st.sampled_from([0, 1, 4, 5, 11, 12, 13, 63, 64, 65, 127, 128, 8_191, 8_192, longest]),
        st.integers(0, 255),
    )
    return st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode), sized)


def rows(*, partitions: st.SearchStrategy[int], timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    headers = st.none() | st.lists(st.tuples(st.text(max_size=15), st.none() | st.binary(max_size=15)), max_size=4)
    row = st.builds(
        Row,
        key=contents(300),
        value=contents(20_000),
        headers=headers,
        timestamp=timestamps,
        partition=partitions,
    )
    return st.lists(row, max_size=60)


TIMESTAMPS = st.one_of(
    st.just(NOW),
    st.integers(NOW - 100_000, NOW + 100_000),
    st.sampled_from([0, 1, NOW, LATEST]),
    st.integers(0, LATEST),
)


def column(cells: Sequence[object], arrow_type: pa.DataType, padding: int) -> pa.Array:
    """Make an array of these cells, as a slice of a longer one."""
    filler: list[object] = list(cells[:1]) * padding
    return pa.array([*filler, *cells, *filler], arrow_type).slice(padding if cells else 0, len(cells))


def encode(
    written: Sequence[Row], *, body_bytes_maximum: int = 1_000_000, large: bool = False, padding: int = 0
) -> list[Body]:
    binary = pa.large_binary() if large else pa.binary()
    lists = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in written
    ]
    return encode_bodies(
        column([row.key for row in written], binary, padding),
        column([row.value for row in written], binary, padding),
        np.arange(len(written), dtype=np.int64),
        np.array([row.partition for row in written], dtype=np.int32),
        timestamps=np.array([row.timestamp for row in written], dtype=np.int64),
        headers=column(lists, HEADERS_TYPE, padding),
        body_bytes_maximum=body_bytes_maximum,
    )


def decode(body: Body) -> list[Row]:
    """Read a body with kafka-python, and check its header."""
    batch = DefaultRecordBatch(b"".join(stamp(body, producer_id=1, epoch=0, base_sequence=0)))
    assert batch.validate_crc()
    assert batch.size_in_bytes == body.size_bytes
    assert (batch.records_count, batch.last_offset_delta) == (body.records, body.records - 1)
    records = list(batch)
    assert [record.offset for record in records] == list(range(body.records))
    assert batch.first_timestamp == records[0].timestamp
    assert batch.max_timestamp == max(record.timestamp for record in records)
    return [
        Row(
            key=record.key,
            value=record.value,
            headers=record.headers,
            timestamp=record.timestamp,
            partition=body.partition,
        )
        for record in records
    ]


def expected(written: Sequence[Row]) -> list[Row]:
    """Put the rows in the order of the bodies; no headers and a null list are the same on the wire."""
    return [
        Row(key=row.key, value=row.value, headers=row.headers or [], timestamp=row.timestamp, partition=row.partition)
        for row in sorted(written, key=lambda row: row.partition)
    ]


@PROPERTY
@given(
    written=rows(partitions=st.integers(0, 5) | st.just(70_000), timestamps=TIMESTAMPS),
    large=st.booleans(),
    padding=st.sampled_from([0, 1, 9]),
)
def test_whatever_is_encoded_is_read_back(written: list[Row], large: bool, padding: int) -> None:
    bodies = encode(written, large=large, padding=padding)
    assert [row for body in bodies for row in decode(body)] == expected(written)
    for body in bodies:
        assert body.base_timestamp_milliseconds == decode(body)[0].timestamp


@PROPERTY
@given(
    written=rows(partitions=st.just(3) | st.integers(0, 2), timestamps=TIMESTAMPS),
    slack_bytes=st.integers(0, 400),
)
def test_no_body_exceeds_the_limit_that_every_record_meets(written: list[Row], slack_bytes: int) -> None:
    largest = max((encode([row])[0].size_bytes for row in written), default=HEADER_BYTES + 1)
    bodies = encode(written, body_bytes_maximum=largest + slack_bytes)
    assert [row for body in bodies for row in decode(body)] == expected(written)
    assert all(body.size_bytes <= largest + slack_bytes for body in bodies)
    if slack_bytes == 0 and written:
        with pytest.raises(OversizedRecord) as caught:
            encode(written, body_bytes_maximum=largest - 1)
        assert caught.value.rows.tolist() == [
            number for number, row in enumerate(written) if encode([row])[0].size_bytes == largest
        ]


@PROPERTY
@given(written=rows(partitions=st.integers(0, 2), timestamps=TIMESTAMPS))
def test_bodies_in_small_groups_and_columns_in_many_buffers_are_the_same(
    written: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [bytes(body.payload) for body in encode(written, body_bytes_maximum=30_000)]
    with monkeypatch.context() as patched:
        patched.setattr(record_batch, "SPAN_ROWS_MINIMUM", 2)
        patched.setattr(pieces, "BUFFER_STEP_BITS", 10)
        assert [bytes(body.payload) for body in encode(written, body_bytes_maximum=30_000)] == whole

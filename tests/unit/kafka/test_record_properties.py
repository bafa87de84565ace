"""Whatever is encoded, an independent reader of the format (kafka-python's) decodes to the same records."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatch

from airflow_provider_exactlyonce.kafka import byte_concat, record_batch
from airflow_provider_exactlyonce.kafka.compression import Compression
from airflow_provider_exactlyonce.kafka.record_batch import HEADER_BYTES, Body, OversizedRecord, with_header
from tests.unit.kafka.record_rows import PROPERTY, TIMESTAMPS, Row, encode, expected, rows


def decode(body: Body) -> list[Row]:
    """Read a body with kafka-python, and check its header."""
    batch = DefaultRecordBatch(b"".join(with_header(body, producer_id=1, epoch=0, base_sequence=0)))
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
        first = next(number for number, row in enumerate(written) if encode([row])[0].size_bytes == largest)
        with pytest.raises(OversizedRecord, match=f"in row {first} "):
            encode(written, body_bytes_maximum=largest - 1)


@PROPERTY
@given(
    written=rows(partitions=st.just(3) | st.integers(0, 2), timestamps=TIMESTAMPS),
    plain_bytes_maximum=st.sampled_from([50_000, 1 << 20]),
)
def test_compressed_bodies_are_within_the_limit_however_wrong_the_guess(
    written: list[Row], plain_bytes_maximum: int
) -> None:
    limit = max((encode([row])[0].size_bytes for row in written), default=HEADER_BYTES + 1)
    bodies = encode(
        written,
        body_bytes_maximum=limit,
        compression=Compression("gzip", 1),
        plain_bytes_maximum=plain_bytes_maximum,
    )
    assert [row for body in bodies for row in decode(body)] == expected(written)
    assert all(body.size_bytes <= limit for body in bodies)
    assert [body.digest for body in bodies] == [sum(numbers) for numbers in _numbers(written, bodies)]


def _numbers(written: list[Row], bodies: list[Body]) -> list[list[int]]:
    """Tell which rows are in each body."""
    order = sorted(range(len(written)), key=lambda number: written[number].partition)
    ends = list(itertools.accumulate(body.records for body in bodies))
    return [order[end - body.records : end] for body, end in zip(bodies, ends, strict=True)]


@PROPERTY
@given(written=rows(partitions=st.integers(0, 2), timestamps=TIMESTAMPS))
def test_bodies_in_small_groups_and_columns_in_many_buffers_are_the_same(
    written: list[Row], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = [bytes(body.payload) for body in encode(written, body_bytes_maximum=30_000)]
    with monkeypatch.context() as patched:
        patched.setattr(record_batch, "SPAN_ROWS_MINIMUM", 2)
        patched.setattr(byte_concat, "BUFFER_STEP_BITS", 10)
        assert [bytes(body.payload) for body in encode(written, body_bytes_maximum=30_000)] == whole

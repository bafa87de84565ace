"""Encoded batches are what an independent reader of the format (kafka-python's) understands."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.util import encode_varint

from airflow_provider_exactlyonce.kafka import byte_concat, record_batch
from airflow_provider_exactlyonce.kafka.compression import ATTRIBUTES, UNCOMPRESSED, Compression
from airflow_provider_exactlyonce.kafka.record_batch import (
    HEADER_BYTES,
    Body,
    OversizedRecord,
    RefusedRecord,
    advance_sequence,
    encode_bodies,
    encode_few,
    with_header,
)
from airflow_provider_exactlyonce.kafka.varint import WIDTH_LIMITS, varint_widths, varints

NOW = 1_790_000_000_123
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
Row = tuple[bytes | None, bytes | None, int, int]
"""Key, value, digest, partition."""


def encode(
    rows: Sequence[Row],
    body_bytes_maximum: int = 1_000_000,
    arrow_type: Any = None,
    compression: Compression = UNCOMPRESSED,
    full_bytes_maximum: int | None = None,
) -> list[Body]:
    arrow_type = arrow_type or pa.binary()
    return encode_bodies(
        pa.array([row[0] for row in rows], arrow_type),
        pa.array([row[1] for row in rows], arrow_type),
        pa.array([row[2] for row in rows], pa.uint64()),
        np.array([row[3] for row in rows], dtype=np.int32),
        timestamps=NOW,
        body_bytes_maximum=body_bytes_maximum,
        full_bytes_maximum=full_bytes_maximum,
        compression=compression,
    )


def decode(body: Body) -> list[tuple[bytes | None, bytes | None]]:
    """Read a stamped body back and check every field but the contents."""
    batch = DefaultRecordBatch(b"".join(with_header(body, producer_id=77, epoch=3, base_sequence=5)))
    assert batch.validate_crc()
    assert batch.size_in_bytes == body.size_bytes == HEADER_BYTES + len(body.payload)
    assert (batch.base_offset, batch.leader_epoch, batch.magic, batch.attributes) == (0, -1, 2, 0x10)
    assert (batch.first_timestamp, batch.max_timestamp) == (NOW, NOW)
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, 5)
    assert (batch.records_count, batch.last_offset_delta) == (body.records, body.records - 1)
    records = list(batch)
    assert [record.offset for record in records] == list(range(body.records))
    assert all(record.timestamp == NOW and record.headers == [] for record in records)
    return [(record.key, record.value) for record in records]


def record_bytes(key: bytes | None, value: bytes | None, offset_delta: int) -> bytes:
    """One record, written plainly."""
    content = bytearray(b"\0\0")
    encode_varint(offset_delta, content.append)
    for part in (key, value):
        encode_varint(-1 if part is None else len(part), content.append)
        content += part or b""
    content += b"\0"
    length = bytearray()
    encode_varint(len(content), length.append)
    return bytes(length + content)


def plain_bodies(rows: Sequence[Row], body_bytes_maximum: int) -> list[tuple[int, int, bytes, int]]:
    """Partition, records, bytes and digest of each body, made record by record."""
    bodies: list[tuple[int, int, bytes, int]] = []
    for partition in sorted({row[3] for row in rows}):
        records, payload, digest = 0, b"", 0
        for key, value, row_digest, target in rows:
            if target != partition:
                continue
            record = record_bytes(key, value, records)
            if HEADER_BYTES + len(payload) + len(record) > body_bytes_maximum:
                bodies.append((partition, records, payload, digest))
                records, payload, digest = 0, b"", 0
                record = record_bytes(key, value, 0)
            records, payload, digest = records + 1, payload + record, (digest + row_digest) % 2**64
        bodies.append((partition, records, payload, digest))
    return bodies


def summary(bodies: Sequence[Body]) -> list[tuple[int, int, bytes, int]]:
    return [(body.partition, body.records, bytes(body.payload), body.digest) for body in bodies]


def random_rows(generator: random.Random, count: int) -> list[Row]:
    lengths = [0, 1, 3, 4, 7, 8, 11, 12, 13, 20, 57, 58, 63, 64, 65, 127, 128, 300]
    rare_lengths = [8_191, 8_192, (1 << 14) - 1, 1 << 14, 20_001]
    skew = generator.choice([1, 2, 7, 300])

    def part() -> bytes | None:
        if generator.random() < 0.1:
            return None
        return generator.randbytes(generator.choice(rare_lengths if generator.random() < 0.005 else lengths))

    return [
        (part(), part(), generator.getrandbits(64), min(generator.randrange(skew), generator.randrange(skew)) * 3)
        for _ in range(count)
    ]


@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("count", [1, 2, 65, 3_000])
def test_random_rows_become_exactly_the_plainly_written_bytes(count: int, arrow_type: pa.DataType) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rows = random_rows(random.Random(seed), count)
    largest = max(HEADER_BYTES + len(record_bytes(key, value, 0)) for key, value, _, _ in rows)
    for body_bytes_maximum in (largest, largest + 777, 1_000_000):
        bodies = encode(rows, body_bytes_maximum, arrow_type)
        assert summary(bodies) == plain_bodies(rows, body_bytes_maximum)
        assert max(body.size_bytes for body in bodies) <= body_bytes_maximum


def test_random_rows_are_read_back_in_order_and_whole() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rows = random_rows(random.Random(seed), 4_000)
    bodies = encode(rows, 100_000)
    for partition in {row[3] for row in rows}:
        read = [record for body in bodies if body.partition == partition for record in decode(body)]
        assert read == [(key, value) for key, value, _, target in rows if target == partition]
    assert sum(body.records for body in bodies) == len(rows)


def test_a_batch_is_byte_for_byte_that_of_kafka_pythons_builder() -> None:
    builder = DefaultRecordBatchBuilder(2, 0, True, 9, 1, 40, 1_000_000)
    rows: list[Row] = [(b"k%d" % i, None if i % 5 == 0 else b"v" * i, i, 0) for i in range(200)]
    for index, (key, value, _, _) in enumerate(rows):
        builder.append(index, NOW, key, value, [])
    (body,) = encode(rows)
    stamped = b"".join(with_header(body, producer_id=9, epoch=1, base_sequence=40))
    built = bytes(builder.build())
    leader_epoch = slice(12, 16)  # the builder writes 0; outside the checksum, and the broker sets its own
    assert stamped[:12] + stamped[16:] == built[:12] + built[16:]
    assert stamped[leader_epoch] == b"\xff" * 4


def test_all_records_in_one_partition_are_cut_at_the_last_byte_that_fits() -> None:
    rows: list[Row] = [(b"same", b"x" * 100, 1, 2) for _ in range(20_000)]
    whole = HEADER_BYTES + sum(len(record_bytes(b"same", b"x" * 100, delta)) for delta in range(10_000))
    assert [body.records for body in encode(rows, whole)] == [10_000, 10_000]
    assert [body.records for body in encode(rows, whole - 1)] == [9_999, 9_999, 2]
    assert encode(rows, whole)[0].size_bytes == whole


@pytest.mark.parametrize("records", [64, 65, 8_192, 8_193])
def test_a_limit_where_the_offset_delta_grows_wider_is_met_exactly(records: int) -> None:
    rows: list[Row] = [(None, b"", 1, 0)] * (records + 1)
    whole = HEADER_BYTES + sum(len(record_bytes(None, b"", delta)) for delta in range(records))
    assert [body.records for body in encode(rows, whole)] == [records, 1]
    assert encode(rows, whole - 1)[0].records == records - 1


def test_a_body_of_more_than_a_million_records_has_wider_offset_deltas() -> None:
    count = (1 << 20) + 3
    offsets = pa.py_buffer(np.zeros(count + 1, dtype=np.int32))
    empty = pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(b"")])
    (body,) = encode_bodies(
        empty,
        empty,
        pa.array(np.ones(count, dtype=np.int64)),
        np.zeros(count, dtype=np.int32),
        timestamps=NOW,
        body_bytes_maximum=1 << 30,
    )
    tail = b"".join(record_bytes(b"", b"", delta) for delta in range((1 << 20) - 2, count))
    assert bytes(body.payload[-len(tail) :]) == tail
    stretches = [(64, 1), (8_192 - 64, 2), ((1 << 20) - 8_192, 3), (3, 4)]
    assert len(body.payload) == sum(records * (6 + width) for records, width in stretches)
    assert body.digest == count


def test_a_large_record_far_into_a_body_has_its_long_prefix_whole() -> None:
    small: list[Row] = [(b"k", b"v", 1, 0)]
    rows = small * 8_200 + [(b"big", b"V" * 1_100_000, 1, 0), (b"k", b"after", 1, 0)]
    (body,) = encode(rows, 3_000_000)
    assert decode(body)[-3:] == [(b"k", b"v"), (b"big", b"V" * 1_100_000), (b"k", b"after")]


def test_columns_that_are_slices_of_larger_ones_keep_to_their_rows() -> None:
    rows = random_rows(random.Random(3), 500)
    keys = pa.array([row[0] for row in rows], pa.binary())
    values = pa.array([row[1] for row in rows], pa.binary())
    for start, stop in ((0, 10), (13, 400), (499, 500)):
        part = [(key, value, 1, 0) for key, value, _, _ in rows[start:stop]]
        bodies = encode_bodies(
            keys.slice(start, stop - start),
            values.slice(start, stop - start),
            pa.array([1] * 500, pa.int64()).slice(start, stop - start),
            np.zeros(stop - start, dtype=np.int32),
            timestamps=NOW,
            body_bytes_maximum=1_000_000,
        )
        assert summary(bodies) == plain_bodies(part, 1_000_000)


def test_columns_beyond_the_reach_of_a_view_are_encoded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view reaches 2 GiB; with a smaller step the same arithmetic meets a column of a few kilobytes."""
    monkeypatch.setattr(byte_concat, "BUFFER_STEP_BITS", 10)
    rows = random_rows(random.Random(4), 400)
    assert summary(encode(rows)) == plain_bodies(rows, 1_000_000)


def test_bodies_written_in_several_groups_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "SPAN_ROWS_MINIMUM", 100)
    rows = random_rows(random.Random(5), 3_000)
    assert summary(encode(rows, 30_000)) == plain_bodies(rows, 30_000)


def test_bytes_under_a_null_are_not_sent() -> None:
    validity, offsets = np.packbits([1, 0, 1], bitorder="little"), np.array([0, 2, 900, 902], dtype=np.int32)
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(b"ab" + b"?" * 898 + b"cd")]
    column = pa.Array.from_buffers(pa.binary(), 3, buffers)
    bodies = encode_bodies(
        column,
        column,
        pa.array([0] * 3),
        np.zeros(3, dtype=np.int32),
        timestamps=NOW,
        body_bytes_maximum=1_000,
    )
    assert decode(bodies[0]) == [(b"ab", b"ab"), (None, None), (b"cd", b"cd")]


def test_no_rows_make_no_bodies() -> None:
    assert encode([]) == []


def test_negative_digests_are_added_modulo_two_to_the_64() -> None:
    (body,) = encode_bodies(
        pa.array([b"a", b"b"], pa.binary()),
        pa.array([b"a", b"b"], pa.binary()),
        pa.array([-5, 3], pa.int64()),
        np.zeros(2, dtype=np.int32),
        timestamps=NOW,
        body_bytes_maximum=1_000,
    )
    assert body.digest == 2**64 - 2


@pytest.mark.parametrize("codec", ATTRIBUTES)
@pytest.mark.parametrize("full_bytes", [-50, HEADER_BYTES + 1, 700, 1_500, 2_000])
def test_only_a_record_alone_takes_more_than_a_full_batch_may_and_has_a_name_then(codec: str, full_bytes: int) -> None:
    chance = random.Random(20261123)
    sizes = [0, 10, 300, 300, 1_400, 1_900, 1, 1, 700, 650, 1_900]
    rows: list[Row] = [(b"%d" % number, chance.randbytes(size), 1, 0) for number, size in enumerate(sizes)]
    bodies = encode(rows, 2_000, compression=Compression(codec), full_bytes_maximum=full_bytes)
    assert sum(body.records for body in bodies) == len(rows)
    assert all(body.size_bytes <= (full_bytes if body.records > 1 else 2_000) for body in bodies)
    first = 0
    for body in bodies:
        is_large = body.records == 1 and HEADER_BYTES + body.plain_bytes > full_bytes
        name = f"the record in row {first} (partition 0, key b'{first}')"
        assert body.name == (name if is_large else None)
        first += body.records


def test_a_record_that_cannot_fit_is_named_before_anything_is_encoded() -> None:
    value = b"x" * 900
    fits = HEADER_BYTES + len(record_bytes(b"key", value, 0))
    rows: list[Row] = [(b"a", b"b", 1, 5), (b"key", value, 1, 7), (b"key", value + b"+", 1, 6), (b"", value * 2, 1, 0)]
    with pytest.raises(OversizedRecord, match=rf"row 2 .partition 6, key b'key'. takes {fits + 1} .* limit is {fits}:"):
        encode(rows, fits)
    assert len(encode(rows[:2], fits)) == 2


def test_the_first_of_the_rows_that_cannot_fit_is_told() -> None:
    rows: list[Row] = [(b"k", b"x" * size, 1, 9 - row % 3) for row, size in enumerate([9, 500, 7, 501, 502, 1])]
    with pytest.raises(OversizedRecord, match="row 1 "):
        encode(rows, 400)


def test_rows_that_no_client_could_send_are_refused_by_name() -> None:
    keys, digests = pa.array([b"a", b"b", b"c"], pa.binary()), pa.array([0] * 3)
    partitions = np.array([4, 5, 6], dtype=np.int32)
    times = np.array([NOW, -1, -2], dtype=np.int64)
    with pytest.raises(RefusedRecord, match=r"row 1 .partition 5, key b'b'. has the timestamp -1 ms"):
        encode_bodies(keys, keys, digests, partitions, timestamps=times, body_bytes_maximum=1_000)
    lists = [None, [{"key": "h", "value": b""}], [{"key": "h", "value": b""}, {"key": None, "value": b"v"}]]
    for missing in (lists, [*lists[:2], [{"key": "h", "value": b""}, None]]):
        headers = pa.array(missing, HEADERS_TYPE)
        with pytest.raises(RefusedRecord, match=r"row 2 .partition 6, key b'c'. has a header whose key is null"):
            encode_bodies(keys, keys, digests, partitions, timestamps=NOW, headers=headers, body_bytes_maximum=1_000)


def test_a_header_under_a_null_list_is_neither_sent_nor_checked() -> None:
    entries = pa.array([{"key": None, "value": b"?"}, {"key": "h", "value": None}], HEADERS_TYPE.value_type)
    validity = pa.py_buffer(np.packbits([0, 1], bitorder="little"))
    offsets = pa.py_buffer(np.array([0, 1, 2], dtype=np.int32))
    headers = pa.ListArray.from_buffers(HEADERS_TYPE, 2, [validity, offsets], children=[entries])
    keys, digests = pa.array([b"a", b"b"], pa.binary()), pa.array([0, 0])
    partitions = np.zeros(2, dtype=np.int32)
    (body,) = encode_bodies(keys, keys, digests, partitions, timestamps=NOW, headers=headers, body_bytes_maximum=1_000)
    batch = DefaultRecordBatch(b"".join(with_header(body, producer_id=1, epoch=0, base_sequence=0)))
    assert [record.headers for record in batch] == [[], [("h", None)]]


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_only_bodies_that_get_smaller_are_compressed(codec: str) -> None:
    rows: list[Row] = [(b"k", b"x" * 1_000, 1, 0), (b"k", b"x" * 1_000, 1, 0), (b"k", random.randbytes(1_000), 1, 1)]
    small, noise = encode(rows, compression=Compression(codec))
    plain = encode(rows)
    assert len(small.payload) < 300
    assert (small.records, small.digest) == (2, 2)
    assert bytes(noise.payload) == bytes(plain[1].payload)
    for body, attributes in ((small, ATTRIBUTES[codec]), (noise, 0)):
        batch = DefaultRecordBatch(b"".join(with_header(body, producer_id=1, epoch=0, base_sequence=0)))
        assert batch.validate_crc()
        assert (batch.attributes, batch.size_in_bytes) == (0x10 | attributes, body.size_bytes)


def test_arguments_that_do_not_belong_together_are_refused() -> None:
    column, zero = pa.array([b"a"], pa.binary()), np.zeros(1, dtype=np.int32)
    digest = pa.array([0])
    limits: dict[str, Any] = {"timestamps": NOW, "body_bytes_maximum": 1_000}
    with pytest.raises(ValueError, match="1 keys, 1 values, 2 digests and 1 partitions"):
        encode_bodies(column, column, pa.array([0, 0]), zero, **limits)
    with pytest.raises(ValueError, match="row 0 has partition -1"):
        encode_bodies(column, column, digest, zero - 1, **limits)
    with pytest.raises(ValueError, match="found 1 null"):
        encode_bodies(column, column, pa.array([None], pa.int64()), zero, **limits)
    with pytest.raises(TypeError, match="found double"):
        encode_bodies(column, column, pa.array([0.0]), zero, **limits)
    with pytest.raises(ValueError, match="body_bytes_maximum must be 62 to 2147483647, found 61"):
        encode_bodies(column, column, digest, zero, timestamps=NOW, body_bytes_maximum=61)
    with pytest.raises(TypeError, match="found string"):
        encode_bodies(pa.array(["a"]), column, digest, zero, **limits)
    with pytest.raises(ValueError, match="found 2 for 1 rows"):
        encode_bodies(column, column, digest, zero, headers=pa.array([None, None], HEADERS_TYPE), **limits)
    with pytest.raises(TypeError, match=r"headers must be array<struct<.*, found list<.*string>"):
        encode_bodies(column, column, digest, zero, headers=pa.array([["a"]]), **limits)
    with pytest.raises(ValueError, match="timestamps must be one for all or one a row, found 2 for 1 rows"):
        encode_bodies(column, column, digest, zero, timestamps=np.zeros(2, dtype=np.int64), body_bytes_maximum=1_000)


@pytest.mark.parametrize(
    ("key", "value"), [(b"commit/1", b"{}"), (b"commit/1", None), (None, b""), (b"", b"x" * 9_000)]
)
def test_a_single_record_is_a_body_for_partition_0(key: bytes | None, value: bytes | None) -> None:
    body = encode_few([(key, value)], NOW)
    assert (body.partition, body.records, body.digest) == (0, 1, 0)
    assert decode(body) == [(key, value)]


@pytest.mark.parametrize(
    ("sequence", "records", "following"),
    [(0, 1, 1), (2**31 - 2, 1, 2**31 - 1), (2**31 - 1, 1, 0), (2**31 - 3, 10, 7), (5, 2**31 - 1, 4)],
)
def test_sequences_wrap_as_the_brokers_do(sequence: int, records: int, following: int) -> None:
    assert advance_sequence(sequence, records) == following
    batch = DefaultRecordBatch(
        b"".join(with_header(encode_few([(b"", b"")], NOW), producer_id=1, epoch=0, base_sequence=0))
    )
    assert batch._increment_sequence(sequence, records) == following


def test_varints_are_those_of_kafka_python() -> None:
    limits = [*WIDTH_LIMITS, 1 << 41, 1 << 48, 1 << 55, 1 << 62, (1 << 63) - 1]
    numbers = [sign * limit + step for limit in (0, *limits) for step in (-1, 0, 1) for sign in (1, -1)]
    numbers = [number for number in numbers if -(1 << 63) <= number < 1 << 63]
    for column in (numbers, *([number] for number in numbers)):
        widths = varint_widths(np.array(column, dtype=np.int64))
        encoded = [b""] * len(column)
        for part in varints(np.array(column, dtype=np.int64), widths):
            for row, number in enumerate(column):
                width = int(np.broadcast_to(part.widths, len(column))[row])
                word = int(part.words[row]).to_bytes(8, "little")
                assert word[width:] == bytes(8 - width), number
                encoded[row] += word[:width]
        for number, written in zip(column, encoded, strict=True):
            expected = bytearray()
            encode_varint(number, expected.append)
            assert written == bytes(expected), number

"""Kafka record batches (format v2) from Arrow columns, without a Python object per row.

A batch is made in two steps, because its sequence number is known only when its turn has come: :func:`encode_bodies`
writes the records, :func:`with_header` puts the 61-byte header before them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, NamedTuple

import crc32c
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import flat_column, flat_numbers, stable_order
from airflow_provider_exactlyonce.kafka.compression import UNCOMPRESSED, Compression
from airflow_provider_exactlyonce.kafka.record_headers import encode_headers, rows_without_header_key
from airflow_provider_exactlyonce.kafka.record_writer import RecordColumns, write_bodies

HEADER_BYTES: Final = 61
BODY_BYTES_LIMIT: Final = 0x7FFFFFFF
"""The header's length field is an int32. It bounds the number of records, too: none is smaller than 7 bytes."""

TRANSACTIONAL_ATTRIBUTE: Final = 0x10

_BEFORE_CRC: Final = struct.Struct(">qiib")  # base offset, length of what follows it, partition leader epoch, magic
_CRC: Final = struct.Struct(">I")
_AFTER_CRC: Final = struct.Struct(">hiqqqhii")  # attributes … record count
_LENGTH_STARTS_AFTER: Final = 12

SPAN_ROWS_MINIMUM: Final = 12_288
"""Bodies are written in groups of at least so many rows: few calls, yet the views stay in the processor's cache."""


class RefusedRecord(ValueError):  # noqa: N818 - the fact; callers turn it into the error that names the topic
    """A record that Kafka would refuse.

    :param row: where it is in the given columns
    :param partitions: where each row should have gone
    :param keys: of each row
    :param reason: its defect, and the fix
    """

    def __init__(self, row: int, partitions: NDArray[np.int32], keys: pa.Array, reason: str) -> None:
        super().__init__(f"{_name(row, partitions, keys)} {reason}")


class OversizedRecord(RefusedRecord):
    """A record that doesn't fit into a batch even when it is alone there."""


@dataclass(frozen=True, kw_only=True)
class Body:
    """The records of one batch for one partition, without the header.

    :param partition: the partition they go to
    :param records: how many they are
    :param payload: their bytes; uncompressed, part of a buffer that a few bodies share, freed with the last of them
    :param plain_bytes: how many these were before compression
    :param compression: how the payload is compressed
    :param base_timestamp_milliseconds: CreateTime of the first record
    :param max_timestamp_milliseconds: CreateTime of the latest record
    :param digest: sum of the rows' digests, modulo 2**64
    :param name: how messages call its record, where it is larger than a batch of several may be; None for others
    """

    partition: int
    records: int
    payload: memoryview
    plain_bytes: int
    compression: Compression
    base_timestamp_milliseconds: int
    max_timestamp_milliseconds: int
    digest: int
    name: str | None = None

    @property
    def size_bytes(self) -> int:
        """Bytes of the batch, header included; a topic's max.message.bytes limits them."""
        return HEADER_BYTES + len(self.payload)


def encode_bodies(
    keys: pa.BinaryArray | pa.LargeBinaryArray,
    values: pa.BinaryArray | pa.LargeBinaryArray,
    digests: pa.Int64Array | pa.UInt64Array,
    partitions: NDArray[np.int32],
    *,
    timestamps: int | NDArray[np.int64],
    headers: pa.ListArray | None = None,
    body_bytes_maximum: int,
    full_bytes_maximum: int | None = None,
    compression: Compression = UNCOMPRESSED,
    plain_bytes_maximum: int | None = None,
) -> list[Body]:
    """Encode rows into bodies: by partition, in the rows' order within each, cut so that no batch exceeds the limit.

    A body that compression doesn't make smaller stays as it is; one that is above the limit then is halved.

    :param keys: a key a row, null for none
    :param values: a value a row, null for a tombstone
    :param digests: a 64 bit integer a row
    :param partitions: a target partition a row
    :param timestamps: CreateTime of each row, or of all, in milliseconds since 1970
    :param headers: a list of structs of ``key`` (string) and ``value`` (binary or null) a row, null for none
    :param body_bytes_maximum: the most that a batch may take, header included
    :param full_bytes_maximum: the most that one of several records may take, None for no less
    :param compression: how to compress each body
    :param plain_bytes_maximum: the most that a batch may take before compression, None for no more than after it
    :raises OversizedRecord: for rows that exceed the limit alone, before compression; nothing is encoded then
    :raises RefusedRecord: for rows with a timestamp before 1970 or a header without a key; nothing is encoded then
    """
    digest_column = _digest_column(digests)
    times = np.atleast_1d(np.asarray(timestamps, dtype=np.int64))
    _check_arguments(keys, values, digest_column, partitions, body_bytes_maximum)
    _check_optional_arguments(headers, times, len(partitions))
    if len(partitions) == 0:
        return []
    _refuse_unfit(headers, times, keys, partitions)
    order = stable_order(partitions)
    targets = partitions[order]
    header_column = None if headers is None else encode_headers(headers)
    records = RecordColumns(
        flat_column(keys).take(order),
        flat_column(values).take(order),
        None if header_column is None else header_column.take(order),
        times if len(times) == 1 else times[order],
    )
    _refuse_oversized(records, keys, partitions, order, body_bytes_maximum)
    full_bytes = body_bytes_maximum if full_bytes_maximum is None else max(full_bytes_maximum, HEADER_BYTES)
    ends = _body_ends(records, targets, max(full_bytes, plain_bytes_maximum or 0))
    packed = [
        body
        for bounds in _spans(ends)
        for (start, end), plain in zip(pairwise(bounds.tolist()), write_bodies(records, bounds), strict=True)
        for body in _pack(records, start, end, plain, compression, full_bytes)
    ]
    starts = np.array([body.start for body in packed])
    base_times, latest_times = records.time_ranges(starts)
    return [
        Body(
            partition=partition,
            records=body.end - body.start,
            payload=body.payload,
            plain_bytes=body.plain_bytes,
            compression=body.compression,
            base_timestamp_milliseconds=base_time,
            max_timestamp_milliseconds=latest_time,
            digest=digest,
            name=_name(int(order[body.start]), partitions, keys)
            if body.end - body.start == 1 and HEADER_BYTES + body.plain_bytes > full_bytes
            else None,
        )
        for body, partition, base_time, latest_time, digest in zip(
            packed,
            targets[starts].tolist(),
            base_times.tolist(),
            latest_times.tolist(),
            np.add.reduceat(digest_column[order], starts).tolist(),
            strict=True,
        )
    ]


class _Packed(NamedTuple):
    start: int
    end: int
    payload: memoryview
    plain_bytes: int
    compression: Compression


def _pack(
    records: RecordColumns, start: int, end: int, plain: memoryview, compression: Compression, full_bytes: int
) -> Iterator[_Packed]:
    """Compress a body, if that makes it smaller; halve it until it is full at most, or a single record."""
    packed = memoryview(compression.compress(plain))
    is_smaller = len(packed) < len(plain)
    payload = packed if is_smaller else plain
    if HEADER_BYTES + len(payload) <= full_bytes or end - start == 1:
        yield _Packed(start, end, payload, len(plain), compression if is_smaller else UNCOMPRESSED)
        return
    bounds = np.array([start, (start + end) // 2, end])
    for (first, last), half in zip(pairwise(bounds.tolist()), write_bodies(records, bounds), strict=True):
        yield from _pack(records, first, last, half, compression, full_bytes)


def encode_few(records: Sequence[tuple[bytes | None, bytes | None]], timestamp_milliseconds: int) -> Body:
    """Encode keys and values for partition 0 as one body; its digest is 0.

    :param records: a key and a value each, None for none
    :param timestamp_milliseconds: their CreateTime
    """
    (body,) = encode_bodies(
        pa.array([key for key, _ in records], type=pa.binary()),
        pa.array([value for _, value in records], type=pa.binary()),
        pa.array([0] * len(records), type=pa.int64()),
        np.zeros(len(records), dtype=np.int32),
        timestamps=timestamp_milliseconds,
        body_bytes_maximum=BODY_BYTES_LIMIT,
    )
    return body


def with_header(body: Body, *, producer_id: int, epoch: int, base_sequence: int) -> tuple[bytes, memoryview]:
    """Put the header before a body; joined, both parts are a complete record set. A resend needs the very same header.

    :param body: the records
    :param producer_id: the producer's id
    :param epoch: its epoch
    :param base_sequence: sequence of the first record in its partition, see :func:`advance_sequence`
    """
    after_crc = _AFTER_CRC.pack(
        body.compression.attributes | TRANSACTIONAL_ATTRIBUTE,
        body.records - 1,
        body.base_timestamp_milliseconds,
        body.max_timestamp_milliseconds,
        producer_id,
        epoch,
        base_sequence,
        body.records,
    )
    checksum = crc32c.crc32c(body.payload, crc32c.crc32c(after_crc))
    before_crc = _BEFORE_CRC.pack(0, body.size_bytes - _LENGTH_STARTS_AFTER, -1, 2)
    return before_crc + _CRC.pack(checksum) + after_crc, body.payload


def advance_sequence(sequence: int, records: int) -> int:
    """Tell the sequence after so many records; after 2**31 - 1 comes 0.

    :param sequence: the sequence of the first of them
    :param records: how many they are
    """
    return (sequence + records) & 0x7FFFFFFF


def _check_arguments(
    keys: pa.Array,
    values: pa.Array,
    digests: NDArray[np.uint64],
    partitions: NDArray[np.int32],
    body_bytes_maximum: int,
) -> None:
    rows = len(partitions)
    if not rows == len(keys) == len(values) == len(digests):
        raise ValueError(
            f"a row needs a key, a value, a digest and a partition, found {len(keys)} keys, {len(values)} values, "
            f"{len(digests)} digests and {rows} partitions"
        )
    if not HEADER_BYTES < body_bytes_maximum <= BODY_BYTES_LIMIT:
        raise ValueError(
            f"body_bytes_maximum must be {HEADER_BYTES + 1} to {BODY_BYTES_LIMIT}, found {body_bytes_maximum}"
        )
    if rows and int(partitions.min()) < 0:
        raise ValueError(f"row {int(partitions.argmin())} has partition {int(partitions.min())}: choose 0 or more")


def _check_optional_arguments(headers: pa.ListArray | None, times: NDArray[np.int64], rows: int) -> None:
    if headers is not None and len(headers) != rows:
        raise ValueError(f"headers must be one list a row, found {len(headers)} for {rows} rows")
    if len(times) not in (1, rows):
        raise ValueError(f"timestamps must be one for all or one a row, found {len(times)} for {rows} rows")


def _refuse_unfit(
    headers: pa.ListArray | None, times: NDArray[np.int64], keys: pa.Array, partitions: NDArray[np.int32]
) -> None:
    """Raise for rows that no client could send."""
    early_rows = np.flatnonzero(times < 0)
    if early_rows.size:
        row = int(early_rows[0])
        reason = f"has the timestamp {times[row]} ms, Kafka allows none before 1970: give it a later one"
        raise RefusedRecord(row, partitions, keys, reason)
    without_key = rows_without_header_key(headers) if headers is not None else early_rows
    if without_key.size:
        reason = "has a header whose key is null, Kafka allows none: give every header a key"
        raise RefusedRecord(int(without_key[0]), partitions, keys, reason)


def _refuse_oversized(
    records: RecordColumns,
    keys: pa.Array,
    partitions: NDArray[np.int32],
    order: NDArray[np.int64],
    body_bytes_maximum: int,
) -> None:
    if int(records.smallest_sizes.max()) + HEADER_BYTES <= body_bytes_maximum:
        return
    batch_sizes = np.broadcast_to(records.smallest_sizes + HEADER_BYTES, len(order))
    positions = np.flatnonzero(batch_sizes > body_bytes_maximum)
    first = positions[order[positions].argmin()]
    reason = (
        f"takes {batch_sizes[first]} bytes as a record batch, the limit is {body_bytes_maximum}: "
        "raise the topic's max.message.bytes or make it smaller"
    )
    raise OversizedRecord(int(order[first]), partitions, keys, reason)


def _body_ends(records: RecordColumns, targets: NDArray[np.int32], body_bytes_maximum: int) -> NDArray[np.int64]:
    """Where each body ends, in rows; every record fits alone."""
    partition_ends = np.append(np.flatnonzero(np.diff(targets)) + 1, len(targets)).tolist()
    ends: list[int] = []
    start = 0
    for partition_end in partition_ends:
        while start < partition_end:
            start = records.body_end(start, partition_end, body_bytes_maximum - HEADER_BYTES)
            ends.append(start)
    return np.array(ends, dtype=np.int64)


def _spans(ends: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Group the bodies that are written together: where the first one starts, then where each one ends."""
    span_start = first = 0
    for body, end in enumerate(ends.tolist()):
        if end - span_start >= SPAN_ROWS_MINIMUM or end == ends[-1]:
            yield np.concatenate(([span_start], ends[first : body + 1]))
            span_start, first = end, body + 1


def _digest_column(digests: pa.Int64Array | pa.UInt64Array) -> NDArray[np.uint64]:
    """See the rows' digests as unsigned integers, so that their sum wraps at 2**64."""
    if digests.null_count:
        raise ValueError(f"every row needs a digest, found {digests.null_count} null")
    if digests.type not in (pa.int64(), pa.uint64()):
        raise TypeError(f"digests must be int64 or uint64, found {digests.type}")
    return flat_numbers(digests, np.int64)[0].view(np.uint64)


def _name(row: int, partitions: NDArray[np.int32], keys: pa.Array) -> str:
    return f"the record in row {row} (partition {partitions[row]}, key {_shortened(keys[row].as_py())})"


def _shortened(key: bytes | None) -> str:
    return repr(key) if key is None or len(key) <= 100 else f"{key[:100]!r}… of {len(key)} bytes"

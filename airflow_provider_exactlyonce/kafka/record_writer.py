"""The records of a batch as bytes.

A record is, with varints for all numbers but the attributes::

    length | attributes 0 | timestamp delta 0 | offset delta | key length | key | value length | value | headers 0

Arrow copies the bytes: each record is a few *views* (16 bytes each: a short piece itself, or where a longer one lies in
a column's buffer), and one cast of the views to binary puts every piece in its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import Column, WordReader
from airflow_provider_exactlyonce.kafka.varint import varint_widths, varint_words

NULL_LENGTH: Final = -1
HEADERLESS_SUFFIX: Final = b"\0"
FIXED_BYTES: Final = 2 + len(HEADERLESS_SUFFIX)
"""Attributes, timestamp delta and the number of headers: the parts of a record that always take the same."""

PIECES: Final = 6
INLINE_BYTES_MAXIMUM: Final = 12
BUFFER_STEP_BITS: Final = 30


class RecordColumns:
    """Columns and exact sizes of records; a size depends on the width of the offset delta, so on its place in a body.

    :param keys: the keys, in the order of the bodies
    :param values: the values, in the order of the bodies
    """

    def __init__(self, keys: Column, values: Column) -> None:
        self.keys, self.values = keys, values
        self.key_lengths, self.value_lengths = _lengths_or_null(keys), _lengths_or_null(values)
        self.key_length_widths = varint_widths(self.key_lengths)
        self.value_length_widths = varint_widths(self.value_lengths)
        self.lengths_without_delta = (
            FIXED_BYTES + self.key_length_widths + keys.lengths + self.value_length_widths + values.lengths
        )
        self._totals: dict[int, NDArray[np.int64]] = {}

    def sizes(self, delta_width: int) -> NDArray[np.int64]:
        """Bytes of each record, its length field included, if its offset delta had this width."""
        lengths = self.lengths_without_delta + delta_width
        return varint_widths(lengths) + lengths

    def totals(self, delta_width: int) -> NDArray[np.int64]:
        """Bytes of the first n records for every n, if all offset deltas had this width."""
        if delta_width not in self._totals:
            self._totals[delta_width] = np.concatenate(([0], np.cumsum(self.sizes(delta_width))))
        return self._totals[delta_width]


def _lengths_or_null(column: Column) -> NDArray[np.int64]:
    return column.lengths if column.valid is None else np.where(column.valid, column.lengths, NULL_LENGTH)


def write_bodies(records: RecordColumns, bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """Write some neighbouring bodies into one buffer.

    :param records: all records
    :param bounds: the first record of each of these bodies, and the end of the last one
    """
    rows = slice(int(bounds[0]), int(bounds[-1]))
    offset_deltas = np.arange(rows.start, rows.stop) - np.repeat(bounds[:-1], np.diff(bounds))
    views = np.empty((len(offset_deltas), PIECES, 2), dtype=np.uint64)
    _write_prefix(views[:, 0], records.lengths_without_delta[rows], offset_deltas)
    _write_varint(views[:, 1], records.key_lengths[rows], records.key_length_widths[rows])
    key_buffers = _write_column(views[:, 2], records.keys.take(rows), 0)
    _write_varint(views[:, 3], records.value_lengths[rows], records.value_length_widths[rows])
    value_buffers = _write_column(views[:, 4], records.values.take(rows), len(key_buffers))
    _write_suffix(views[:, 5])
    array = pa.Array.from_buffers(
        pa.binary_view(), len(offset_deltas) * PIECES, [None, pa.py_buffer(views), *key_buffers, *value_buffers]
    )
    _, offset_buffer, data = array.cast(pa.large_binary()).buffers()
    piece_ends: NDArray[np.int64] = np.frombuffer(offset_buffer, dtype=np.int64)
    payload = memoryview(data).cast("B")
    for start, end in pairwise(piece_ends[(bounds - bounds[0]) * PIECES].tolist()):
        yield payload[start:end]


def _write_prefix(
    views: NDArray[np.uint64], lengths_without_delta: NDArray[np.int64], offset_deltas: NDArray[np.int64]
) -> None:
    """Length, attributes, timestamp delta and offset delta of each record: 12 bytes at most, so always inline."""
    delta_widths = varint_widths(offset_deltas)
    lengths = lengths_without_delta + delta_widths
    length_widths = varint_widths(lengths)
    deltas = varint_words(offset_deltas, delta_widths)
    delta_position_bits = (8 * (length_widths + 2)).astype(np.uint64)
    low = varint_words(lengths, length_widths) | (deltas << delta_position_bits)
    high = deltas >> (np.uint64(64) - delta_position_bits)
    # An inline view is 4 bytes of length and 12 bytes of content.
    views[:, 0] = (length_widths + 2 + delta_widths).astype(np.uint64) | (low << np.uint64(32))
    views[:, 1] = (low >> np.uint64(32)) | (high << np.uint64(32))


def _write_varint(views: NDArray[np.uint64], numbers: NDArray[np.int64], widths: NDArray[np.int64]) -> None:
    """Write the length of a key or value."""
    words = varint_words(numbers, widths)
    views[:, 0] = widths.astype(np.uint64) | (words << np.uint64(32))
    views[:, 1] = words >> np.uint64(32)


def _write_suffix(views: NDArray[np.uint64]) -> None:
    """Write what follows the value: the number of headers, and nothing more, as no record has any."""
    views[:, 0] = len(HEADERLESS_SUFFIX) | int.from_bytes(HEADERLESS_SUFFIX, "little") << 32
    views[:, 1] = 0


def _write_column(views: NDArray[np.uint64], column: Column, first_buffer: int) -> list[pa.Buffer]:
    """Write a column's rows: those of more than 12 bytes refer to its buffer, shorter ones must be inline.

    A view's position is an int32, so a large column is presented as several buffers that start ever later in it.
    """
    reader = WordReader(column.buffer)
    words = reader.read(column.starts)
    views[:, 0] = column.lengths.astype(np.uint64) | (words << np.uint64(32))
    refers = column.lengths > INLINE_BYTES_MAXIMUM
    buffer_indexes = first_buffer + (column.starts >> BUFFER_STEP_BITS)
    positions = column.starts & ((1 << BUFFER_STEP_BITS) - 1)
    references = (buffer_indexes | (positions << 32)).astype(np.uint64)
    if refers.all():
        views[:, 1] = references
    else:
        views[:, 1] = np.where(refers, references, reader.read(column.starts + 4))
    return [column.buffer.slice(start) for start in range(0, max(column.buffer.size, 1), 1 << BUFFER_STEP_BITS)]

"""The records of a batch as bytes.

A record is, with varints for all numbers but the attributes::

    length | attributes 0 | timestamp delta | offset delta | key length | key | value length | value | headers
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.byte_concat import Piece, PrefixedColumn, concatenate, grouped, part
from airflow_provider_exactlyonce.kafka.columns import FlatColumn
from airflow_provider_exactlyonce.kafka.record_headers import HeaderColumn
from airflow_provider_exactlyonce.kafka.varint import (
    Varints,
    compact,
    varint_width,
    varint_widths,
    varints,
)

ZERO: Final = Varints(words=np.zeros(1, np.uint64), widths=np.ones(1, np.int64), narrowest=1, widest=1)
"""A record's attributes, and the number of its headers if it has none."""


class RecordColumns:
    """Columns and sizes of records; a size depends on the widths of both deltas, so on the record's place in a body.

    :param keys: the keys, in the order of the bodies
    :param values: the values, in the order of the bodies
    :param headers: the headers, in the order of the bodies; None if no record has any
    :param timestamps: CreateTime of each record in milliseconds, or of all
    """

    def __init__(
        self, keys: FlatColumn, values: FlatColumn, headers: HeaderColumn | None, timestamps: NDArray[np.int64]
    ) -> None:
        self.keys, self.values, self.headers = PrefixedColumn(keys), PrefixedColumn(values), headers
        self.timestamps = compact(timestamps)
        self._rows = len(keys.lengths)
        header_sizes = ZERO.widths if headers is None else headers.sizes
        self.sizes_without_deltas = compact(ZERO.widths + self.keys.sizes + self.values.sizes + header_sizes)
        widest_delta = int(self.timestamps.max()) - int(self.timestamps.min())
        self._timestamp_width = varint_width(widest_delta)

    @functools.cached_property
    def smallest_sizes(self) -> NDArray[np.int64]:
        """Bytes of each record, or of all, when it is the only one in its batch."""
        return _with_length(self.sizes_without_deltas + 2)

    @functools.cached_property
    def _smallest_totals(self) -> NDArray[np.int64]:
        """Bytes of the first n records for every n, if each were the only one in its batch."""
        totals = np.zeros(self._rows + 1, dtype=np.int64)
        np.cumsum(np.broadcast_to(self.smallest_sizes, self._rows), out=totals[1:])
        return totals

    def body_end(self, start: int, partition_end: int, payload_bytes_maximum: int) -> int:
        """Where the body that starts here is full; one record is always in it.

        :param start: its first record
        :param partition_end: where the records of its partition end
        :param payload_bytes_maximum: the most bytes that its records may take
        """
        totals = self._smallest_totals[start : partition_end + 1]
        records_maximum = max(int(np.searchsorted(totals, totals[0] + payload_bytes_maximum, side="right")) - 1, 1)
        # Timestamp deltas are taken for the widest of all, since they depend on where the body starts.
        lengths = part(self.sizes_without_deltas, slice(start, start + records_maximum)) + self._timestamp_width
        sizes = _with_length(lengths + offset_deltas(records_maximum).widths)
        fitting = int(np.searchsorted(np.cumsum(sizes), payload_bytes_maximum, side="right"))
        return start + max(fitting, 1)

    def time_ranges(self, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the timestamps of each body's first and of its latest record.

        :param starts: the first record of each body, the very first one included
        """
        if len(self.timestamps) == 1:
            times = np.broadcast_to(self.timestamps, len(starts))
            return times, times
        return self.timestamps[starts], np.maximum.reduceat(self.timestamps, starts)


def _with_length(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add the size of the length field itself to the lengths."""
    return varint_widths(lengths) + lengths


def write_bodies(records: RecordColumns, bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """Write some neighbouring bodies into one buffer.

    :param records: all records
    :param bounds: the first record of each of these bodies, and the end of the last one
    """
    rows = slice(int(bounds[0]), int(bounds[-1]))
    pieces = _pieces(records, bounds, rows)
    content, positions = concatenate(pieces, rows.stop - rows.start)
    shift = len(_before_length(records))
    for start, end in pairwise(positions[(bounds - bounds[0]) * len(pieces)].tolist()):
        yield content[start + shift : end + shift]


def _before_length(records: RecordColumns) -> list[Varints]:
    """Return the end of the record before, which is written with a record's first bytes: its number of headers, 0.

    It saves a view a record.
    """
    return [ZERO] if records.headers is None else []


def _pieces(records: RecordColumns, bounds: NDArray[np.int64], rows: slice) -> list[Piece]:
    counts = np.diff(bounds)
    offsets = _repeated_offset_deltas(counts)
    times = np.zeros(1, dtype=np.int64)
    if len(records.timestamps) > 1:
        times = compact(records.timestamps[rows] - np.repeat(records.timestamps[bounds[:-1]], counts))
    time_widths = varint_widths(times)
    lengths = compact(part(records.sizes_without_deltas, rows) + offsets.widths + time_widths)
    return grouped(
        [
            *_before_length(records),
            *varints(lengths, varint_widths(lengths)),
            ZERO,
            *varints(times, time_widths),
            offsets,
            *records.keys.pieces(rows),
            *records.values.pieces(rows),
            *([] if records.headers is None else records.headers.pieces(rows)),
        ]
    )


def offset_deltas(count: int) -> Varints:
    """Encode 0, 1, 2 and so on.

    :param count: how many of them
    """
    table = _offset_delta_table(max(count - 1, 4_095).bit_length())
    widest = varint_width(max(count - 1, 0))
    return Varints(words=table.words[:count], widths=table.widths[:count], narrowest=1, widest=widest)


@functools.lru_cache(maxsize=1)
def _offset_delta_table(bits: int) -> Varints:
    """Encode all numbers of so many bits; every flush needs the same ones."""
    numbers = np.arange(1 << bits)
    (table,) = varints(numbers, varint_widths(numbers))
    return table


def _repeated_offset_deltas(counts: NDArray[np.int64]) -> Varints:
    """Encode the offset deltas of neighbouring bodies of so many records each."""
    longest = offset_deltas(int(counts.max()))
    if len(counts) == 1:
        return longest
    return Varints(
        words=np.concatenate([longest.words[:count] for count in counts.tolist()]),
        widths=np.concatenate([longest.widths[:count] for count in counts.tolist()]),
        narrowest=1,
        widest=longest.widest,
    )

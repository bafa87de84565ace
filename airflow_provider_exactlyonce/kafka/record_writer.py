"""The records of a batch as bytes.

A record is, with varints for all numbers but the attributes::

    length | attributes 0 | timestamp delta | offset delta | key length | key | value length | value | headers
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import Column
from airflow_provider_exactlyonce.kafka.pieces import Piece, PrefixedColumn, concatenate, grouped, part
from airflow_provider_exactlyonce.kafka.record_headers import HeaderColumn
from airflow_provider_exactlyonce.kafka.varint import Varints, compact, varint_widths, varints

ZERO: Final = Varints(words=np.zeros(1, dtype=np.uint64), widths=np.ones(1, dtype=np.int64))
"""A record's attributes, and the number of its headers if it has none."""


class RecordColumns:
    """Columns and sizes of records; a size depends on the widths of both deltas, so on the record's place in a body.

    :param keys: the keys, in the order of the bodies
    :param values: the values, in the order of the bodies
    :param headers: the headers, in the order of the bodies; None if no record has any
    :param timestamps: CreateTime of each record in milliseconds, or of all
    """

    def __init__(
        self, keys: Column, values: Column, headers: HeaderColumn | None, timestamps: NDArray[np.int64]
    ) -> None:
        self.keys, self.values, self.headers = PrefixedColumn(keys), PrefixedColumn(values), headers
        self.timestamps = compact(timestamps)
        self._rows = len(keys.lengths)
        header_sizes = ZERO.widths if headers is None else headers.sizes
        self.sizes_without_deltas = compact(ZERO.widths + self.keys.sizes + self.values.sizes + header_sizes)
        widest_delta = int(self.timestamps.max()) - int(self.timestamps.min())
        self._timestamp_width = int(varint_widths(np.array([widest_delta, -widest_delta])).max())
        self._totals: dict[int, NDArray[np.int64]] = {}

    def smallest_sizes(self) -> NDArray[np.int64]:
        """Bytes of each record when it is the only one in its batch."""
        return np.broadcast_to(_with_length(self.sizes_without_deltas + 2), self._rows)

    def time_ranges(self, starts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the timestamps of each body's first and of its latest record.

        :param starts: the first record of each body, the very first one included
        """
        if len(self.timestamps) == 1:
            times = np.broadcast_to(self.timestamps, len(starts))
            return times, times
        return self.timestamps[starts], np.maximum.reduceat(self.timestamps, starts)

    def totals(self, delta_width: int) -> NDArray[np.int64]:
        """Bytes of the first n records for every n, if all offset deltas had this width, and timestamp deltas the most.

        :param delta_width: bytes of an offset delta
        """
        if delta_width not in self._totals:
            sizes = _with_length(self.sizes_without_deltas + self._timestamp_width + delta_width)
            totals = np.zeros(self._rows + 1, dtype=np.int64)
            np.cumsum(np.broadcast_to(sizes, self._rows), out=totals[1:])
            self._totals[delta_width] = totals
        return self._totals[delta_width]


def _with_length(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add the bytes of the length field to what it counts."""
    return varint_widths(lengths) + lengths


def write_bodies(records: RecordColumns, bounds: NDArray[np.int64]) -> Iterator[memoryview]:
    """Write some neighbouring bodies into one buffer.

    :param records: all records
    :param bounds: the first record of each of these bodies, and the end of the last one
    """
    rows = slice(int(bounds[0]), int(bounds[-1]))
    pieces = _pieces(records, bounds, rows)
    content, positions = concatenate(pieces, rows.stop - rows.start)
    for start, end in pairwise(positions[(bounds - bounds[0]) * len(pieces)].tolist()):
        yield content[start:end]


def _pieces(records: RecordColumns, bounds: NDArray[np.int64], rows: slice) -> list[Piece]:
    """What the records of these rows consist of."""
    counts = np.diff(bounds)
    offset_deltas = np.arange(rows.start, rows.stop) - np.repeat(bounds[:-1], counts)
    timestamp_deltas = np.zeros(1, dtype=np.int64)
    if len(records.timestamps) > 1:
        bases = np.repeat(records.timestamps[bounds[:-1]], counts)
        timestamp_deltas = records.timestamps[rows] - bases
    offset_widths, timestamp_widths = varint_widths(offset_deltas), varint_widths(timestamp_deltas)
    lengths = compact(part(records.sizes_without_deltas, rows) + offset_widths + timestamp_widths)
    before_key = [
        *varints(lengths, varint_widths(lengths)),
        ZERO,
        *varints(timestamp_deltas, timestamp_widths),
        *varints(offset_deltas, offset_widths),
        *records.keys.lengths(rows),
    ]
    key, value = records.keys.column.take(rows), records.values.column.take(rows)
    headers: list[Piece] = [[ZERO]] if records.headers is None else records.headers.pieces(rows)
    return [*grouped(before_key), key, records.values.lengths(rows), value, *headers]

"""The headers of records, from Spark's ``array<struct<key: string, value: binary>>``."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.byte_concat import PrefixedColumn, concatenate, grouped, part
from airflow_provider_exactlyonce.kafka.columns import FlatColumn, as_binary, flat_column, flat_rows, flat_validity
from airflow_provider_exactlyonce.kafka.varint import Varints, varint_widths, varints


class HeaderColumn:
    """The headers of each record: their number, then for each its key and its value, both after their lengths.

    :param counts: headers of each record
    :param encoded: the bytes of each record's headers
    """

    def __init__(self, counts: NDArray[np.int64], encoded: FlatColumn) -> None:
        self._counts, self._encoded = counts, encoded
        self._widths = varint_widths(counts)
        self.sizes: NDArray[np.int64] = self._widths + encoded.lengths

    def take(self, order: NDArray[np.int64]) -> HeaderColumn:
        """Take these rows in this order."""
        return HeaderColumn(self._counts[order], self._encoded.take(order))

    def pieces(self, rows: slice) -> list[Varints | FlatColumn]:
        """Return the encoded pieces of these rows' headers, in order."""
        return [*varints(self._counts[rows], part(self._widths, rows)), self._encoded.take(rows)]


def encode_headers(headers: pa.ListArray) -> HeaderColumn | None:
    """Encode the headers of every row; None if no row has any. The keys must not be null.

    :param headers: a list of structs a row, null for none; a struct's ``key`` is a string, its ``value`` binary
    :raises TypeError: for another type
    """
    offsets, counts, entries = _flat(headers)
    if not counts.any():
        return None
    keys = PrefixedColumn(flat_column(as_binary(entries.field("key"))))
    values = PrefixedColumn(flat_column(as_binary(entries.field("value"))))
    all_entries = slice(0, len(entries))
    pieces = grouped([*keys.pieces(all_entries), *values.pieces(all_entries)])
    content, positions = concatenate(pieces, len(entries))
    starts = positions[offsets[:-1] * len(pieces)]
    ends = positions[(offsets[:-1] + counts) * len(pieces)]
    return HeaderColumn(
        counts, FlatColumn(buffer=pa.py_buffer(content), starts=starts, lengths=ends - starts, valid=None)
    )


def rows_without_header_key(headers: pa.ListArray) -> NDArray[np.int64]:
    """Return the rows with a header that has a null key, which Kafka doesn't allow.

    :param headers: as for :func:`encode_headers`
    """
    offsets, counts, entries = _flat(headers)
    keys = entries.field("key")
    if not keys.null_count and not entries.null_count:
        return np.zeros(0, dtype=np.int64)
    missing = np.zeros(len(entries) + 1, dtype=np.int64)
    for array in (keys, entries):
        valid = flat_validity(array)
        if valid is not None:
            missing[1:] |= ~valid
    missing_before = np.cumsum(missing)
    return np.flatnonzero(missing_before[offsets[:-1] + counts] > missing_before[offsets[:-1]])


def _flat(headers: pa.ListArray) -> tuple[NDArray[np.int64], NDArray[np.int64], pa.StructArray]:
    """Return where each row's headers start, how many they are, and all of them."""
    if not (pa.types.is_list(headers.type) or pa.types.is_large_list(headers.type)) or not (
        pa.types.is_struct(headers.type.value_type)
        and {field.name for field in headers.type.value_type} == {"key", "value"}
    ):
        raise TypeError(f"headers must be array<struct<key: string, value: binary>>, found {headers.type}: cast them")
    offsets, counts, _ = flat_rows(headers)
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, counts, headers.values.slice(first, last - first)

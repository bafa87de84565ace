"""Concatenates columns of bytes and short numbers, row by row, without a Python object per row.

Arrow copies the bytes: each row is a few *views* (16 bytes each: a short piece itself, or where a longer one lies in a
column's buffer), and one cast of the views to binary puts every piece in its place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import FlatColumn, WordReader
from airflow_provider_exactlyonce.kafka.varint import Varints, compact, varint_widths, varints

NULL_LENGTH: Final = -1
INLINE_BYTES_MAXIMUM: Final = 12
BUFFER_STEP_BITS: Final = 30

Piece = FlatColumn | Sequence[Varints]
"""What becomes one view a row: its bytes in a column, or numbers of 12 bytes at most together."""


# Above a limit glibc gives freed memory back to the system, and the next flush pays for every page again, a third of
# its time. Freeing a block that was mapped by itself, though nobody touched it, raises that limit to twice its size.
np.empty(16 << 20, dtype=np.uint8)


class PrefixedColumn:
    """A column of byte strings, each after its length, as Kafka writes keys, values and headers.

    :param column: the byte strings
    """

    def __init__(self, column: FlatColumn) -> None:
        self.column = column
        self._lengths = compact(
            column.lengths if column.valid is None else np.where(column.valid, column.lengths, NULL_LENGTH)
        )
        self._longest = int(self._lengths.max())
        self._widths = varint_widths(self._lengths)
        self.sizes: NDArray[np.int64] = self._widths + np.maximum(self._lengths, 0)

    def pieces(self, rows: slice) -> list[Varints | FlatColumn]:
        """Return these rows' lengths, then their bytes unless all are empty."""
        lengths = varints(part(self._lengths, rows), part(self._widths, rows))
        return [*lengths, self.column.take(rows)] if self._longest > 0 else [*lengths]


def part(numbers: NDArray[np.int64], rows: slice) -> NDArray[np.int64]:
    """Take these rows' numbers; a single one is every row's."""
    return numbers if len(numbers) == 1 else numbers[rows]


def grouped(pieces: Sequence[Varints | FlatColumn]) -> list[Piece]:
    """Share out numbers that follow each other to as few views as hold them.

    :param pieces: numbers, each of 8 bytes at most, and columns
    """
    groups: list[Piece] = []
    numbers: list[Varints] = []
    free_bytes = 0
    for piece in pieces:
        if isinstance(piece, FlatColumn):
            groups.append(piece)
            free_bytes = 0
            continue
        if piece.widest > free_bytes:
            numbers = []
            groups.append(numbers)
            free_bytes = INLINE_BYTES_MAXIMUM
        numbers.append(piece)
        free_bytes -= piece.widest
    return groups


def concatenate(pieces: Sequence[Piece], rows: int) -> tuple[memoryview, NDArray[np.int64]]:
    """Write the pieces of each row, one row after the other; after the last row a zero byte.

    :param pieces: what each row consists of
    :param rows: how many rows there are, 1 or more
    :returns: the bytes, and where in them each piece of each row starts, then where the zero byte starts and ends
    """
    every_view = np.empty((rows * len(pieces) + 1, 2), dtype=np.uint64)
    every_view[-1] = 1, 0
    views = every_view[:-1].reshape(rows, len(pieces), 2)
    buffers: list[pa.Buffer] = []
    for index, piece in enumerate(pieces):
        if isinstance(piece, FlatColumn):
            buffers += _write_column(views[:, index], piece, len(buffers))
        else:
            _write_numbers(views[:, index], piece)
    array = pa.Array.from_buffers(pa.binary_view(), len(every_view), [None, pa.py_buffer(every_view), *buffers])
    _, offset_buffer, data = array.cast(pa.large_binary()).buffers()
    return memoryview(data).cast("B"), np.frombuffer(offset_buffer, dtype=np.int64)


def _write_numbers(views: NDArray[np.uint64], numbers: Sequence[Varints]) -> None:
    """Write numbers one after another: a view is 4 bytes of length, then 12 bytes of content."""
    low, high = np.zeros((2, 1), dtype=np.uint64)
    position = np.full(1, 32, dtype=np.uint64)
    first_bit = last_bit = 32  # between these the position is, whatever the row
    for number in numbers:
        # numpy shifts by 64 or more to 0, which also is what a difference below 0 wraps to.
        if first_bit < 64:
            low = low | (number.words << position)
        if last_bit >= 64:
            high = high | (number.words << (position - np.uint64(64)))
        if first_bit < 64 < last_bit + 8 * number.widest:
            high = high | (number.words >> (np.uint64(64) - position))
        position = position + (number.widths << 3).view(np.uint64)
        first_bit += 8 * number.narrowest
        last_bit += 8 * number.widest
    views[:, 0] = low | ((position - np.uint64(32)) >> np.uint64(3))
    views[:, 1] = high


def _write_column(views: NDArray[np.uint64], column: FlatColumn, first_buffer: int) -> list[pa.Buffer]:
    """Write a column's rows: longer ones than 12 bytes refer to the column's buffer, others must be inline.

    A view's position is an int32, so a large column is presented as several buffers that start ever later in it.
    """
    shortest, longest = int(column.lengths.min()), int(column.lengths.max())
    lengths = column.lengths.view(np.uint64)
    buffers: list[pa.Buffer] = []
    if longest > INLINE_BYTES_MAXIMUM:
        buffer_indexes = first_buffer + (column.starts >> BUFFER_STEP_BITS)
        positions = column.starts & ((1 << BUFFER_STEP_BITS) - 1)
        references = (buffer_indexes | (positions << 32)).view(np.uint64)
        buffers = [column.buffer.slice(start) for start in range(0, column.buffer.size, 1 << BUFFER_STEP_BITS)]
    if shortest > INLINE_BYTES_MAXIMUM:  # the first bytes would belong into the view too; only comparisons look there
        views[:, 0] = lengths
        views[:, 1] = references
        return buffers
    reader = WordReader(column.buffer)
    views[:, 0] = lengths | (reader.read(column.starts) << np.uint64(32))
    later_words = reader.read(column.starts + 4)
    if longest <= INLINE_BYTES_MAXIMUM:
        views[:, 1] = later_words
    else:
        views[:, 1] = np.where(column.lengths > INLINE_BYTES_MAXIMUM, references, later_words)
    return buffers

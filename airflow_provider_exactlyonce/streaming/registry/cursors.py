"""Reads many encoded records at once: field by field through all of them, instead of record by record.

The bytes of all records lie one after the other, and each record has a place up to which it is read. A step reads one
number, or one piece of bytes, of many records with a handful of numpy's operations, whatever their count is. A record
that turns out to be broken gets a reason and is read no further; the arrays keep a slot for it.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Places = NDArray[np.int64]
#: Positions of records, in their order, or all of them.
Rows = slice | Places

#: Every record.
ALL: Final = slice(None)
_LONGEST_NUMBER: Final = 10  # bytes of a variable-length number of 64 bits
_LIMIT: Final = divmod(10**38, 2**64)  # a decimal has 38 digits
_MARGIN: Final = 64  # bytes behind the last record, which a look beyond its end finds


class Cursor:
    """Where each of many records is read.

    :param values: binary, none of them null
    :param skipped: bytes at the start of each that are not read; of each, or of all
    :ivar reasons: {position of a record: why it can't be read}
    :ivar depth: of the part that is read now, as far as its reader counts
    """

    def __init__(self, values: pa.Array, skipped: Places | int) -> None:
        offsets = np.frombuffer(values.buffers()[1] or bytes(4), np.int32, len(values) + 1, values.offset * 4).astype(
            np.int64
        )
        content = np.frombuffer(values.buffers()[2] or b"", np.uint8)[offsets[0] : offsets[-1]]
        self._data: Final = np.concatenate((content, np.zeros(_MARGIN, np.uint8)))
        self._buffer: Final = pa.py_buffer(self._data)
        self._place: Final = offsets[:-1] - offsets[0] + skipped
        self._end: Final = offsets[1:] - offsets[0]
        self.reasons: Final[dict[int, str]] = {}
        self.depth = 0
        self.fail(ALL, self._place > self._end, "it is shorter than its head")

    def __len__(self) -> int:
        return len(self._place)

    def count(self, rows: Rows) -> int:
        """Return how many records these are."""
        return len(self) if isinstance(rows, slice) else len(rows)

    def chosen(self, rows: Rows, which: NDArray[np.bool_]) -> Rows:
        """Return the records of these that are true in a mask."""
        if isinstance(rows, slice):
            return np.flatnonzero(which)
        return rows[which]

    def fail(self, rows: Rows, which: NDArray[np.bool_] | None, reason: str) -> None:
        """Fail the records that are true in a mask, with a reason, unless they failed before.

        :param which: the mask, None for all of them
        """
        if which is not None and not which.any():
            return
        failed = rows if which is None else self.chosen(rows, which)
        for row in failed.tolist():  # type: ignore[union-attr]
            self.reasons.setdefault(row, reason)
        self._place[failed] = self._end[failed]

    def finish(self) -> None:
        """Give up the records that have more bytes than were read."""
        self.fail(ALL, self._place < self._end, "bytes follow its last field")

    def left(self, rows: Rows) -> Places:
        """Return how many bytes are not read yet, of each."""
        remaining: Places = self._end[rows] - self._place[rows]
        return remaining

    def number(self, rows: Rows, what: str) -> Places:
        """Read a variable-length number without a sign.

        :param what: is read, for the reason of those that end in it
        """
        place = self._place[rows].copy()
        byte = self._data[place]
        value = (byte & 0x7F).astype(np.uint64)
        place += 1
        unfinished = np.flatnonzero(byte & 0x80)
        for position in range(1, _LONGEST_NUMBER):
            if not len(unfinished):
                break
            byte = self._data[np.minimum(place[unfinished], len(self._data) - 1)]
            value[unfinished] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * position)
            place[unfinished] += 1
            if position == _LONGEST_NUMBER - 1:
                too_long = np.zeros(len(place), np.bool_)
                is_whole = place[unfinished] <= self._end[rows][unfinished]  # else the next record's bytes are in it
                too_long[unfinished[(byte > 1) & is_whole]] = True
                value[too_long] = 0
                self.fail(rows, too_long, f"{what} has more than 64 bits")
                place = np.where(too_long, self._place[rows], place)
            unfinished = unfinished[byte >= 0x80]
        self._move(rows, place, what, value)
        numbers: Places = value.view(np.int64)
        return numbers

    def signed(self, rows: Rows, what: str) -> Places:
        """Read a variable-length number in zigzag encoding."""
        return from_zigzag(self.number(rows, what))

    def fixed(self, rows: Rows, kind: str, what: str) -> NDArray[Any]:
        """Read a number that has as many bytes as its type.

        :param kind: numpy's type, of 8 bytes at most
        """
        place, size = self._place[rows].copy(), np.dtype(kind).itemsize
        numbers: NDArray[Any] = self._data[place[:, None] + np.arange(size)].view(kind)[:, 0]
        self._move(rows, place + size, what)
        return numbers

    def piece(self, rows: Rows, length: Places | int, what: str) -> Piece:
        """Take bytes of a length.

        :param length: of each, or of all
        """
        place = self._place[rows].copy()
        remaining = self._end[rows] - place
        size = np.full(len(place), length, np.int64) if isinstance(length, int) else length
        wrong = (size < 0) | (size > remaining)
        if wrong.any():
            size = np.where(wrong, 0, size)
            self._place[rows] = place + size
            self.fail(rows, wrong, f"it ends in the middle of {what}")
        else:
            self._place[rows] = place + size
        return Piece(self._buffer, self._data, place, size)

    def _move(self, rows: Rows, place: Places, what: str, value: NDArray[np.uint64] | None = None) -> None:
        past_end = place > self._end[rows]
        self._place[rows] = place
        if past_end.any():
            if value is not None:
                value[past_end] = 0
            self.fail(rows, past_end, f"it ends in the middle of {what}")


def from_zigzag(numbers: Places) -> Places:
    """Return the signed numbers that are written as these in zigzag encoding."""
    value = numbers.view(np.uint64)
    signed: Places = ((value >> np.uint64(1)) ^ (np.uint64(0) - (value & np.uint64(1)))).view(np.int64)
    return signed


class Piece:
    """Bytes of many records, where they lie.

    :ivar size: of each
    """

    def __init__(self, buffer: pa.Buffer, data: NDArray[np.uint8], start: Places, size: Places) -> None:
        self._buffer: Final = buffer
        self._data: Final = data
        self._start: Final = start
        self.size: Final = size

    def array(self) -> pa.Array:
        """Return them as a binary array.

        The records lie in the array's order. So start and end of each, one after the other, are the offsets of an array
        whose every other slot is wanted.
        """
        count = len(self.size)
        if not count:
            return pa.array([], pa.binary())
        offsets = np.empty(2 * count, np.int32)
        offsets[0::2] = self._start
        offsets[1::2] = self._start + self.size
        slots = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, pa.py_buffer(offsets), self._buffer])
        return slots.take(pa.array(np.arange(0, 2 * count, 2)))

    def integers(self) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Return them as two's complement integers of 128 bits: two words each, the lower first.

        Their first byte is the highest. And return which have more digits than a decimal.
        """
        place = (self._start + self.size)[:, None] + np.arange(-16, 0)
        digits = self._data[np.maximum(place, 0)]
        negative = (self.size > 0) & (self._data[np.minimum(self._start, len(self._data) - 1)] >= 0x80)
        sign = np.where(negative, 0xFF, 0).astype(np.uint8)
        digits = np.where(np.arange(16) >= (16 - self.size)[:, None], digits, sign[:, None])
        larger = (digits[:, 0] >= 0x80) != negative
        # What stands before them is judged one by one: side by side, each would take the room of the longest.
        for row in np.flatnonzero(self.size > 16).tolist():
            leading_bytes = self._data[self._start[row] : self._start[row] + self.size[row] - 16]
            larger[row] |= (leading_bytes != sign[row]).any()
        words = digits.view(">u8").astype(np.uint64)
        high, low = words[:, 0].view(np.int64), words[:, 1]
        larger |= (high > _LIMIT[0]) | ((high == _LIMIT[0]) & (low >= _LIMIT[1]))
        larger |= (high < ~_LIMIT[0]) | ((high == ~_LIMIT[0]) & (low <= 2**64 - _LIMIT[1]))
        return words[:, ::-1], larger

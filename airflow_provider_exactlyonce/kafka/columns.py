"""Arrow binary columns as flat buffers, so that whole columns are worked on without a Python object per row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

WORD_BYTES = 8

Number = TypeVar("Number", np.int32, np.int64)


@dataclass(frozen=True, kw_only=True)
class FlatColumn:
    """The rows of one Arrow binary array, as positions in its data buffer.

    :param buffer: the Arrow data buffer, shared with the array and never copied
    :param starts: where each row's bytes start in the buffer
    :param lengths: bytes of each row; 0 for null, whatever lies under it in the buffer
    :param valid: False for each null row, or None if there is no null
    """

    buffer: pa.Buffer
    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    valid: NDArray[np.bool_] | None

    def take(self, order: NDArray[np.int64] | slice) -> FlatColumn:
        """Take these rows in this order; the data buffer stays as it is."""
        return FlatColumn(
            buffer=self.buffer,
            starts=self.starts[order],
            lengths=self.lengths[order],
            valid=None if self.valid is None else self.valid[order],
        )


def flat_column(array: pa.Array) -> FlatColumn:
    """Look at a binary or large_binary array (slices too) as flat buffers.

    :param array: a pyarrow Array of type binary or large_binary
    :raises TypeError: for anything else
    """
    if not isinstance(array, pa.BinaryArray | pa.LargeBinaryArray):
        kind = getattr(array, "type", None) or type(array).__name__
        raise TypeError(f"keys and values must be one Arrow array of binary or large_binary, found {kind}: cast it")
    offsets, lengths, valid = flat_rows(array)
    data_buffer = array.buffers()[2]
    buffer = pa.py_buffer(b"") if data_buffer is None else data_buffer
    return FlatColumn(buffer=buffer, starts=offsets[:-1], lengths=lengths, valid=valid)


def as_binary(array: pa.Array) -> pa.Array:
    """See strings as bytes, valid UTF-8 or not; nothing is copied."""
    if pa.types.is_string(array.type):
        return array.view(pa.binary())
    return array.view(pa.large_binary()) if pa.types.is_large_string(array.type) else array


def flat_rows(array: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_] | None]:
    """Look at an array of variable length (slices too) as flat buffers.

    :param array: a binary or list array, or a large one
    :returns: where each row starts, then where the last one ends; the rows' lengths, 0 for null; and False for each
        null row, None if there is no null
    """
    rows = len(array)
    offsets = np.zeros(1, dtype=np.int64)
    if rows:  # Arrow allows an empty array to have no offsets at all
        is_large = pa.types.is_large_binary(array.type) or pa.types.is_large_list(array.type)
        offset_type = np.int64 if is_large else np.int32
        flat: NDArray[Any] = np.frombuffer(array.buffers()[1], dtype=offset_type, count=array.offset + rows + 1)
        offsets = flat[array.offset :].astype(np.int64)
    lengths, valid = np.diff(offsets), flat_validity(array)
    if valid is not None:
        lengths *= valid
    return offsets, lengths, valid


def flat_validity(array: pa.Array) -> NDArray[np.bool_] | None:
    """Return False for each null row, or None if there is no null.

    :param array: any array with a validity bitmap
    """
    if not array.null_count:
        return None
    # Not to_numpy(): it imports pandas, a second of every driver's first batch.
    bits = np.frombuffer(array.buffers()[0], dtype=np.uint8)
    flags = np.unpackbits(bits, count=array.offset + len(array), bitorder="little")
    return flags[array.offset :].view(np.bool_)


def flat_numbers(array: pa.Array, kind: type[Number]) -> tuple[NDArray[Number], NDArray[np.bool_] | None]:
    """Look at an integer array (slices too) as a flat buffer.

    :param array: a pyarrow Array of integers of that kind
    :param kind: numpy's type of them
    :returns: the numbers, anything for null; and False for each null row, None if there is no null
    """
    numbers: NDArray[Number] = np.frombuffer(array.buffers()[1], dtype=kind, count=array.offset + len(array))
    return numbers[array.offset :], flat_validity(array)


class WordReader:
    """Reads eight bytes at any position of a buffer, as little-endian integers; bytes past the end read as 0.

    :param buffer: the buffer to read from; shorter than a word, it is copied
    """

    def __init__(self, buffer: pa.Buffer) -> None:
        data = buffer if buffer.size >= WORD_BYTES else buffer.to_pybytes().ljust(WORD_BYTES, b"\0")
        self._last = len(memoryview(data)) - WORD_BYTES
        self._windows: NDArray[np.uint64] = np.ndarray(
            shape=(self._last + 1,), dtype="<u8", buffer=memoryview(data), strides=(1,)
        )

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Read the words at these positions.

        :param positions: byte positions, each at least 0
        """
        if positions.size == 0 or int(positions.max()) <= self._last:
            return self._windows[positions]
        inside = np.minimum(positions, self._last)
        # numpy shifts by 64 or more to 0, so a position at or past the end reads as 0.
        return self._windows[inside] >> ((positions - inside) * 8).astype(np.uint64)


def stable_order(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Sort these numbers, as the order of their positions; equal ones keep theirs.

    :param numbers: integers, each at least 0
    """
    highest = int(numbers.max()) if numbers.size else 0
    narrow: type[np.unsignedinteger[Any]] = np.uint32
    if highest < 1 << 16:  # numpy sorts 8 and 16 bit integers by radix, many times faster than wider ones
        narrow = np.uint8 if highest < 1 << 8 else np.uint16
    elif highest >= 1 << 32:
        narrow = np.uint64
    return np.argsort(numbers.astype(narrow), kind="stable")

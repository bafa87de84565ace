"""The partition of a key, exactly as Kafka's Java client chooses it (murmur2), for whole columns at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import FlatColumn, WordReader, flat_column, stable_order

SEED: Final = 0x9747B28C
MULTIPLIER: Final = 0x5BD1E995
MASK_32: Final = 0xFFFFFFFF
NO_PARTITION: Final = -1
"""What a row without a key gets: it may go to any partition."""

SCALAR_ROWS_MAXIMUM: Final = 32
"""With no more rows than this left, their words are hashed row by row: one call of numpy costs more than all."""


def partitions_for_keys(keys: pa.BinaryArray | pa.LargeBinaryArray, partition_count: int) -> NDArray[np.int32]:
    """Choose the partition of each key; -1 for null. An empty key is a key.

    :param keys: one Arrow array of binary or large_binary
    :param partition_count: the topic's partitions
    """
    if not 1 <= partition_count <= 0x7FFFFFFF:
        raise ValueError(f"partition_count must be 1 or more, found {partition_count}")
    column = flat_column(keys)
    positive = _murmur2(column) & np.uint32(0x7FFFFFFF)
    partitions = (positive % np.uint32(partition_count)).astype(np.int32)
    if column.valid is not None:
        partitions[~column.valid] = NO_PARTITION
    return partitions


def _murmur2(column: FlatColumn) -> NDArray[np.uint32]:
    reader = WordReader(column.buffer)
    word_counts = column.lengths >> 2
    hashes = np.uint32(SEED) ^ column.lengths.astype(np.uint32)
    if word_counts.size and int(word_counts.min()) == int(word_counts.max()):
        _mix_words(hashes, column.starts, word_counts, column.buffer, reader)
    else:
        # Longest first: the rows that still have a word left are then always the first ones, however the lengths mix.
        order = stable_order(word_counts.max(initial=0) - word_counts)
        ordered = hashes[order]
        _mix_words(ordered, column.starts[order], word_counts[order], column.buffer, reader)
        hashes[order] = ordered
    _mix_tail(hashes, column, reader)
    hashes ^= hashes >> np.uint32(13)
    hashes *= np.uint32(MULTIPLIER)
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mix_words(
    hashes: NDArray[np.uint32],
    starts: NDArray[np.int64],
    word_counts: NDArray[np.int64],
    buffer: pa.Buffer,
    reader: WordReader,
) -> None:
    """Mix every whole word of every row into its hash, in place; the rows stand in falling order of their words."""
    ascending = word_counts[::-1]
    rows = len(hashes)
    active = rows - int(np.searchsorted(ascending, 0, side="right"))
    index = 0
    while active > SCALAR_ROWS_MAXIMUM:
        words = reader.read(starts[:active] + 4 * index).astype(np.uint32)
        hashes[:active] *= np.uint32(MULTIPLIER)
        hashes[:active] ^= _scramble(words)
        index += 1
        active = rows - int(np.searchsorted(ascending, index, side="right"))
    for row in range(active):
        hashes[row] = _mix_rest(int(hashes[row]), buffer, int(starts[row]) + 4 * index, int(word_counts[row]) - index)


def _mix_rest(hashed: int, buffer: pa.Buffer, position: int, words: int) -> int:
    flat: NDArray[Any] = np.frombuffer(buffer.slice(position, 4 * words), dtype="<u4")
    for scrambled in _scramble(flat.astype(np.uint32)).tolist():
        hashed = (hashed * MULTIPLIER & MASK_32) ^ scrambled
    return hashed


def _scramble(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Scramble words in place, as murmur2 does before it mixes them into the hash."""
    words *= np.uint32(MULTIPLIER)
    words ^= words >> np.uint32(24)
    words *= np.uint32(MULTIPLIER)
    return words


def _mix_tail(hashes: NDArray[np.uint32], column: FlatColumn, reader: WordReader) -> None:
    """Mix the one to three bytes after the last whole word into the hash, in place."""
    tail_bytes = (column.lengths & 3).astype(np.uint32)
    if not tail_bytes.any():
        return
    tails = reader.read(column.starts + (column.lengths & ~3)).astype(np.uint32)
    tails &= (np.uint32(1) << (tail_bytes * np.uint32(8))) - np.uint32(1)
    mixed = (hashes ^ tails) * np.uint32(MULTIPLIER)
    np.copyto(hashes, mixed, where=tail_bytes > 0)

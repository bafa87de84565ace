"""Kafka's variable-length integers (zigzag, 7 bits a byte), for whole columns at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import WORD_BYTES

WIDTH_LIMITS: Final = (1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 34)
"""Non-negative numbers below the n-th limit take n + 1 bytes; no 32 bit integer takes more than 5."""

VARLONG_BYTES_MAXIMUM: Final = 10
"""A 64 bit integer takes at most so many bytes."""


@dataclass(frozen=True, kw_only=True)
class Varints:
    """Encoded numbers, one for each row or a single one that all rows share.

    :param words: their bytes, as little-endian words
    :param widths: how many bytes of each word count, at most 8
    """

    words: NDArray[np.uint64]
    widths: NDArray[np.int64]


def compact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return one number for all when they are equal, so that arithmetic with it costs nothing and broadcasts.

    :param numbers: a number a row
    """
    return numbers[:1] if numbers.size > 1 and numbers.min() == numbers.max() else numbers


def zigzag(numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Map signed integers to unsigned ones, small to small: 0, -1, 1, -2 and so on to 0, 1, 2, 3.

    :param numbers: 64 bit integers
    """
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def varint_widths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each number takes.

    :param numbers: 64 bit integers
    """
    unsigned = zigzag(numbers)
    widths = np.ones(numbers.shape, dtype=np.int64)
    highest = int(unsigned.max()) if unsigned.size else 0
    for width in range(1, VARLONG_BYTES_MAXIMUM):
        limit = 1 << (7 * width)
        if highest < limit:
            break
        widths += unsigned >= np.uint64(limit)
    return compact(widths)


def varints(numbers: NDArray[np.int64], widths: NDArray[np.int64]) -> list[Varints]:
    """Encode numbers: their first eight bytes, then in a second part, if any takes more than eight, the others.

    :param numbers: 64 bit integers
    :param widths: their widths, from :func:`varint_widths`
    """
    unsigned = zigzag(numbers)
    widest = int(widths.max()) if widths.size else 1
    if widest <= WORD_BYTES:
        return [Varints(words=_spread(unsigned, widths), widths=widths)]
    return [
        Varints(words=_spread(unsigned, widths), widths=np.minimum(widths, WORD_BYTES)),
        Varints(
            words=_spread(unsigned >> np.uint64(7 * WORD_BYTES), np.maximum(widths - WORD_BYTES, 1)),
            widths=np.maximum(widths - WORD_BYTES, 0),
        ),
    ]


def _spread(unsigned: NDArray[np.uint64], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Put seven bits into each byte of a word; the eighth says that another byte follows."""
    words = unsigned & np.uint64(0x7F)
    for index in range(1, min(int(widths.max(initial=1)), WORD_BYTES)):
        words |= ((unsigned >> np.uint64(7 * index)) & np.uint64(0x7F)) << np.uint64(8 * index)
    # numpy shifts by 64 or more to 0, less 1 makes that a word of ones: all eight bytes are followed by another.
    followed = (np.uint64(1) << (8 * (widths - 1)).astype(np.uint64)) - np.uint64(1)
    return words | (followed & np.uint64(0x8080808080808080))

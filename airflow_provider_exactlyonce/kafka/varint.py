"""Kafka's variable-length integers (zigzag, 7 bits a byte), for whole columns at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from airflow_provider_exactlyonce.kafka.columns import WORD_BYTES

WIDTH_LIMITS: Final = tuple(1 << (7 * width - 1) for width in range(1, 10))
"""Non-negative numbers below the n-th limit take at most n bytes."""

# By width: what says in each byte but the last that another follows.
_FOLLOWED: Final = np.array([0x8080808080808080 & (1 << 8 * max(width - 1, 0)) - 1 for width in range(11)], np.uint64)


@dataclass(frozen=True, kw_only=True)
class Varints:
    """Short pieces of bytes, one for each row or a single one that all rows share.

    :param words: their bytes, as little-endian words
    :param widths: how many bytes of each word count
    :param narrowest: no width is less
    :param widest: no width is more; 8 at most
    """

    words: NDArray[np.uint64]
    widths: NDArray[np.int64]
    narrowest: int
    widest: int


def compact(numbers: NDArray[Any]) -> NDArray[Any]:
    """Return one number for all when they are equal, so that arithmetic with it costs nothing and broadcasts.

    :param numbers: a number a row
    """
    return numbers[:1] if numbers.size > 1 and numbers.min() == numbers.max() else numbers


def varint_width(number: int) -> int:
    """How many bytes a number takes.

    :param number: a 64 bit integer
    """
    magnitude = number if number >= 0 else ~number
    return magnitude.bit_length() // 7 + 1


def varint_widths(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes each number takes; a single width if it is the same for all.

    :param numbers: 64 bit integers, one at least
    """
    lowest = int(numbers.min())
    if lowest < 0:
        numbers = numbers ^ (numbers >> 63)
        lowest = int(numbers.min())
    narrowest, widest = varint_width(lowest), varint_width(int(numbers.max()))
    widths = np.full(numbers.shape if widest > narrowest else 1, narrowest, dtype=np.int64)
    for limit in WIDTH_LIMITS[narrowest - 1 : widest - 1]:
        widths += numbers >= limit
    return widths


def varints(numbers: NDArray[np.int64], widths: NDArray[np.int64]) -> list[Varints]:
    """Encode numbers: their first eight bytes, then in a second piece, if any takes more than eight, the others.

    :param numbers: 64 bit integers, one at least
    :param widths: their widths, from :func:`varint_widths`
    """
    unsigned = (numbers << 1).view(np.uint64)
    if int(numbers.min()) < 0:
        unsigned ^= (numbers >> 63).view(np.uint64)
    narrowest, widest = int(widths.min()), int(widths.max())
    first = Varints(
        words=_spread(unsigned, widths, widest),
        widths=np.minimum(widths, WORD_BYTES) if widest > WORD_BYTES else widths,
        narrowest=min(narrowest, WORD_BYTES),
        widest=min(widest, WORD_BYTES),
    )
    if widest <= WORD_BYTES:
        return [first]
    rest_widths = np.maximum(widths - WORD_BYTES, 0)
    rest = Varints(
        words=_spread(unsigned >> np.uint64(7 * WORD_BYTES), rest_widths, widest - WORD_BYTES),
        widths=rest_widths,
        narrowest=max(narrowest - WORD_BYTES, 0),
        widest=widest - WORD_BYTES,
    )
    return [first, rest]


def _spread(unsigned: NDArray[np.uint64], widths: NDArray[np.int64], widest: int) -> NDArray[np.uint64]:
    """Put seven bits into each byte of a word; the eighth says that another byte follows."""
    if widest <= 1:
        return unsigned
    words = unsigned & np.uint64(0x7F)
    for index in range(1, min(widest, WORD_BYTES)):
        septets = unsigned >> np.uint64(7 * index)
        septets &= np.uint64(0x7F)
        septets <<= np.uint64(8 * index)
        words |= septets
    words |= _FOLLOWED.take(widths)
    return words

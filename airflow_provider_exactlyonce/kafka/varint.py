"""Kafka's variable-length integers (zigzag, 7 bits a byte), for whole columns at once."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

VARINT_BYTES_MAXIMUM: Final = 5
"""A 32 bit integer takes at most so many bytes."""

WIDTH_LIMITS: Final = (1 << 6, 1 << 13, 1 << 20, 1 << 27, 1 << 31)
"""Non-negative numbers below the n-th limit take n + 1 bytes."""


def varint_widths(numbers: NDArray[Any]) -> NDArray[np.int64]:
    """How many bytes each number takes as a varint.

    :param numbers: 32 bit integers, each -1 (null) or more
    """
    widths = np.ones(numbers.shape, dtype=np.int64)
    highest = int(numbers.max()) if numbers.size else 0
    for limit in WIDTH_LIMITS[:-1]:
        if highest < limit:
            break
        widths += numbers >= limit
    return widths


def varint_words(numbers: NDArray[Any], widths: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Encode each number, as the low bytes of a little-endian word.

    :param numbers: 32 bit integers, each -1 (null) or more
    :param widths: their widths, from :func:`varint_widths`
    """
    zigzag = np.where(numbers < 0, 1, numbers.astype(np.int64) << 1).astype(np.uint64)
    words = zigzag & np.uint64(0x7F)
    highest = int(widths.max()) if widths.size else 1
    for index in range(1, highest):
        septet = (zigzag >> np.uint64(7 * index)) & np.uint64(0x7F)
        words |= septet << np.uint64(8 * index)
        more_follows = (widths > index).astype(np.uint64)
        words |= more_follows << np.uint64(8 * index - 1)
    return words

"""Compression of record batches, in the framings that Kafka's Java client writes and every client reads.

The codecs are Arrow's. Of its framings gzip's and zstd's are Kafka's too. For snappy Kafka has the one of the xerial
library. In LZ4 frames Kafka's Java clients accept only blocks that don't refer to each other, and Arrow's do.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import SettingRefusedError

ATTRIBUTES: Final[Mapping[str, int]] = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
"""What a batch's attributes say of its codec."""

_ARROW_NAMES: Final = {"lz4": "lz4_raw"}
_DEFAULT_LEVELS: Final = {"gzip": 6, "zstd": 3}  # the Java client's; Arrow's own are 9 and 1

BLOCK_BYTES: Final = 1 << 16

_XERIAL_HEADER: Final = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)
_XERIAL_LENGTH: Final = struct.Struct(">I")

# Magic, then version 1 with independent blocks and neither checksums nor content size, blocks of at most 64 KiB, and
# the second byte of the xxh32 of these two bytes.
_LZ4_HEADER: Final = struct.pack("<IBBB", 0x184D2204, 0x60, 0x40, 0x82)
_LZ4_LENGTH: Final = struct.Struct("<I")
_LZ4_STORED: Final = 1 << 31
_LZ4_END: Final = _LZ4_LENGTH.pack(0)


@dataclass(frozen=True)
class Compression:
    """A codec and its level.

    :param codec: none, gzip, snappy, lz4 or zstd
    :param level: 1 to 9 for gzip (default 6), 1 to 12 for lz4 (default 1), up to 22 for zstd (default 3)
    :raises SettingRefusedError: for another codec, a level that the codec hasn't, or any level where it has none
    """

    codec: str = "none"
    level: int | None = None

    def __post_init__(self) -> None:
        if self.codec not in ATTRIBUTES:
            reason = "Kafka has no other codecs"
            raise SettingRefusedError("compression", self.codec, " or ".join(ATTRIBUTES), reason)
        if self.level is None:
            return
        arrow_name = _ARROW_NAMES.get(self.codec, self.codec)
        if self.codec == "none" or not pa.Codec.supports_compression_level(arrow_name):
            raise SettingRefusedError("compression level", self.level, None, f"{self.codec} has no levels")
        lowest = pa.Codec.minimum_compression_level(arrow_name)
        highest = pa.Codec.maximum_compression_level(arrow_name)
        if isinstance(self.level, bool) or not isinstance(self.level, int) or not lowest <= self.level <= highest:
            required = f"a whole number from {lowest} to {highest}"
            raise SettingRefusedError("compression level", self.level, required, f"{self.codec} has no other levels")

    @property
    def attributes(self) -> int:
        """The codec's bits in a batch's attributes."""
        return ATTRIBUTES[self.codec]

    def compress(self, content: memoryview) -> bytes | memoryview:
        """Compress a batch's records; without a codec they are returned as they are.

        :param content: the records' bytes
        """
        if self.codec == "none":
            return content
        level = self.level if self.level is not None else _DEFAULT_LEVELS.get(self.codec)
        codec = pa.Codec(_ARROW_NAMES.get(self.codec, self.codec), compression_level=level)
        if self.codec == "snappy":
            return _xerial_frame(codec, content)
        if self.codec == "lz4":
            return _lz4_frame(codec, content)
        return codec.compress(content, asbytes=True)  # type: ignore[no-any-return]


UNCOMPRESSED: Final = Compression()

PLAIN_BYTES_MAXIMUM: Final = 16 << 20
"""No batch is larger before compression: many readers unpack one as a whole."""

_MARGIN: Final = 1.25  # a batch that turns out too large is compressed twice


class Shrinkage:
    """How much smaller a topic's records become, as seen so far: batches are cut before they are compressed.

    :param compression: how they are compressed
    """

    def __init__(self, compression: Compression) -> None:
        self._packs: Final = compression.codec != "none"
        self._ratio = 1.0

    def plain_bytes(self, limit_bytes: int) -> int:
        """Return how many bytes to compress at a time.

        :param limit_bytes: what a compressed batch may take
        """
        if not self._packs:
            return limit_bytes
        return max(limit_bytes, min(int(limit_bytes / (self._ratio * _MARGIN)), PLAIN_BYTES_MAXIMUM))

    def observe(self, sizes: Iterable[tuple[int, int]], limit_bytes: int) -> None:
        """Learn from batches, the worst of them; small ones tell little, and fit in any case.

        :param sizes: the bytes of each before and after compression
        :param limit_bytes: what a compressed batch may take
        """
        self._ratio = max((packed / plain for plain, packed in sizes if 2 * plain >= limit_bytes), default=self._ratio)


def _xerial_frame(codec: pa.Codec, content: memoryview) -> bytes:
    parts = [_XERIAL_HEADER]
    for start in range(0, len(content), BLOCK_BYTES):
        block = codec.compress(content[start : start + BLOCK_BYTES], asbytes=True)
        parts += (_XERIAL_LENGTH.pack(len(block)), block)
    return b"".join(parts)


def _lz4_frame(codec: pa.Codec, content: memoryview) -> bytes:
    parts: list[bytes | memoryview] = [_LZ4_HEADER]
    for start in range(0, len(content), BLOCK_BYTES):
        plain = content[start : start + BLOCK_BYTES]
        block = codec.compress(plain, asbytes=True)
        if len(block) < len(plain):
            parts += (_LZ4_LENGTH.pack(len(block)), block)
        else:  # a block may not be longer than the largest block size, which Java's readers allocate
            parts += (_LZ4_LENGTH.pack(len(plain) | _LZ4_STORED), plain)
    parts.append(_LZ4_END)
    return b"".join(parts)

"""How much larger records may get when a broker recompresses them to a topic's ``compression.type``.

Kept apart from our own compression: its libraries start threads, and the process that Spark's Python workers are
forked from must have none.
"""

from __future__ import annotations

from typing import Final

_LENGTH_BYTES: Final = 4  # before each block of snappy and lz4
_SNAPPY_BLOCK_BYTES: Final = 1 << 15  # of SnappyOutputStream
_LZ4_BLOCK_BYTES: Final = 1 << 16  # of Lz4BlockOutputStream


def growth(codec: str, plain_bytes: int) -> int:
    """Return by how many bytes a broker's compression may make records larger at most; 0 without a codec.

    These are the bounds that the libraries guarantee, whatever the level, and what Kafka's streams put around them:

    * gzip: zlib's ``deflateBound``, for blocks with the fixed code, which other zlibs write also where stored ones
      would be shorter; a header of 10 bytes and a trailer of 8
    * snappy: ``MaxCompressedLength`` of each block of xerial's stream, before it its length; a header of 16 bytes
    * lz4: ``Lz4BlockOutputStream`` stores a block that would grow; before it its length, a header of 7 bytes, 4 at the
      end
    * zstd: ``ZSTD_compressBound``; a header of 18 bytes at most, and an empty last block

    :param codec: a topic's ``compression.type``
    :param plain_bytes: of the records
    """
    match codec:
        case "gzip":
            return (plain_bytes >> 3) + (plain_bytes >> 8) + (plain_bytes >> 9) + 4 + 18
        case "snappy":
            return plain_bytes // 6 + (32 + _LENGTH_BYTES) * -(-plain_bytes // _SNAPPY_BLOCK_BYTES) + 16
        case "lz4":
            return _LENGTH_BYTES * -(-plain_bytes // _LZ4_BLOCK_BYTES) + 7 + 4
        case "zstd":
            return (plain_bytes >> 8) + 64 + 18 + 3
    return 0

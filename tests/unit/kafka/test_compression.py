"""Compressed bodies have Kafka's framing, undone here step by step."""

from __future__ import annotations

import gzip
import random
import struct

import pyarrow as pa
import pytest
import xxhash

from airflow_provider_exactlyonce.exceptions import SettingRefusedError
from airflow_provider_exactlyonce.kafka.compression import (
    ATTRIBUTES,
    BLOCK_BYTES,
    PLAIN_BYTES_MAXIMUM,
    UNCOMPRESSED,
    Compression,
    Shrinkage,
)

CONTENTS = {
    "one byte": b"x",
    "text": "Käse und 鍵 ".encode() * 40_000,
    "noise": random.Random(1).randbytes(3 * BLOCK_BYTES + 5),
    "one block": b"z" * BLOCK_BYTES,
    "noise amid text": b"a" * BLOCK_BYTES + random.Random(2).randbytes(BLOCK_BYTES) + b"b" * 10,
}


def undo(codec: str, packed: bytes) -> bytes:
    if codec == "gzip":
        return gzip.decompress(packed)
    if codec == "snappy":
        return undo_xerial(packed)
    if codec == "lz4":
        return undo_lz4(packed)
    return pa.input_stream(pa.py_buffer(packed), compression="zstd").read()  # type: ignore[no-any-return]


def undo_xerial(packed: bytes) -> bytes:
    assert packed[:16] == b"\x82SNAPPY\0\0\0\0\1\0\0\0\1"
    plain, position = b"", 16
    while position < len(packed):
        (length,) = struct.unpack_from(">I", packed, position)
        block = packed[position + 4 : position + 4 + length]
        plain += pa.Codec("snappy").decompress(block, decompressed_size=snappy_length(block), asbytes=True)
        position += 4 + length
    return plain


def snappy_length(block: bytes) -> int:
    """A block begins with its plain length, as a varint without zigzag."""
    length = 0
    for index, byte in enumerate(block):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return length
    raise AssertionError("the length has no end")


def undo_lz4(packed: bytes) -> bytes:
    magic, flags, block_size, checksum = struct.unpack_from("<IBBB", packed)
    assert (magic, flags) == (0x184D2204, 0b01_1_0_0_0_0_0), "version 1, independent blocks, nothing else"
    assert checksum == xxhash.xxh32(bytes([flags, block_size])).intdigest() >> 8 & 0xFF
    assert block_size >> 4 == 4, "blocks of 64 KiB"
    assert packed[-4:] == bytes(4)
    plain, position = b"", 7
    while position < len(packed) - 4:
        (length,) = struct.unpack_from("<I", packed, position)
        stored, length = length >> 31, length & 0x7FFFFFFF
        assert length <= BLOCK_BYTES
        block = packed[position + 4 : position + 4 + length]
        if not stored:  # alone, so that a block that refers to an earlier one fails
            frame = packed[:7] + struct.pack("<I", length) + block + bytes(4)
            block = pa.input_stream(pa.py_buffer(frame), compression="lz4").read()
        plain += block
        position += 4 + length
    assert pa.input_stream(pa.py_buffer(packed), compression="lz4").read() == plain
    return plain


@pytest.mark.parametrize("content", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("codec", [name for name in ATTRIBUTES if name != "none"])
def test_every_codec_is_undone_by_its_framing(codec: str, content: bytes) -> None:
    assert undo(codec, bytes(Compression(codec).compress(memoryview(content)))) == content


@pytest.mark.parametrize(("codec", "levels"), [("gzip", (1, 9)), ("lz4", (1, 12)), ("zstd", (-7, 19))])
def test_a_higher_level_packs_tighter(codec: str, levels: tuple[int, int]) -> None:
    generator = random.Random(3)
    content = b"".join(
        b"customer-%d;%d;" % (generator.randrange(999), generator.randrange(10**6)) for _ in range(9_000)
    )
    quick, tight = (bytes(Compression(codec, level).compress(memoryview(content))) for level in levels)
    assert undo(codec, quick) == undo(codec, tight) == content
    assert len(tight) < 0.9 * len(quick)


def test_the_worst_of_the_last_batches_tells_how_much_to_compress_at_a_time() -> None:
    shrinkage = Shrinkage(Compression("zstd"))
    assert shrinkage.plain_bytes(1_000_000) == 1_000_000
    shrinkage.observe([(1_000_000, 100_000), (600_000, 120_000), (400_000, 399_000)], 1_000_000)
    assert shrinkage.plain_bytes(1_000_000) == 4_000_000
    shrinkage.observe([(400_000, 399_000)], 1_000_000)  # it fits, whatever it shrinks to
    assert shrinkage.plain_bytes(1_000_000) == 4_000_000
    shrinkage.observe([(4_000_000, 4_000)], 1_000_000)
    assert shrinkage.plain_bytes(1_000_000) == PLAIN_BYTES_MAXIMUM
    assert shrinkage.plain_bytes(2 * PLAIN_BYTES_MAXIMUM) == 2 * PLAIN_BYTES_MAXIMUM
    shrinkage.observe([(4_000_000, 3_900_000)], 1_000_000)
    assert shrinkage.plain_bytes(1_000_000) == 1_000_000


def test_without_a_codec_records_are_cut_at_the_limit() -> None:
    shrinkage = Shrinkage(UNCOMPRESSED)
    shrinkage.observe([(1_000_000, 1_000_000)], 1_000_000)
    assert shrinkage.plain_bytes(1_000_000) == 1_000_000


def test_without_a_codec_nothing_is_copied() -> None:
    content = memoryview(b"abc")
    assert UNCOMPRESSED.compress(content) is content


@pytest.mark.parametrize(
    ("codec", "level", "message"),
    [
        ("brotli", None, r"compression is 'brotli'; it must be 'none or gzip or snappy or lz4 or zstd'"),
        ("snappy", 1, r"compression level is 1; it must not be set: snappy has no levels"),
        ("none", 1, r"compression level is 1; it must not be set: none has no levels"),
        ("gzip", 0, r"compression level is 0; it must be 'a whole number from 1 to 9'"),
        ("lz4", 13, r"a whole number from 1 to 12"),
        ("zstd", 23, r"to 22"),
        ("zstd", True, r"compression level is True"),
    ],
)
def test_what_no_codec_has_is_refused(codec: str, level: int | None, message: str) -> None:
    with pytest.raises(SettingRefusedError, match=message):
        Compression(codec, level)

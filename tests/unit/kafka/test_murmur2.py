"""The partition of a key is the Java client's."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.kafka.murmur2 import SCALAR_ROWS_MAXIMUM, partitions_for_keys

PARTITIONS = 1_000_003
KNOWN_HASHES = {
    # The vectors of Kafka's own UtilsTest.
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


def reference_hash(key: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2, statement by statement, as an unsigned number."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    for position in range(0, len(key) & ~3, 4):
        k = int.from_bytes(key[position : position + 4], "little") * m & mask
        k = (k ^ k >> 24) * m & mask
        h = (h * m & mask) ^ k
    rest = key[len(key) & ~3 :]
    if rest:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ h >> 13) * m & mask
    return h ^ h >> 15


def reference_partitions(keys: Sequence[bytes | None], partition_count: int) -> list[int]:
    return [-1 if key is None else (reference_hash(key) & 0x7FFFFFFF) % partition_count for key in keys]


def random_keys(generator: random.Random, count: int, longest: int) -> list[bytes]:
    return [generator.randbytes(generator.randint(0, longest)) for _ in range(count)]


@pytest.mark.parametrize("key", KNOWN_HASHES)
def test_kafkas_own_vectors_hold(key: bytes) -> None:
    assert reference_hash(key) == KNOWN_HASHES[key] & 0xFFFFFFFF
    expected = (KNOWN_HASHES[key] & 0x7FFFFFFF) % PARTITIONS
    assert partitions_for_keys(pa.array([key], pa.binary()), PARTITIONS).tolist() == [expected]


@pytest.mark.parametrize("length", range(18))
def test_keys_of_one_length_are_hashed_as_the_reference_does(length: int) -> None:
    generator = random.Random(length)
    keys = [generator.randbytes(length) for _ in range(SCALAR_ROWS_MAXIMUM + 5)]
    assert partitions_for_keys(pa.array(keys, pa.binary()), PARTITIONS).tolist() == reference_partitions(
        keys, PARTITIONS
    )


@pytest.mark.parametrize("arrow_type", [pa.binary(), pa.large_binary()], ids=str)
@pytest.mark.parametrize("count", [1, SCALAR_ROWS_MAXIMUM, 2_000])
def test_keys_of_mixed_lengths_are_hashed_as_the_reference_does(count: int, arrow_type: pa.DataType) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    generator = random.Random(seed)
    keys: list[bytes | None] = [*random_keys(generator, count, 70), b"", "Käse €".encode(), None]
    keys += [generator.randbytes(10_000), generator.randbytes(10_003), None]
    generator.shuffle(keys)
    array = pa.array(keys, arrow_type)
    for partition_count in (1, 4, PARTITIONS, 0x7FFFFFFF):
        assert partitions_for_keys(array, partition_count).tolist() == reference_partitions(keys, partition_count)


def test_many_long_keys_are_hashed_as_the_reference_does() -> None:
    generator = random.Random(7)
    keys = [generator.randbytes(300 + index % 9) for index in range(3 * SCALAR_ROWS_MAXIMUM)]
    assert partitions_for_keys(pa.array(keys, pa.binary()), 12).tolist() == reference_partitions(keys, 12)


def test_a_slice_is_hashed_without_its_neighbours() -> None:
    generator = random.Random(8)
    keys: list[bytes | None] = [*random_keys(generator, 200, 9), None, b"x", b""]
    array = pa.array(keys, pa.binary())
    for start, length in ((0, 5), (3, 100), (150, 53), (202, 1), (203, 0)):
        assert partitions_for_keys(array.slice(start, length), 97).tolist() == reference_partitions(
            keys[start : start + length], 97
        )


def test_an_empty_key_is_a_key_and_null_is_none() -> None:
    assert partitions_for_keys(pa.array([b"", None], pa.binary()), PARTITIONS).tolist() == [
        (reference_hash(b"") & 0x7FFFFFFF) % PARTITIONS,
        -1,
    ]


def test_bytes_under_a_null_do_not_matter() -> None:
    validity, offsets = np.packbits([1, 0, 1], bitorder="little"), np.array([0, 2, 900, 902], dtype=np.int32)
    buffers = [pa.py_buffer(validity), pa.py_buffer(offsets), pa.py_buffer(b"ab" + b"?" * 898 + b"cd")]
    array = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert partitions_for_keys(array, PARTITIONS).tolist() == reference_partitions([b"ab", None, b"cd"], PARTITIONS)


def test_no_rows_give_no_partitions() -> None:
    partitions = partitions_for_keys(pa.array([], pa.binary()), 4)
    assert partitions.dtype == np.int32
    assert partitions.size == 0


def test_a_column_of_another_type_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="found string"):
        partitions_for_keys(pa.array(["a"]), 4)
    with pytest.raises(TypeError, match="one Arrow array"):
        partitions_for_keys(pa.chunked_array([[b"a"]]), 4)


def test_a_topic_without_partitions_is_refused() -> None:
    with pytest.raises(ValueError, match="partition_count must be 1 or more, found 0"):
        partitions_for_keys(pa.array([b"a"], pa.binary()), 0)

"""Fuzzed rows for tests of the record encoder, and what any reader must give back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.kafka.compression import UNCOMPRESSED, Compression
from airflow_provider_exactlyonce.kafka.record_batch import Body, encode_bodies

NOW = 1_790_000_000_123
LATEST = (1 << 63) - 1
HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PROPERTY = settings(
    deadline=None,
    derandomize=True,
    max_examples=150,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

Headers = list[tuple[str, bytes | None]]


@dataclass(frozen=True, kw_only=True)
class Row:
    key: bytes | None
    value: bytes | None
    headers: Headers | None
    timestamp: int
    partition: int


def contents(longest: int) -> st.SearchStrategy[bytes | None]:
    """Bytes of every size around the limits of views and varints, and text of any script."""
    sized = st.builds(
        lambda length, fill: bytes([fill]) * length,
        st.sampled_from([0, 1, 4, 5, 11, 12, 13, 63, 64, 65, 127, 128, 8_191, 8_192, longest]),
        st.integers(0, 255),
    )
    return st.one_of(st.none(), st.binary(max_size=40), st.text(max_size=20).map(str.encode), sized)


def rows(*, partitions: st.SearchStrategy[int], timestamps: st.SearchStrategy[int]) -> st.SearchStrategy[list[Row]]:
    # librdkafka's readers would cut a header's key at a zero character.
    header_keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=15)
    headers = st.none() | st.lists(st.tuples(header_keys, st.none() | st.binary(max_size=15)), max_size=4)
    row = st.builds(
        Row,
        key=contents(300),
        value=contents(20_000),
        headers=headers,
        timestamp=timestamps,
        partition=partitions,
    )
    return st.lists(row, max_size=60)


TIMESTAMPS = st.one_of(
    st.just(NOW),
    st.integers(NOW - 100_000, NOW + 100_000),
    st.sampled_from([0, 1, NOW, LATEST]),
    st.integers(0, LATEST),
)


def column(cells: Sequence[object], arrow_type: pa.DataType, padding: int) -> pa.Array:
    """Make an array of these cells, as a slice of a longer one."""
    filler: list[object] = list(cells[:1]) * padding
    return pa.array([*filler, *cells, *filler], arrow_type).slice(padding if cells else 0, len(cells))


def encode(
    written: Sequence[Row],
    *,
    body_bytes_maximum: int = 1_000_000,
    large: bool = False,
    padding: int = 0,
    compression: Compression = UNCOMPRESSED,
    plain_bytes_maximum: int | None = None,
) -> list[Body]:
    """Encode rows, the digest of each being its number.

    :param large: whether keys and values are large_binary
    :param padding: rows of a longer array that lie before and after these
    """
    binary = pa.large_binary() if large else pa.binary()
    lists = [
        None if row.headers is None else [{"key": key, "value": value} for key, value in row.headers] for row in written
    ]
    return encode_bodies(
        column([row.key for row in written], binary, padding),
        column([row.value for row in written], binary, padding),
        pa.array(range(len(written)), pa.int64()),
        np.array([row.partition for row in written], dtype=np.int32),
        timestamps=np.array([row.timestamp for row in written], dtype=np.int64),
        headers=column(lists, HEADERS_TYPE, padding),
        body_bytes_maximum=body_bytes_maximum,
        compression=compression,
        plain_bytes_maximum=plain_bytes_maximum,
    )


def expected(written: Sequence[Row]) -> list[Row]:
    """Put the rows in the order of the bodies; no headers and a null list are the same to a reader."""
    return [replace(row, headers=row.headers or []) for row in sorted(written, key=lambda row: row.partition)]

"""What is decoded many at a time, and what is left to Spark's parser."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import types

from airflow_provider_exactlyonce.streaming.job.json_blocks import JsonBlocks

SCHEMA = (
    types.StructType()
    .add("id", types.LongType(), nullable=False)
    .add("name", types.StringType())
    .add("price", types.DecimalType(12, 2))
)


def decoded(*values: bytes | None) -> list[tuple[object, ...] | None]:
    """Return the fields of each value that is decoded, None for one that is left to Spark."""
    blocks = JsonBlocks.of(SCHEMA)
    assert blocks is not None
    fits, columns = blocks.decode(pa.array(values, pa.binary()))
    return [tuple(column[at].as_py() for column in columns) if fit else None for at, fit in enumerate(fits)]


def record(number: int, more: str = "") -> bytes:
    return f'{{"id": {number}, "name": "ü", "price": {number}.50{more}}}'.encode()


def test_values_of_the_schema_are_decoded_and_unknown_fields_passed_over() -> None:
    assert decoded(record(7, ', "more": [{"a": 1}]'), b'{"id":8}') == [(7, "ü", Decimal("7.50")), (8, None, None)]
    assert decoded() == []


@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"5",
        b"{}",
        b'{"id": null}',
        b'{"id": 1.0}',
        b'{"id": "1"}',
        b'{"id": 1, "id": 2}',
        b'{"id": 1}{"id": 2}',
        b'{"id": 1} {"id": 2}',
        b'{"id": 1,\n"name": "a"}',
        b'{"id": 1, "name": 5}',
        b'{"id": 1, "name": "\xff"}',
        b'{"id": 1, "more": "\xff"}',
        b'{"id": 1, "more": NaN}',
        b'{"id": 1, "more": -Infinity}',
        b'{"id": 1, "price": 1.005}',
        b'{"id": 1, "price": 10000000000}',
        b'{"id": 1, "price": 1e-41}',
        b'{"id": 1, "price" : "+.5E-00000000077"}',
        b'{"id": 1, "price": 0.0e-99999999}',
        b'{"id": 1, "price": 0.' + b"0" * 40 + b"1}",
        b'{"id": 1, "price": "\\u0031e\\u002d9000000"}',
        b'{"id": 1, "price": "1e+-77"}',
        b'{"id": 1, "price": "1E--1"}',
        b'{"id": 1, "price": "1e0x2"}',
        b'{"id": 1, "price": "+.5e+0XFFFFFFB3"}',
        b'{"id": 1, "price": "1e0\\u00782"}',
        b'{"id": 1, "price": "1e+-999999999"}',
        b'{"id": 1, "more": ' + b"[" * 1_000 + b"]" * 1_000 + b"}",
        b'{"id": 1, "more": ' + b"1" * 1_001 + b"}",
        b'{"id": 1, "' + b"n" * 50_001 + b'": 1}',
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_two_parsers_may_read_differently_is_left_to_spark(value: bytes | None) -> None:
    assert decoded(value) == [None]
    around = [record(number) for number in range(40)]
    found = decoded(*around, value, *around)
    assert found[40] is None
    assert found[:20] == found[41:61] == [(number, "ü", Decimal(f"{number}.50")) for number in range(20)]


def test_two_objects_in_one_value_are_not_taken_for_those_of_two() -> None:
    assert decoded(b'{"id": 1}{"id": 2}', b"", record(3)) == [None, None, None]


def test_a_long_value_is_decoded_if_it_is_neither_deep_nor_has_a_long_number() -> None:
    text = "x" * 2_000
    assert decoded(record(1, f', "more": "{text}"')) == [(1, "ü", Decimal("1.50"))]


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_a_part_of_an_array_is_looked_at_alone_whatever_its_offsets_are(kind: pa.DataType) -> None:
    blocks = JsonBlocks.of(SCHEMA)
    assert blocks is not None
    values = pa.array([b'{"more": NaN}', record(1), b'{"id": 2,\n"name": "a"}', b'{"id": 3}{"id": 4}'], kind)
    for part, expected in ((values[1:2], [True]), (values[2:3], [False]), (values[3:], [False]), (values[4:], [])):
        fits, _ = blocks.decode(part)
        assert fits.tolist() == expected


def test_a_decoded_record_leaves_behind_what_nobody_asks_for() -> None:
    blocks = JsonBlocks.of(SCHEMA)
    assert blocks is not None
    given = pa.RecordBatch.from_pydict({"value": [record(1), b"no"], "topic": ["a", "b"], "offset": [7, 8]})
    [batch] = blocks.batches([given], kept=("offset",))
    rows = [tuple(row.values()) for row in batch.to_pylist()]
    assert rows == [(None, None, 7, True, 1, "ü", Decimal("1.50")), (b"no", "b", 8, False, None, None, None)]
    [batch] = blocks.batches([given[:1]])
    assert [tuple(row.values())[:4] for row in batch.to_pylist()] == [(None, None, None, True)]
    assert batch.schema.types[:3] == given.schema.types


def test_a_batch_of_which_little_fits_is_left_to_spark() -> None:
    values = [record(number) if number % 2 else b'{"id": "x"}' for number in range(4_000)]
    assert decoded(*values).count(None) > 2_000


@pytest.mark.parametrize(
    "kind",
    [
        types.DoubleType(),
        types.TimestampType(),
        types.BinaryType(),
        types.StructType(),
        types.DecimalType(
            37, 17
        ),  # 5223381128739321470741650370496519104 would be 53775233482211158762.16147314240126976
    ],
)
def test_a_schema_with_a_type_that_the_two_parsers_read_differently_is_not_decoded(kind: types.DataType) -> None:
    assert JsonBlocks.of(types.StructType().add("id", types.LongType()).add("other", kind)) is None


def test_a_text_of_hexadecimal_digits_is_no_reason_to_leave_a_record_to_spark() -> None:
    """As those of identifiers, of which many begin like a number with an exponent."""
    texts = ["1234567e-4abc-41d4", "9e45-11f0", "12e0f1", "5e3"]
    values = [f'{{"id": 1, "name": "{text}"}}'.encode() for text in texts]
    assert decoded(*values) == [(1, text, None) for text in texts]

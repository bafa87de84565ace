"""The encoder beside protobuf's own runtime: any schema, any rows; and what is refused, by its reason."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.registry import protobuf_types
from airflow_provider_exactlyonce.streaming.registry.protobuf_decoder import ProtobufDecoder
from airflow_provider_exactlyonce.streaming.registry.protobuf_encoder import MessageWriter
from tests.unit.streaming.registry.protobuf_messages import SHOP, message_of, messages, row, schemas


def written(message: Descriptor, columns: str, *rows: Any) -> list[bytes]:
    """Write rows, each a tuple of its columns' values."""
    kind = protobuf_types.struct_of(protobuf_types.of_columns(columns))
    names = [column.name for column in kind]
    array = pa.array([dict(zip(names, values, strict=True)) for values in rows], kind)
    encoded: list[bytes] = MessageWriter(message, kind).write(array).to_pylist()
    return encoded


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_rows_become_the_messages_that_they_are_and_are_read_as_they_were(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    drawn = data.draw(st.lists(messages(schema), max_size=6))
    columns = protobuf_types.of_message(schema)
    rows = pa.array([row(message) for message in drawn], protobuf_types.struct_of(columns))
    begin = data.draw(st.integers(0, len(rows)))  # a slice's buffers begin before it
    encoded = MessageWriter(schema, rows.type).write(rows[begin:]).to_pylist()
    parser = message_factory.GetMessageClass(schema)
    for value, message in zip(encoded, drawn[begin:], strict=True):
        expected = message.SerializeToString(deterministic=True)
        assert parser.FromString(value).SerializeToString(deterministic=True) == expected
        assert len(value) == len(expected), "nothing is written that need not be"
    values = pa.array([b"\0" + value for value in encoded], pa.binary())
    again, reasons = ProtobufDecoder(schema.file, columns, 7).decode(values, 0)
    assert (again.to_pylist(), reasons) == (rows[begin:].to_pylist(), {})


@pytest.fixture(scope="module")
def shop() -> Descriptor:
    return message_of(SHOP, "shop.Order")


def test_columns_are_written_as_fields_that_hold_them(shop: Descriptor) -> None:
    columns = "price DECIMAL(10,2), id TINYINT, total DECIMAL(18,0), kind INT, at TIMESTAMP, cash SMALLINT, name STRING"
    moment = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
    [value] = written(shop, columns, (Decimal("1.50"), -1, Decimal(10**18 - 1), 1, moment, None, None))
    expected = message_factory.GetMessageClass(shop)(price="1.50", id=-1, total=10**18 - 1, kind=1)
    expected.at.seconds, expected.at.nanos = -1, 999_999_000
    assert value == expected.SerializeToString()


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("id BIGINT", None, "column id is null, and shop.Order.id can't be: give it another value, or make the field"),
        ("parts ARRAY<INT>", None, "column parts is null, and shop.Order.parts can't be: give it an empty one"),
        ("parts ARRAY<INT>", [1, None], "column parts has an item that is null"),
        ("counts MAP<STRING, INT>", {"a": None}, "column counts has an item that is null"),
        ("cash BIGINT", 2**31, "column cash does not fit int32: Integer value 2147483648 not in range"),
        ("total BIGINT", -1, "column total does not fit uint64: Integer value -1 not in range"),
        ("kind STRING", "LOST", "column kind is 'LOST', which the enum shop.Order.Kind lacks"),
        ("kind INT", 7, "column kind is 7, which the enum shop.Order.Kind lacks"),
        ("owner STRUCT<name: STRING>", {"name": None}, "column owner.name is null, and shop.Order.Owner.name can't be"),
    ],
)
def test_a_row_that_a_message_can_not_have_is_refused_by_its_column(
    shop: Descriptor, column: str, value: Any, reason: str
) -> None:
    with pytest.raises(RecordRefusedError) as caught:
        written(shop, column, (value,))
    assert reason in str(caught.value)


def test_of_a_oneof_one_column_at_most_is_written(shop: Descriptor) -> None:
    assert written(shop, "card STRING, cash INT", ("", None), (None, 0), (None, None)) == [b"\x32\0", b"\x28\0", b""]
    with pytest.raises(RecordRefusedError, match="columns cash and card are of one oneof"):
        written(shop, "card STRING, cash INT", ("x", 1))


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("other INT", "column other is no field of the message shop.Order"),
        ("owner STRUCT<age: INT>", "column owner.age is no field of the message shop.Order.Owner"),
        ("id STRING", "column id is STRING, and field shop.Order.id is int64"),
        ("id ARRAY<BIGINT>", "column id is ARRAY<BIGINT>, and field shop.Order.id is int64"),
        ("parts INT", "column parts is INT, and field shop.Order.parts is repeated int32"),
        ("parts ARRAY<STRING>", "column parts is STRING, and field shop.Order.parts is repeated int32"),
        ("counts ARRAY<INT>", "column counts is ARRAY<INT>, and field shop.Order.counts is a map"),
        ("at BIGINT", "column at is BIGINT, and field shop.Order.at is google.protobuf.Timestamp"),
        ("name TIMESTAMP", "column name is TIMESTAMP, and field shop.Order.name is string"),
        ("ratio DOUBLE", "column ratio is DOUBLE, and field shop.Order.ratio is float"),
        ("total DECIMAL(10,2)", "column total is DECIMAL(10,2), and field shop.Order.total is uint64"),
        ("id DATE", "column id is DATE, for which Protobuf has no type: make it a STRING, or a number"),
        ("owner STRUCT<at: TIMESTAMP_NTZ>", "column owner.at is TIMESTAMP_NTZ, for which Protobuf has no type"),
    ],
)
def test_columns_that_can_not_be_a_messages_fields_are_refused_by_name(
    shop: Descriptor, column: str, reason: str
) -> None:
    with pytest.raises(RefusedError) as caught:
        written(shop, column)
    assert reason in str(caught.value)


def test_a_required_field_needs_a_column() -> None:
    schema = """
        name: "two.proto" syntax: "proto2"
        message_type { name: "R" field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
          field { name: "b" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL } }"""
    message = message_of(schema, "R")
    assert written(message, "a INT, b INT", (0, None), (0, 0)) == [b"\x08\0", b"\x08\0\x10\0"]
    with pytest.raises(RefusedError, match="the required field a has no column"):
        written(message, "b INT")
    with pytest.raises(RecordRefusedError, match="column a is null"):
        written(message, "a INT", (None,))

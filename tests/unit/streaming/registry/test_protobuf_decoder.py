"""The decoder beside protobuf's own runtime: any schema, any messages; and what does not fit, by its reason."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.streaming.registry import protobuf_types
from airflow_provider_exactlyonce.streaming.registry.protobuf_decoder import ProtobufDecoder
from airflow_provider_exactlyonce.streaming.registry.wire_format import head, message_indexes
from tests.unit.streaming.registry.protobuf_messages import SHOP, message_of, messages, row, schemas, shown

HEAD = head(7) + message_indexes([0])


def decoded(
    writer: Descriptor, reader: Sequence[protobuf_types.Column] | str, values: Sequence[bytes]
) -> tuple[list[dict[str, Any] | None], dict[int, str]]:
    columns = protobuf_types.of_columns(reader) if isinstance(reader, str) else reader
    array, reasons = ProtobufDecoder(writer.file, columns, 7).decode(pa.array(values, pa.binary()), 5)
    array.validate(full=True)
    fits = [position not in reasons for position in range(len(values))]
    rows = iter(array.filter(pa.array(fits, pa.bool_())).to_pylist(maps_as_pydicts="strict"))
    return [next(rows) if fit else None for fit in fits], reasons


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_any_messages_are_what_the_runtime_makes_of_them(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    written = data.draw(st.lists(messages(schema), max_size=6))
    wanted = data.draw(st.sets(st.sampled_from([field.name for field in schema.fields]), min_size=1))
    columns = [column for column in protobuf_types.of_message(schema) if column.name in wanted]
    rows, reasons = decoded(schema, columns, [HEAD + message.SerializeToString() for message in written])
    assert reasons == {}
    assert shown(rows) == shown([{name: value for name, value in row(m).items() if name in wanted} for m in written])


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_message_is_judged_by_itself_and_never_read_as_what_the_runtime_does_not_read(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    written = [message.SerializeToString() for message in data.draw(st.lists(messages(schema), min_size=1, max_size=4))]
    spoilt = []
    for value in written:
        place = data.draw(st.integers(0, max(len(value) - 1, 0)))
        byte = data.draw(st.binary(min_size=1, max_size=1))
        spoilt.append(data.draw(st.sampled_from([value, value[:place], value[:place] + byte + value[place + 1 :]])))
    columns = protobuf_types.of_message(schema)
    together, reasons = decoded(schema, columns, [HEAD + value for value in spoilt])
    parser = message_factory.GetMessageClass(schema)
    for position, value in enumerate(spoilt):
        (alone,), reason = decoded(schema, columns, [HEAD + value])
        assert reason.get(0) == reasons.get(position)
        assert shown(alone) == shown(together[position])
        if value == written[position]:
            assert not reason
        if not reason:
            assert shown(alone) == shown(row(parser.FromString(value)))


@pytest.fixture(scope="module")
def shop() -> Descriptor:
    return message_of(SHOP, "shop.Order")


def order(shop: Descriptor, **fields: Any) -> bytes:
    return HEAD + bytes(message_factory.GetMessageClass(shop)(**fields).SerializeToString())


def test_columns_are_found_by_name_and_converted(shop: Descriptor) -> None:
    columns = (
        "price DECIMAL(10,2), id DOUBLE NOT NULL, absent STRING, at TIMESTAMP, kind INT, total BIGINT, ratio DOUBLE"
    )
    full = order(shop, id=3, price="1.5", at={"seconds": 1, "nanos": 5000}, kind=1, total=9, ratio=0.5)
    rows, reasons = decoded(shop, columns, [full, order(shop, price="0")])
    zero = {"price": Decimal("0.00"), "id": 0.0, "absent": None, "at": None, "kind": 0, "total": 0, "ratio": 0.0}
    moment = datetime(1970, 1, 1, 0, 0, 1, 5, UTC)
    one = {"price": Decimal("1.50"), "id": 3.0, "absent": None, "at": moment, "kind": 1, "total": 9, "ratio": 0.5}
    assert (rows, reasons) == ([one, zero], {})


@pytest.mark.parametrize(
    ("column", "written", "reason"),
    [
        ("name STRING NOT NULL", b"", "the required field name is missing"),
        ("price DECIMAL(10,2)", b"\x52\x051.234", "field price does not fit DECIMAL(10,2): 1.234"),
        ("price DECIMAL(10,2)", b"", "field price does not fit DECIMAL(10,2): "),
        ("price DECIMAL(10,2)", b"\x52\x051e-41", "field price does not fit DECIMAL(10,2): 1e-41"),
        ("price DECIMAL(10,2)", b"\x52\x2b0." + b"0" * 40 + b"1", "field price does not fit DECIMAL(10,2): 0.0"),
        ("price DECIMAL(10,2)", b"\x52\x0a1e-5000000", "field price does not fit DECIMAL(10,2): 1e-5000000"),
        ("price DECIMAL(10,2)", b"\x52\x091e5000000", "field price does not fit DECIMAL(10,2): 1e5000000"),
        ("id DOUBLE", b"\x08" + b"\x81" + b"\x80" * 6 + b"\x10", "field id does not fit DOUBLE: 9007199254740993"),
        ("id INT", b"\x08\x80\x80\x80\x80\x08", "field id does not fit INT: 2147483648"),
        ("total BIGINT", b"\x38" + b"\xff" * 9 + b"\x01", "field total does not fit BIGINT: 18446744073709551615"),
        ("at TIMESTAMP", b"\x1a\x02\x10\x01", "field at does not fit TIMESTAMP: 0 s and 1 ns"),
        ("at TIMESTAMP", b"\x1a\x06\x10\xff\xff\xff\xff\x07", "field at is no time of the years 1 to 9999"),
        ("kind STRING", b"\x20\x02", "field kind is 2, which Kind has no name for"),
        ("cash INT", b"\x28\x80\x80\x80\x80\x08", "field cash is written as a number that int32 lacks"),
        ("cash INT", b"\x28\x01\x32\x01x", "field card is not the only one of its oneof paid"),
        ("id BIGINT", b"\x08\x01\x08\x02", "field id is there twice"),
        ("owner STRUCT<name: STRING>", b"\x5a\x06\x0a\x01a\x0a\x01b", "field owner.name is there twice"),
        ("owner STRUCT<name: STRING>", b"\x5a\x03\x0a\x01\xff", "field owner.name is not UTF-8"),
        ("owner STRUCT<name: STRING>", b"\x5a\x03\x0a\x05a", "it ends in the middle of owner.name"),
        ("counts MAP<STRING, INT>", b"\x4a\x05\x0a\x01a\x10\x01" * 2, "field counts has a key twice"),
        ("counts MAP<STRING, INT>", b"\x4a\x02\x18\x00", "counts.field number 3 is in a map's entry"),
        ("parts ARRAY<INT>", b"\x42\x02\x01\x80", "it ends in the middle of parts"),
        ("parts ARRAY<INT>", b"\x42\x02\x01", "it ends in the middle of parts"),
        ("id BIGINT", b"\x0a\x01a", "field id has the wire type 2, which int64 has not"),
        ("id BIGINT", b"\x08", "it ends in the middle of id"),
        ("id BIGINT", b"\x08" + b"\xff" * 11, "id has more than 64 bits"),
        ("id BIGINT", b"\x12\x05a", "it ends in the middle of field number 2"),
        ("id BIGINT", b"\x80", "it ends in the middle of a tag"),
        ("id BIGINT", b"\x00", "it is no Protobuf message: no field can have such a number"),
        ("id BIGINT", b"\xff" * 9 + b"\x01", "it is no Protobuf message: no field"),
        ("id BIGINT", b"\x80" * 4 + b"\x10", "it is no Protobuf message: no field"),
        ("id BIGINT", b"\x80" * 8 + b"\x40", "it is no Protobuf message: no field"),
        (
            "seen MAP<INT, INT>",
            b"\x6a\x08\x08\x80\x80\x80\x80\x10\x10\x01",
            "field seen.key does not fit INT: 4294967296",
        ),
        ("id BIGINT", b"\xa3\x06\xa4\x06", "field number 100 is a group, which can't be read"),
        ("id BIGINT", b"\xa6\x06", "field number 100 has the wire type 6, which can't be read"),
    ],
)
def test_a_record_that_does_not_fit_has_its_reason(shop: Descriptor, column: str, written: bytes, reason: str) -> None:
    good = order(shop, id=1, name="x", price="1.2")
    _, reasons = decoded(shop, column, [good, HEAD + written, good])
    assert list(reasons) == [1] and reasons[1].startswith(reason)


def test_a_decimal_is_read_from_any_text_of_its_value(shop: Descriptor) -> None:
    texts = {
        "15e-1": "1.5",
        "+.015E+00000002": "1.5",
        "1500.0e-3": "1.5",
        "1e3": "1000",
        "0e-99999999": "0",
        "-2.e0": "-2",
    }
    rows, reasons = decoded(shop, "price DECIMAL(10,2)", [order(shop, price=text) for text in texts])
    assert ([row["price"] for row in rows if row], reasons) == (list(map(Decimal, texts.values())), {})


def test_of_a_long_text_that_does_not_fit_the_reason_has_the_beginning(shop: Descriptor) -> None:
    _, reasons = decoded(shop, "price DECIMAL(9,2)", [order(shop, price="1" * 100_000)])
    assert reasons == {0: f"field price does not fit DECIMAL(9,2): {'1' * 100}"}


def test_fields_that_the_schema_does_not_know_are_passed_over(shop: Descriptor) -> None:
    unknown = b"\xa0\x06\x05" + b"\xa1\x06" + b"\0" * 8 + b"\xa2\x06\x01a" + b"\xa5\x06" + b"\0" * 4
    assert decoded(shop, "id BIGINT", [HEAD + unknown + b"\x08\x02" + unknown]) == ([{"id": 2}], {})


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("id BIGINT, other STRING NOT NULL", "the required field other is missing"),
        ("id STRING", "field id is int64, which is not STRING"),
        ("at STRING", "field at is google.protobuf.Timestamp, which is not STRING"),
        ("parts INT", "field parts is repeated int32, which is not INT"),
        ("id ARRAY<BIGINT>", "field id is int64, which is not ARRAY<BIGINT>"),
        ("counts STRING", "field counts is a map, which is not STRING"),
        ("counts MAP<STRING, STRING>", "field counts.value is int32, which is not STRING"),
        ("owner STRUCT<name: INT>", "field owner.name is string, which is not INT"),
        ("price DOUBLE", "field price is string, which is not DOUBLE"),
    ],
)
def test_a_schema_that_can_not_be_read_as_the_columns_is_told_by_its_field(
    shop: Descriptor, column: str, reason: str
) -> None:
    _, reasons = decoded(shop, column, [order(shop)])
    assert reasons == {0: f"schema 7 of the registry does not fit: {reason}"}


def test_each_value_is_read_as_the_message_that_its_indexes_name(shop: Descriptor) -> None:
    bodies = {
        message_indexes([0]): b"\x08\x05",
        b"\x02\x00": b"\x08\x06",  # the long form of the first message
        message_indexes([1, 0]): b"\x08\x01",
        message_indexes([2]): b"",
        message_indexes([0, 0, 0]): b"",
        b"\x01": b"",
        b"": b"",
        b"\xff\x7f": b"",
    }
    values = [head(7) + indexes + body for indexes, body in bodies.items()]
    rows, reasons = decoded(shop, "id BIGINT, ok BOOLEAN", values)
    read = [{"id": 5, "ok": None}, {"id": 6, "ok": None}, {"id": None, "ok": True}]
    assert rows == [*read, None, None, None, None, None]
    assert reasons == {
        3: "its message indexes [2] lead to no message of its schema",
        4: "its message indexes [0, 0, 0] lead to no message of its schema",
        5: "its message indexes are broken",
        6: "it ends in the middle of its message indexes",
        7: "its message indexes are broken",
    }


def test_a_readers_fields_are_found_by_their_numbers_and_have_their_defaults(shop: Descriptor) -> None:
    reader = """
        name: "sold.proto" syntax: "proto3"
        message_type {
          name: "Sold"
          field { name: "number" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
          field { name: "title" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 0 }
          field { name: "more" number: 90 type: TYPE_INT32 label: LABEL_OPTIONAL }
          field { name: "tags" number: 91 type: TYPE_STRING label: LABEL_REPEATED }
          field { name: "sort" number: 93 type_name: ".Sort" label: LABEL_OPTIONAL }
          oneof_decl { name: "_title" }
        }
        enum_type { name: "Sort" value { name: "OTHER" number: 0 } }"""
    columns = protobuf_types.of_message(message_of(reader, "Sold"))
    rows, reasons = decoded(shop, columns, [order(shop, id=4, name="x")])
    assert (rows, reasons) == ([{"number": 4, "title": "x", "more": 0, "tags": [], "sort": "OTHER"}], {})


def test_what_proto2_requires_has_to_be_there() -> None:
    schema = """
        name: "two.proto" syntax: "proto2"
        message_type {
          name: "R"
          field { name: "a" number: 1 type: TYPE_INT32 label: LABEL_REQUIRED }
          field { name: "b" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL default_value: "x" }
        }"""
    message = message_of(schema, "R")
    rows, reasons = decoded(message, "a INT, b STRING", [HEAD + b"\x08\x01", HEAD])
    assert (rows, reasons) == ([{"a": 1, "b": None}, None], {1: "the required field a is missing"})
    assert protobuf_types.columns_ddl(message) == "`a` INT NOT NULL, `b` STRING"


def test_items_may_be_written_packed_or_not_and_in_parts(shop: Descriptor) -> None:
    values = [b"\x42\x02\x01\x02\x40\x03\x42\x01\x04", b"\x40\x05", b"\x42\x00"]
    rows, reasons = decoded(shop, "parts ARRAY<BIGINT>", [HEAD + value for value in values])
    assert (rows, reasons) == ([{"parts": [1, 2, 3, 4]}, {"parts": [5]}, {"parts": []}], {})


def test_no_values_make_no_rows(shop: Descriptor) -> None:
    assert decoded(shop, protobuf_types.of_message(shop), []) == ([], {})

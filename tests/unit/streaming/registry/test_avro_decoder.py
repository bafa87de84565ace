"""The decoder beside fastavro: any schema, any values, any reader; and what does not fit, by its reason."""

from __future__ import annotations

import gc
import io
import itertools
import json
import tracemalloc
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types
from airflow_provider_exactlyonce.streaming.registry.avro_decoder import AvroDecoder
from airflow_provider_exactlyonce.streaming.registry.avro_format import AvroFormat
from airflow_provider_exactlyonce.streaming.registry.columnar import SchemaMismatchError
from airflow_provider_exactlyonce.streaming.registry.wire_format import varint

HEAD = b"\0\0\0\0\7"


def written(schema: Any, *values: Any) -> list[bytes]:
    parsed, encoded = fastavro.parse_schema(schema), []
    for value in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, parsed, value)
        encoded.append(HEAD + buffer.getvalue())
    return encoded


def record(*fields: tuple[str, Any], name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def decoded(writer: Any, reader: Any, values: Sequence[bytes]) -> tuple[list[dict[str, Any] | None], dict[int, str]]:
    columns = avro_types.parse(AvroFormat().reading_schema(reader) if isinstance(reader, str) else json.dumps(reader))
    decoder = AvroDecoder(avro_types.parse(json.dumps(writer)), columns)
    array, reasons = decoder.decode(pa.array(values, pa.binary()), len(HEAD))
    array.validate(full=True)
    fits = [position not in reasons for position in range(len(values))]
    rows = iter(array.filter(pa.array(fits, pa.bool_())).to_pylist(maps_as_pydicts="strict"))
    return [next(rows) if fit else None for fit in fits], reasons


def renamed(schema: Any, numbers: Iterator[int]) -> Any:
    """Give each named type a name of its own."""
    if isinstance(schema, list):
        return [renamed(member, numbers) for member in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: renamed(schema[key], numbers) for key in ("type", "items", "values", "fields") if key in schema}
    name = {"name": f"N{next(numbers)}"} if schema.get("type") in ("record", "enum", "fixed") else {}
    return {**schema, **inner, **name}


PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=40),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """Draw a type that a column can have, and what its values are."""
    kinds = [*PRIMITIVES, "nullable", "fixed", "enum", "decimal"]
    kind = draw(st.sampled_from([*kinds, "array", "map", "record"] if depth else kinds))
    name = "N"
    if kind in PRIMITIVES:
        return kind, PRIMITIVES[kind]
    if kind == "fixed":
        size = draw(st.sampled_from([1, 7, 70]))
        return {"type": "fixed", "name": name, "size": size}, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B", "C"]}, st.sampled_from("ABC")
    if kind == "decimal":
        values = st.integers(-(10**20) + 1, 10**20 - 1).map(lambda number: Decimal(number).scaleb(-3))
        return {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 3}, values
    if kind == "record":
        fields = draw(st.lists(typed(depth - 1), min_size=1, max_size=4))
        named = [(f"f{position}", field_type) for position, (field_type, _) in enumerate(fields)]
        return record(*named, name=name), st.fixed_dictionaries(
            {f"f{position}": values for position, (_, values) in enumerate(fields)}
        )
    inner, values = draw(typed(max(depth - 1, 0)))
    if kind == "nullable":
        if isinstance(inner, list):
            return inner, values
        return draw(st.permutations(["null", inner])), st.none() | values
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=4)
    return {"type": "map", "values": inner}, st.dictionaries(st.text(max_size=5), values, max_size=4)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_any_records_are_what_fastavro_makes_of_them(data: st.DataObject) -> None:
    fields = data.draw(st.lists(typed(), min_size=1, max_size=5))
    schema = record(*[(f"c{position}", kind) for position, (kind, _) in enumerate(fields)])
    schema = renamed(schema, itertools.count())
    rows_of_schema = st.fixed_dictionaries({f"c{position}": values for position, (_, values) in enumerate(fields)})
    values = written(schema, *data.draw(st.lists(rows_of_schema, max_size=8)))
    expected: list[Any] = [fastavro.schemaless_reader(io.BytesIO(value[5:]), schema, None) for value in values]
    wanted = data.draw(st.sets(st.sampled_from([field["name"] for field in schema["fields"]]), min_size=1))
    reader = {**schema, "fields": [field for field in schema["fields"] if field["name"] in wanted]}
    rows, reasons = decoded(schema, reader, values)
    assert reasons == {}
    assert rows == [{name: row[name] for name in row if name in wanted} for row in expected]


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_record_is_judged_by_itself_whatever_stands_beside_it(data: st.DataObject) -> None:
    kind, values = data.draw(typed())
    schema = renamed(record(("c", kind), ("last", "long")), itertools.count())
    rows_of_schema = st.fixed_dictionaries({"c": values, "last": PRIMITIVES["long"]})
    good = written(schema, *data.draw(st.lists(rows_of_schema, min_size=1, max_size=4)))
    spoilt = []
    for value in good:
        change = data.draw(st.sampled_from(["none", "cut", "more", "byte"]))
        place = data.draw(st.integers(5, len(value) - 1))
        spoilt.append(
            {
                "none": value,
                "cut": value[:place],
                "more": value + b"\0",
                "byte": value[:place] + data.draw(st.binary(min_size=1, max_size=1)) + value[place + 1 :],
            }[change]
        )
    together, reasons = decoded(schema, schema, spoilt)
    for position, value in enumerate(spoilt):
        (alone,), reason = decoded(schema, schema, [value])
        assert reason.get(0) == reasons.get(position)
        if not reason:
            assert repr(alone) == repr(together[position])
        if value == good[position]:
            assert not reason


W = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("price", {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}),
    ("at", {"type": "long", "logicalType": "timestamp-nanos"}),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}),
    ("either", ["int", "string"]),
)
ROW = {"id": 1, "name": "ü", "price": Decimal("1.250"), "at": 1_000_000, "kind": "B", "either": 3}


def with_nanos(**changes: Any) -> bytes:
    """Write a row; fastavro knows no nanoseconds, and writes the number that it is given."""
    return written(W, {**ROW, **changes})[0]


def test_columns_of_a_reader_are_found_by_name_and_converted() -> None:
    reader = "price DECIMAL(10,2), id DOUBLE NOT NULL, absent STRING, at TIMESTAMP, kind STRING, either BIGINT"
    rows, reasons = decoded(W, reader, [with_nanos()])
    assert (rows, reasons) == (
        [
            {
                "price": Decimal("1.25"),
                "id": 1.0,
                "absent": None,
                "at": datetime(1970, 1, 1, 0, 0, 0, 1000, UTC),
                "kind": "B",
                "either": 3,
            }
        ],
        {},
    )


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("name STRING NOT NULL", with_nanos(name=None), "the required field name is null"),
        ("price DECIMAL(12,2)", with_nanos(price=Decimal("1.251")), "field price does not fit DECIMAL(12,2): 1.251"),
        ("price DECIMAL(5,3)", with_nanos(price=Decimal("100")), "field price does not fit DECIMAL(5,3): 100.000"),
        ("at TIMESTAMP", with_nanos(at=1), "field at does not fit TIMESTAMP: 1970-01-01"),
        ("either BIGINT", with_nanos(either="x"), "field either is string, which is not null or long"),
        ("id DOUBLE", with_nanos(id=2**53 + 1), "field id does not fit DOUBLE: 9007199254740993"),
        ("id BIGINT", with_nanos()[:-1], "it ends in the middle of either"),
        ("id BIGINT", with_nanos() + b"\0", "bytes follow its last field"),
        ("id BIGINT", HEAD + b"\x02\x04", "field name has a type that its union lacks"),
        ("id BIGINT", HEAD + b"\xff" * 12, "id has more than 64 bits"),
        ("id BIGINT", HEAD + b"\x02\x02\x01", "it ends in the middle of name"),
        ("name STRING", HEAD + b"\x02\x02\x02\xff", "field name is not UTF-8"),
    ],
)
def test_a_record_that_does_not_fit_has_its_reason(column: str, value: bytes, reason: str) -> None:
    good = with_nanos(id=1, name="x", price=Decimal("1.2"))
    _, reasons = decoded(W, column, [good, value, good])
    assert list(reasons) == [1] and reasons[1].startswith(reason)


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        ("id BIGINT, other STRING NOT NULL", "the required field other is missing"),
        ("id INT", "field id is long, which is not null or int"),
        ("id TIMESTAMP", "field id is long, which is not null or timestamp-micros"),
        ("at TIMESTAMP_NTZ", "field at is timestamp-nanos, which is not null or local-timestamp-micros"),
        ("at BIGINT", "field at is timestamp-nanos, which is not null or long"),
        ("name BINARY, id STRUCT<x: INT>", "field id is long, which is not null or record columns_id"),
        ("id ARRAY<INT>", "field id is long, which is not null or array"),
        ("price DOUBLE", "field price is decimal(12,3), which is not null or double"),
    ],
)
def test_a_schema_that_can_not_be_read_as_the_readers_is_told_by_its_field(column: str, reason: str) -> None:
    with pytest.raises(SchemaMismatchError) as caught:
        decoded(W, column, [])
    assert str(caught.value) == reason


def test_a_readers_defaults_and_aliases_are_those_of_avro() -> None:
    reader = {
        "type": "record",
        "name": "R",
        "fields": [
            {"name": "title", "aliases": ["name"], "type": ["null", "string"]},
            {"name": "count", "type": "int", "default": 7},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": ["a"]},
            {"name": "cost", "type": W["fields"][2]["type"], "default": "\u0004\u00e2"},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "C"], "default": "C"}},
        ],
    }
    rows, reasons = decoded(W, reader, [with_nanos()])
    assert (rows, reasons) == (
        [{"title": "ü", "count": 7, "tags": ["a"], "cost": Decimal("1.250"), "kind": "C"}],
        {},
    )


@pytest.mark.parametrize(
    ("kind", "default", "value"),
    [
        (
            {"type": "long", "logicalType": "timestamp-millis"},
            1_700_000_000_123,
            datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC),
        ),
        ({"type": "long", "logicalType": "timestamp-micros"}, 1, datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        ({"type": "long", "logicalType": "timestamp-nanos"}, -1_000, datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, 1, datetime(1970, 1, 1, 0, 0, 0, 1_000)),
        ({"type": "int", "logicalType": "date"}, 5, date(1970, 1, 6)),
        (
            {"type": "bytes", "logicalType": "decimal", "precision": 38, "scale": 1},
            "J" * 16,
            Decimal(f"{int(b'J'.hex() * 16, 16)}E-1"),
        ),
        ("bytes", "\u00ff", b"\xff"),
        ("double", 2**60 + 1, float(2**60)),
        (["string", "null"], "a", "a"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "int"}, {}, {}),
        ({"type": "map", "values": ["null", "int"]}, {"a": 1, "b": None}, {"a": 1, "b": None}),
        ({**record(("x", "int"), name="S"), "fields": [{"name": "x", "type": "int", "default": 7}]}, {}, {"x": 7}),
    ],
    ids=str,
)
def test_a_default_is_the_value_that_its_type_says(kind: Any, default: Any, value: Any) -> None:
    reader = {"type": "record", "name": "R", "fields": [{"name": "it", "type": kind, "default": default}]}
    assert AvroFormat(json.dumps(reader)).columns()
    rows, reasons = decoded(record(("id", "int")), reader, written(record(("id", "int")), {"id": 1}))
    assert (rows, reasons) == ([{"it": value}], {})


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("int", "a"),
        ("int", 1.5),
        ("int", None),
        ("string", 5),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B"),
        ({"type": "long", "logicalType": "timestamp-nanos"}, 1),
        ({"type": "array", "items": "int"}, [None]),
        (record(("x", "int"), name="S"), {}),
    ],
    ids=str,
)
def test_a_default_that_is_no_value_of_its_field_is_refused_with_the_schema(kind: Any, default: Any) -> None:
    inner = {"type": "record", "name": "I", "fields": [{"name": "it", "type": kind, "default": default}]}
    for reader in (inner, record(("inner", {"type": "array", "items": inner}))):
        with pytest.raises(RefusedError, match=r"the default .* of the Avro field it is no "):
            AvroFormat(json.dumps(reader)).columns()


@pytest.mark.parametrize(
    ("fields", "aliases", "rows"),
    [
        (("a", "b"), {"a": ["b"]}, {"a": 1}),
        (("b", "a"), {"a": ["b"]}, {"a": 2}),
        (("b", "c"), {"a": ["c", "b"]}, {"a": 2}),
        (("a",), {"a": [], "b": ["a"]}, {"a": 1, "b": None}),
        (("a",), {"b": ["a"], "a": []}, {"a": 1, "b": None}),
        (("a", "b"), {"a": ["b"], "b": ["a"]}, {"a": 1, "b": 2}),
    ],
)
def test_a_field_is_found_by_its_own_name_before_an_alias(
    fields: tuple[str, ...], aliases: dict[str, list[str]], rows: dict[str, int | None]
) -> None:
    writer = record(*((name, "int") for name in fields))
    value = dict(zip(fields, itertools.count(1), strict=False))
    wanted = [{"name": name, "type": ["null", "int"], "aliases": others} for name, others in aliases.items()]
    reader = {"type": "record", "name": "R", "fields": wanted}
    assert decoded(writer, reader, written(writer, value)) == ([rows], {})


def test_a_name_without_a_name_space_is_of_the_one_around_it_before_it_is_of_none() -> None:
    short, long = ({"type": "fixed", "name": "Code", "size": size} for size in (1, 2))
    inner = {**record(("code", long), ("again", "Code"), name="Inner"), "namespace": "here"}
    writer = record(("code", short), ("inner", inner), ("last", "Code"))
    value = {"code": b"a", "inner": {"code": b"bb", "again": b"cc"}, "last": b"d"}
    rows, reasons = decoded(writer, "inner STRUCT<again: BINARY>, last BINARY", [HEAD + b"abbccd"])
    assert (rows, reasons) == ([{"inner": {"again": b"cc"}, "last": b"d"}], {})
    assert written(writer, value) == [HEAD + b"abbccd"]


@pytest.mark.parametrize("sign", [1, -1])
def test_a_decimal_has_38_digits_whatever_fits_its_bytes(sign: int) -> None:
    writer = record(("it", {"type": "bytes", "logicalType": "decimal", "precision": 38}))
    numbers = [sign * number for number in (10**38 - 1, 10**38, 10**38 + 1, 2**127 - 1)]
    values = [HEAD + bytes([32]) + number.to_bytes(16, "big", signed=True) for number in numbers]
    rows, reasons = decoded(writer, "it DECIMAL(38,0)", values)
    assert rows == [{"it": Decimal(numbers[0])}, None, None, None]
    assert reasons == dict.fromkeys((1, 2, 3), "field it has more digits than a decimal column")


@pytest.mark.parametrize("number", [12, -12, 10**38 - 1, 1 - 10**38])
def test_a_decimal_may_have_any_number_of_bytes_that_only_repeat_its_sign(number: int) -> None:
    writer = record(("it", {"type": "bytes", "logicalType": "decimal", "precision": 38}))
    content = number.to_bytes(5_000, "big", signed=True)
    values = [HEAD + varint(2 * len(it)) + it for it in (content, b"\x01" + content[1:], content[:-17] + content[-16:])]
    rows, reasons = decoded(writer, "it DECIMAL(38,0)", values)
    assert rows == [{"it": Decimal(number)}, None, {"it": Decimal(number)}]
    assert reasons == {1: "field it has more digits than a decimal column"}


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        ({"type": "bytes", "logicalType": "decimal", "precision": 9}, "it DECIMAL(9,0)"),
        ("bytes", "it BINARY"),
        ("string", "it STRING"),
        ("string", "other STRING"),
    ],
    ids=str,
)
def test_a_long_record_takes_memory_for_itself_and_not_for_each_of_the_others(kind: Any, column: str) -> None:
    writer, short, length = record(("it", kind)), HEAD + b"\x02a", 20_000
    long = HEAD + varint(2 * length) + b"a" * length

    def peak_bytes(*values: bytes) -> int:
        gc.collect()
        tracemalloc.start()
        decoded(writer, column, values)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    short_bytes = peak_bytes(*[short] * 300)
    assert peak_bytes(*[short] * 300, long) < short_bytes + 10 * length


def test_a_decimal_that_says_no_digits_is_the_bytes_that_it_has() -> None:
    writer = record(("it", {"type": "bytes", "logicalType": "decimal"}))
    assert decoded(writer, "it BINARY", [HEAD + b"\x02a"]) == ([{"it": b"a"}], {})
    many = record(("it", {"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 50}))
    with pytest.raises(SchemaMismatchError, match=r"field it is decimal\(60,50\), and a decimal column has 38 digits"):
        decoded(many, "it DECIMAL(38,0)", [])
    assert decoded(record(("it", many["fields"][0]["type"]), ("last", "int")), "last INT", [HEAD + b"\0\2"])[0] == [
        {"last": 1}
    ]


def test_types_that_have_themselves_in_them_are_passed_over() -> None:
    tree = record(("value", "int"), ("next", ["null", "Tree"]), name="Tree")
    writer = record(("tree", tree), ("day", {"type": "int", "logicalType": "date"}))
    nested = {"value": 1, "next": {"value": 2, "next": None}}
    rows, reasons = decoded(
        writer, "day DATE", written(writer, *[{"tree": nested, "day": date(2026, 1, day)} for day in (1, 2)])
    )
    assert (rows, reasons) == ([{"day": date(2026, 1, 1)}, {"day": date(2026, 1, 2)}], {})


def test_how_deep_a_record_is_that_nobody_wants_has_a_bound_and_costs_no_other_record() -> None:
    tree = record(("next", ["null", "Tree"]), name="Tree")
    writer = record(("tree", tree), ("last", "int"))
    shallow, deep = (HEAD + b"\x02" * (depth - 1) + b"\x00" + b"\x08" for depth in (100, 101))
    rows, reasons = decoded(writer, "last INT", [shallow, deep, shallow, HEAD + b"\x02" * 100_000])
    assert (rows[0], rows[2]) == ({"last": 4}, {"last": 4})
    assert list(reasons) == [1, 3]
    assert reasons[1].endswith("is nested deeper than 100")


@pytest.mark.parametrize(
    ("kind", "column", "value", "reason"),
    [
        ("timestamp-millis", "at TIMESTAMP", 10**18 + 1, "field at does not fit TIMESTAMP: 1000000000000000001 ms"),
        ("local-timestamp-millis", "at TIMESTAMP_NTZ", 2**62, f"field at does not fit TIMESTAMP_NTZ: {2**62} ms"),
    ],
)
def test_a_moment_that_no_calendar_has_is_shown_as_its_number(kind: str, column: str, value: int, reason: str) -> None:
    writer = record(("at", {"type": "long", "logicalType": kind}))
    plain = record(("at", "long"))
    assert decoded(writer, column, written(plain, {"at": value}))[1] == {0: reason}


@pytest.mark.parametrize("column", ["DOUBLE", "FLOAT"])
@given(st.integers(-(2**63), 2**63 - 1) | st.integers(0, 62).map(lambda power: 2**power))
def test_an_integer_is_read_as_a_float_if_there_is_one_of_its_value(column: str, value: int) -> None:
    is_exact = int(np.float32(value) if column == "FLOAT" else float(value)) == value
    rows, reasons = decoded(record(("it", "long")), f"it {column}", written(record(("it", "long")), {"it": value}))
    assert reasons == ({} if is_exact else {0: f"field it does not fit {column}: {value}"})
    assert not is_exact or rows == [{"it": value}]


def test_a_block_of_items_that_says_its_size_is_read() -> None:
    writer = record(("items", {"type": "array", "items": "int"}), ("last", "int"))
    blocks = b"\x03\x04\x02\x04" + b"\x02\x06" + b"\x00"  # two items in two bytes, one item, the end
    rows, reasons = decoded(writer, "items ARRAY<INT>, last INT", [HEAD + blocks + b"\x08"])
    assert (rows, reasons) == ([{"items": [1, 2, 3], "last": 4}], {})


def test_a_count_of_items_that_no_record_can_hold_ends_at_once() -> None:
    writer = record(("items", {"type": "array", "items": "null"}), ("last", "int"))
    _, reasons = decoded(writer, "last INT", [HEAD + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
    assert reasons == {0: "field items has more items than bytes"}

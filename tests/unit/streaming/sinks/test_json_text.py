"""What JSON has of Spark's values, and what it lacks."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import RecordRefusedError
from airflow_provider_exactlyonce.streaming.sinks.json_text import to_json, without_json

AT = dt.datetime(2024, 7, 1, 1, 2, 3, 4, dt.UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Decimal("1.50"), "1.50"),
        (dt.date(2024, 2, 29), '"2024-02-29"'),
        (dt.time(1, 2, 3), '"01:02:03"'),
        (AT, '"2024-07-01T01:02:03.000004+00:00"'),
        (b"\x00\xff", '"AP8="'),
        (True, "true"),
        (7, "7"),
        (0.5, "0.5"),
        ('"ü\n', '"\\"ü\\n"'),
        (None, "null"),
    ],
)
def test_a_key_of_a_map_is_written_as_a_value_is(value: Any, text: str) -> None:
    name = text if text.startswith('"') else f'"{text}"'
    assert to_json({"a": [value], "b": {value: value}}) == f'{{"a":[{text}],"b":{{{name}:{text}}}}}'
    json.loads(to_json({value: value}))


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), dt.timedelta(1)])
def test_what_json_lacks_is_refused_at_its_record(value: Any) -> None:
    for given in ({"x": [value]}, {value: 1}):
        with pytest.raises(RecordRefusedError, match=f"{value} has no JSON"):
            to_json(given)


@pytest.mark.parametrize(
    ("type_", "lacking"),
    [
        (
            T.StructType()
            .add("a", T.ArrayType(T.DecimalType(9, 2)))
            .add("m", T.MapType(T.BinaryType(), T.TimestampNTZType()))
            .add("n", T.NullType()),
            None,
        ),
        (
            T.ArrayType(T.StructType().add("a", T.LongType()).add("d", T.DayTimeIntervalType())),
            "interval day to second",
        ),
        (T.MapType(T.YearMonthIntervalType(), T.LongType()), "interval year to month"),
        (T.MapType(T.StringType(), T.VariantType()), "variant"),
        (T.ArrayType(T.MapType(T.StructType(), T.LongType())), "struct<>"),
        (T.MapType(T.ArrayType(T.LongType()), T.LongType()), "array<bigint>"),
        (T.CalendarIntervalType(), "interval"),
    ],
)
def test_a_type_without_json_is_found_however_deep_it_is(type_: T.DataType, lacking: str | None) -> None:
    found = without_json(type_)
    assert (None if found is None else found.simpleString()) == lacking

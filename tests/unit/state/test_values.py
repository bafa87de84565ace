"""What a store gives back of a value, known when it is written."""

from __future__ import annotations

import datetime as dt
from contextlib import suppress
from decimal import Decimal
from typing import Any, NamedTuple

import pendulum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state import MapState, Record
from airflow_provider_exactlyonce.state.ddl import parse
from airflow_provider_exactlyonce.state.values import TypeMismatchError, coerce

FOR_EVER = dt.datetime(9999, 12, 31, 23, 59, tzinfo=dt.timezone(dt.timedelta(hours=-5)))
NOON = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
KINDS = [
    *("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(12,2)", "DECIMAL(38,18)"),
    *("STRING", "BINARY", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<FLOAT>", "MAP<STRING, DOUBLE>", "a INT, b DATE"),
]
NUMBERS = st.one_of(st.integers(), st.integers(-(10**400), 10**400), st.floats(), st.decimals(), st.booleans())
VALUES = st.one_of(
    *(NUMBERS, st.text(), st.binary(), st.dates(), st.datetimes(timezones=st.sampled_from([None, dt.UTC])), st.none()),
    *(st.lists(NUMBERS, max_size=2), st.dictionaries(st.text(), NUMBERS, max_size=2), st.tuples(NUMBERS, st.dates())),
)


class Average(NamedTuple):
    total: Decimal
    n: int


@pytest.mark.parametrize(
    ("kind", "value", "kept"),
    [
        ("TINYINT", -128, -128),
        ("BIGINT", 2**63 - 1, 2**63 - 1),
        ("DECIMAL(12,2)", Decimal(5), Decimal("5.00")),
        ("DECIMAL(12,2)", 5, Decimal("5.00")),
        ("DECIMAL(12,2)", Decimal("1.500"), Decimal("1.50")),
        ("DECIMAL(38,2)", Decimal("9" * 36 + ".99"), Decimal("9" * 36 + ".99")),
        ("DOUBLE", 5, 5.0),
        ("FLOAT", 0.1, 0.10000000149011612),
        ("FLOAT", float("-inf"), float("-inf")),
        ("STRING", "é", "é"),
        ("BINARY", bytearray(b"x"), b"x"),
        ("DATE", dt.date(2026, 3, 1), dt.date(2026, 3, 1)),
        ("TIMESTAMP", NOON.astimezone(dt.timezone(dt.timedelta(hours=5))), NOON),
        ("TIMESTAMP_NTZ", NOON.replace(tzinfo=None), NOON.replace(tzinfo=None)),
        ("TIMESTAMP", pendulum.datetime(2026, 3, 1, 12), NOON),
        ("TIMESTAMP_NTZ", pendulum.naive(2026, 3, 1, 12), NOON.replace(tzinfo=None)),
        ("TIMESTAMP_NTZ", NOON.replace(tzinfo=None, fold=1), NOON.replace(tzinfo=None)),
        ("DECIMAL(4,2)", Decimal("-0"), Decimal("0.00")),
        ("ARRAY<INT>", (1, None), [1, None]),
        ("MAP<STRING, DECIMAL(4,1)>", {"a": 1}, {"a": Decimal("1.0")}),
        ("total DECIMAL(18,2), n BIGINT", [Decimal(3), 2], (Decimal("3.00"), 2)),
        ("total DECIMAL(18,2), n BIGINT", {"n": 2, "total": 3}, (Decimal("3.00"), 2)),
        ("total DECIMAL(18,2), n BIGINT", Average(Decimal(3), 2), (Decimal("3.00"), 2)),
        ("total DECIMAL(18,2), n BIGINT", Record.of({"n": 2, "total": Decimal(3)}), (Decimal("3.00"), 2)),
        ("a STRUCT<b: STRUCT<c: INT>>", (((1,),),), (((1,),),)),
        ("n BIGINT NOT NULL", None, None),
    ],
)
def test_a_value_is_kept_as_the_store_gives_it_back(kind: str, value: Any, kept: Any) -> None:
    coerced = coerce(parse(kind))(value)
    assert (coerced, repr(coerced), type(coerced)) == (kept, repr(kept), type(kept))


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("INT", 2**31, "32 bits"),
        ("BIGINT", True, "True does not fit BIGINT"),
        ("BIGINT", 1.0, "1.0 does not fit BIGINT"),
        ("BIGINT", "1", "'1' does not fit BIGINT"),
        ("DECIMAL(12,2)", Decimal("1.005"), "it would be rounded; quantize it"),
        ("DECIMAL(12,2)", Decimal("10000000000"), "at most 10 digits before the point"),
        ("DECIMAL(12,2)", Decimal("NaN"), "NaN"),
        ("DECIMAL(12,2)", 1.5, "1.5 does not fit DECIMAL"),
        ("DOUBLE", 2**53 + 1, "it would be rounded"),
        ("DOUBLE", 10**400, "it would be rounded"),
        ("DOUBLE", Decimal(1), "does not fit DOUBLE"),
        ("FLOAT", 1e300, "32 bits"),
        ("FLOAT", -(10**400), "32 bits"),
        ("STRING", b"x", "b'x' does not fit STRING"),
        ("BOOLEAN", 1, "1 does not fit BOOLEAN"),
        ("DATE", NOON, "does not fit DATE"),
        ("TIMESTAMP", NOON.replace(tzinfo=None), "it has no time zone"),
        ("TIMESTAMP", 5, "5 does not fit TIMESTAMP"),
        ("TIMESTAMP", FOR_EVER, "in UTC it is before the year 1 or after 9999"),
        ("TIMESTAMP_NTZ", NOON, "it has a time zone"),
        ("ARRAY<INT>", "ab", "'ab' does not fit ARRAY<INT>"),
        ("ARRAY<INT>", ["a"], "'a' does not fit INT"),
        ("MAP<STRING, INT>", {None: 1}, "None is no key"),
        ("a INT, b INT", (1,), "2 fields"),
        ("a INT, b INT", 1, "2 fields"),
        ("a INT, b INT", {"a": 1, "c": 2}, "2 fields"),
        ("a INT, b INT", Average(Decimal(1), 2), "2 fields"),
        ("a INT NOT NULL", (None,), "field a: it is NOT NULL"),
    ],
)
def test_a_value_that_spark_would_change_or_drop_is_refused(kind: str, value: Any, why: str) -> None:
    with pytest.raises(TypeMismatchError) as raised:
        coerce(parse(kind))(value)
    assert why in str(raised.value)


@settings(max_examples=100, deadline=None)
@given(kind=st.sampled_from(KINDS), value=VALUES)
def test_whatever_is_written_is_kept_or_refused_by_name(kind: str, value: Any) -> None:
    coerced = coerce(parse(kind))
    with suppress(TypeMismatchError):
        kept = coerced(value)
        assert repr(coerced(kept)) == repr(kept), "what the store gives back is kept as it is"


def test_a_type_that_python_cannot_look_up_is_no_key_of_a_map() -> None:
    with pytest.raises(RefusedError, match=r"ARRAY<INT> can't be a map's key"):
        MapState("ARRAY<INT>", "INT")

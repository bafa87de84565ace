"""Values that become decimals, beside Python's own."""

from __future__ import annotations

from decimal import Context, Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_exactlyonce.streaming.registry.columnar import cast
from airflow_provider_exactlyonce.streaming.registry.cursors import ALL, Cursor

EXACT = Context(prec=200)


def as_decimals(values: pa.Array, kind: pa.DataType) -> list[Decimal | None]:
    """Return what became of each value, None for what does not fit."""
    cursor = Cursor(pa.array([b""] * len(values), pa.binary()), 0)
    converted = cast(cursor, ALL, values, kind, "price").to_pylist()
    return [None if row in cursor.reasons else value for row, value in enumerate(converted)]


def fitting(value: Decimal, kind: pa.DataType) -> Decimal | None:
    scaled = EXACT.scaleb(value, kind.scale)
    return value if scaled == scaled.to_integral_value() and abs(scaled) < 10**kind.precision else None


@st.composite
def kinds(draw: st.DrawFn) -> pa.DataType:
    precision = draw(st.integers(1, 38))
    return pa.decimal128(precision, draw(st.integers(0, precision)))


def numbers(digits: int) -> st.SearchStrategy[Decimal]:
    return st.builds(EXACT.scaleb, st.integers(-(10**digits) + 1, 10**digits - 1).map(Decimal), st.integers(-30, 0))


@given(kind=kinds(), values=st.lists(numbers(60), min_size=1, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_text_becomes_the_number_that_it_says_or_does_not_fit(kind: pa.DataType, values: list[Decimal]) -> None:
    for form in ("f", "e"):
        texts = pa.array([f"{value:{form}}" for value in values])
        assert as_decimals(texts, kind) == [fitting(value, kind) for value in values]


@given(kind=kinds(), scale=st.integers(0, 38), unscaled=st.lists(st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
@settings(max_examples=100, deadline=None)
def test_a_decimal_becomes_the_same_number_or_does_not_fit(kind: pa.DataType, scale: int, unscaled: list[int]) -> None:
    values = [EXACT.scaleb(Decimal(number), -scale) for number in unscaled]
    assert as_decimals(pa.array(values, pa.decimal128(38, scale)), kind) == [fitting(value, kind) for value in values]


#: Numbers that Arrow multiplies to others of the type.
OVERFLOWING = [
    (pa.array(["888888888888888888888888888888888888"]), pa.decimal128(38, 18)),
    (pa.array([Decimal("849456845565231301349956320401.722814")], pa.decimal128(38, 6)), pa.decimal128(38, 34)),
    (pa.array([2**63 - 1]), pa.decimal128(38, 30)),
]


@pytest.mark.parametrize(("values", "kind"), OVERFLOWING, ids=["text", "decimal", "integer"])
def test_a_number_is_never_another_one_for_being_too_large(values: pa.Array, kind: pa.DataType) -> None:
    assert as_decimals(values, kind) == [None]


@pytest.mark.parametrize(
    "text",
    [
        "1e+-77",
        "1E--1",
        "1e0x2",
        "1e0XFFFFFFB3",
        "1e+-999999999",
        "1e",
        "e1",
        ".",
        "",
        " 1",
        "1 ",
        "1_0",
        "\u0661",
        "NaN",
    ],
)
def test_a_text_that_is_no_number_does_not_fit(text: str) -> None:
    assert as_decimals(pa.array(["1.5", text, None]), pa.decimal128(12, 2)) == [Decimal("1.5"), None, None]
    cursor = Cursor(pa.array([b"", b""], pa.binary()), 0)
    cast(cursor, ALL, pa.array(["1.5", text]), pa.decimal128(12, 2), "price")
    assert cursor.reasons == {1: f"field price does not fit DECIMAL(12,2): {text}"}

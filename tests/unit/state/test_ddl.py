"""Types in Spark's DDL, read without Spark."""

from __future__ import annotations

import pytest

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.ddl import parse


@pytest.mark.parametrize(
    ("text", "means"),
    [
        ("BIGINT", "BIGINT"),
        (" long ", "BIGINT"),
        ("decimal", "DECIMAL(10,0)"),
        ("numeric(12)", "DECIMAL(12,0)"),
        ("DECIMAL(12, 2)", "DECIMAL(12,2)"),
        ("array<map<string, decimal(38,38)>>", "ARRAY<MAP<STRING, DECIMAL(38,38)>>"),
        ("total DECIMAL(18,2), n BIGINT NOT NULL", "STRUCT<`total`: DECIMAL(18,2), `n`: BIGINT NOT NULL>"),
        ("struct<a: int, b: timestamp_ntz>", "STRUCT<`a`: INT, `b`: TIMESTAMP_NTZ>"),
        ("date DATE", "STRUCT<`date`: DATE>"),
        ("map STRING, comment STRING COMMENT 'it''s, one'", "STRUCT<`map`: STRING, `comment`: STRING>"),
        ("`a ``b` INT", "STRUCT<`a ``b`: INT>"),
        ("a: STRUCT<b: ARRAY<INT>>", "STRUCT<`a`: STRUCT<`b`: ARRAY<INT>>>"),
    ],
)
def test_types_and_fields_are_read_as_spark_reads_them(text: str, means: str) -> None:
    assert str(parse(text)) == means


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a type is missing at its end"),
        ("VARIANT", "'VARIANT' is not a type of states and outputs; there are ARRAY, BIGINT"),
        ("a INTERVAL", "'INTERVAL' is not a type"),
        ("ARRAY<INT", "> expected, its end found"),
        ("MAP<INT>", ", expected, > found"),
        ("DECIMAL(39,2)", "has at most 38 digits"),
        ("DECIMAL(2,3)", "has at most 38 digits"),
        ("a INT, A STRING", "two of its fields have one name"),
        ("a INT b", "'b' is too much"),
        ("a INT; b INT", "'; b INT' is not DDL"),
    ],
)
def test_what_is_no_type_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(RefusedError, match="type " + repr(text).replace("(", r"\(").replace(")", r"\)")) as raised:
        parse(text)
    assert message in str(raised.value)


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(RefusedError, match="type <class 'int'>: say it in Spark's DDL, such as 'BIGINT'"):
        parse(int)  # type: ignore[arg-type]

"""Columns of files against those that their table has got since."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, ListType, LongType, NestedField, StructType

from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import fits


def column(**more: Any) -> NestedField:
    return NestedField(**{"field_id": 1, "name": "a", "field_type": LongType(), "required": False, **more})


def inside(**more: Any) -> NestedField:
    """Return a column of arrays of structs with a field."""
    return column(field_type=ListType(2, StructType(column(field_id=3, **more)), element_required=False))


@pytest.mark.parametrize(
    ("written", "table", "expected"),
    [
        (column(), column(), True),
        (column(), column(doc="a comment"), True),
        (column(required=True), column(), True),
        (inside(doc="a comment"), inside(doc="another"), True),
        (column(), column(required=True), False),
        (column(), column(field_id=2), False),
        (column(), column(name="b"), False),
        (column(field_type=IntegerType()), column(), False),
        (column(), inside(), False),
        (inside(), inside(name="b"), False),
        (inside(), inside(field_type=IntegerType()), False),
    ],
)
def test_files_fit_whatever_a_table_says_of_its_columns_and_no_other_columns(
    written: NestedField, table: NestedField, expected: bool
) -> None:
    assert fits(Schema(written), Schema(table)) is expected

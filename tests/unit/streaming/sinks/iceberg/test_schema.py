"""Columns of files against those that their table has got since."""

from __future__ import annotations

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, IntegerType, ListType, LongType, MapType, NestedField, StructType

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import check_paths, fits

ELEMENTS = ListType(10, LongType())
VALUES = MapType(10, LongType(), 11, LongType())


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


def a_struct(name: str, kind: IcebergType, *more: NestedField) -> StructType:
    return StructType(NestedField(20, name, kind, required=False), *more)


@pytest.mark.parametrize(
    ("columns", "path"),
    [
        ({"a": a_struct("b", LongType()), "a.c": LongType()}, None),
        ({"a": a_struct("b", LongType()), "a.b": LongType()}, "a.b"),
        ({"a.b": LongType(), "a": a_struct("b", LongType())}, "a.b"),
        ({"a": ELEMENTS, "a.element": LongType()}, "a.element"),
        ({"a": VALUES, "a.key": LongType()}, "a.key"),
        ({"a": VALUES, "a.value": LongType()}, "a.value"),
        ({"a": VALUES, "a.element": LongType()}, None),
        ({"a": a_struct("b", ELEMENTS, NestedField(30, "b.element", LongType()))}, "a.b.element"),
        ({"a": a_struct("b", a_struct("c", LongType())), "a.b": LongType()}, "a.b"),
        ({"a": a_struct("b", a_struct("c", LongType())), "a.b.c": LongType()}, "a.b.c"),
        ({"a": ListType(10, a_struct("b", LongType())), "a.b": LongType()}, None),
        ({"a": LongType(), "A": LongType()}, None),
    ],
)
def test_paths_are_refused_that_iceberg_can_not_tell_apart(columns: dict[str, IcebergType], path: str | None) -> None:
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(columns.items(), 1)]
    if path is None:
        Schema(*fields)
        check_paths(columns.items(), "sink lake")
        return
    with pytest.raises(ValueError, match=f"multiple fields for name {path}:"):
        Schema(*fields)
    with pytest.raises(RefusedError, match=f"sink lake: .* two things '{path}' in '.*': rename one"):
        check_paths(columns.items(), "sink lake")

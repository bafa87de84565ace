"""What is read of a file is what is in it: nulls stay nulls, and a part of the table is found by its id."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import (
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
)

from airflow_provider_exactlyonce.streaming.sinks.iceberg.file_rows import as_now

NUMBER = StructType(NestedField(1, "n", IntegerType(), required=False))
NUMBERS = ListType(2, NUMBER, element_required=False)
FLOATS = ListType(7, FloatType(), element_required=False)
ARROW: dict[IcebergType, pa.DataType] = {
    NUMBER: pa.struct([("n", pa.int32())]),
    NUMBERS: pa.list_(pa.struct([("n", pa.int32())])),
}


@pytest.mark.parametrize(
    ("kind", "arrow", "values"),
    [
        (NUMBER, ARROW[NUMBER], [{"n": 1}, None, {"n": None}]),
        (NUMBERS, ARROW[NUMBERS], [[{"n": 1}, None], None, [], [{"n": None}]]),
        (NUMBERS, pa.large_list(ARROW[NUMBER]), [[{"n": 1}, None], None, [], [{"n": None}]]),
        (NUMBERS, pa.list_(ARROW[NUMBER], 2), [[{"n": 1}, None], None, [{"n": 2}, {"n": None}], None]),
        (NUMBERS, pa.list_view(ARROW[NUMBER]), [[{"n": 1}, None], None, [], [{"n": None}]]),
        (NUMBERS, pa.large_list_view(ARROW[NUMBER]), [[{"n": 1}, None], None, [], [{"n": None}]]),
        (FLOATS, pa.list_(pa.float32(), 2), [[0.5, 1.5], [2.5, 3.5], [4.5, 5.5], [6.5, 7.5]]),
        (FLOATS, pa.list_(pa.float32(), 2), [None, [0.5, None], [4.5, 5.5], None]),
        (FLOATS, pa.list_(pa.float32(), 0), [[], None, [], []]),
        (FLOATS, pa.list_view(pa.float32()), [None, [0.5, None], [], [4.5]]),
        (FLOATS, pa.large_list(pa.float32()), [None, [0.5, None], [], [4.5]]),
        (
            ListType(8, FLOATS, element_required=False),
            pa.list_(pa.list_(pa.float32(), 1), 2),
            [[[0.5], None], None, [[None], [1.5]], [[2.5], [3.5]]],
        ),
        (
            MapType(3, StringType(), 4, NUMBERS, value_required=False),
            pa.map_(pa.string(), ARROW[NUMBERS]),
            [[("a", [{"n": 1}]), ("b", None)], None, [], [("c", [])]],
        ),
        (
            ListType(5, ListType(6, NUMBER, element_required=False), element_required=False),
            pa.list_(ARROW[NUMBERS]),
            [[None, []], None, [[None, {"n": 2}], [{"n": 3}]], []],
        ),
        (StringType(), pa.string_view(), ["a", None, ""]),
    ],
)
@pytest.mark.parametrize("begin", range(3))
@pytest.mark.parametrize("end", [None, -1, 0])
def test_nulls_stay_nulls_and_what_is_empty_stays_empty(
    kind: IcebergType, arrow: pa.DataType, values: list[Any], begin: int, end: int | None
) -> None:
    read = as_now(pa.array(values, arrow)[begin:end], kind, kind)
    read.validate(full=True)
    assert read.to_pylist() == values[begin:end]


def test_a_part_is_found_by_its_id_whatever_its_name_and_place_were() -> None:
    was = StructType(
        NestedField(1, "old", IntegerType(), required=False),
        NestedField(2, "dropped", StringType(), required=False),
        NestedField(3, "f", FloatType(), required=False),
    )
    now = StructType(
        NestedField(3, "f", DoubleType(), required=False),
        NestedField(4, "dropped", StringType(), required=False),
        NestedField(1, "new", LongType(), required=False),
    )
    arrow = pa.struct([("old", pa.int32()), ("dropped", pa.string()), ("f", pa.float32())])
    given = [[("k", {"old": 1, "dropped": "x", "f": 0.5})], None, [("k", None)]]
    of_map = [MapType(5, StringType(), 6, kind, value_required=False) for kind in (now, was)]
    read = as_now(pa.array(given, pa.map_(pa.string(), arrow)), *of_map)
    assert read.to_pylist() == [[("k", {"f": 0.5, "dropped": None, "new": 1})], None, [("k", None)]]
    assert [read.type.item_type.field(name).type for name in ("f", "new")] == [pa.float64(), pa.int64()]

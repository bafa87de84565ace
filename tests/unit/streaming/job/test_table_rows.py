"""The rows of a table's files: what they become in Spark, and what is refused rather than changed."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import BadRecordError, DataLostError, ExactlyOnceError, TableChangedError
from airflow_provider_exactlyonce.streaming.job import table_rows
from airflow_provider_exactlyonce.streaming.job.table_rows import FilePart
from airflow_provider_exactlyonce.tables.delta_log import DeltaStore
from airflow_provider_exactlyonce.tables.table_log import TableFile

ID = T.StructType([T.StructField("id", T.LongType())])
NOON = dt.datetime(2024, 3, 1, 12, tzinfo=dt.UTC)


def read(
    folder: Path,
    columns: T.StructType,
    *,
    rows: int | None = None,
    partition: Mapping[str, str | None] | None = None,
    part: int = 0,
    parts: int = 1,
    field_ids: Mapping[str, int] | None = None,
) -> list[dict[str, Any]]:
    file = TableFile(path="f.parquet", bytes=1, rows=rows, partition=partition or {})
    batches = table_rows.rows(
        "delta:/t", FilePart(file, part, parts), DeltaStore(str(folder), {}), columns, field_ids or {}
    )
    return [row for batch in batches for row in batch.to_pylist()]


def write(folder: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, folder / "f.parquet", **options)


def test_all_types_come_through_as_they_are(tmp_path: Path) -> None:
    values = {
        "long": (7, pa.int64(), T.LongType()),
        "short": (7, pa.int16(), T.ShortType()),
        "text": ("ü", pa.large_string(), T.StringType()),
        "coded": ("x", pa.dictionary(pa.int32(), pa.string()), T.StringType()),
        "bytes": (b"\x00", pa.large_binary(), T.BinaryType()),
        "price": (Decimal("-1.25"), pa.decimal128(12, 2), T.DecimalType(12, 2)),
        "day": (NOON.date(), pa.date32(), T.DateType()),
        "at": (NOON, pa.timestamp("ms", "UTC"), T.TimestampType()),
        "local": (NOON.replace(tzinfo=None), pa.timestamp("us"), T.TimestampNTZType()),
        "list": ([1, None], pa.large_list(pa.int32()), T.ArrayType(T.IntegerType())),
        "map": ([("a", 1)], pa.map_(pa.string(), pa.int32()), T.MapType(T.StringType(), T.IntegerType())),
        "of": ({"a": 1}, pa.struct([("a", pa.int32())]), T.StructType([T.StructField("a", T.IntegerType())])),
        "none": (None, pa.float64(), T.DoubleType()),
    }
    write(tmp_path, pa.table({name: pa.array([value], kind) for name, (value, kind, _) in values.items()}))
    columns = T.StructType([T.StructField(name, kind) for name, (_, _, kind) in values.items()])
    assert read(tmp_path, columns) == [{name: value for name, (value, _, _) in values.items()}]


def test_columns_come_in_the_declared_order_and_others_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"x": [1], "id": pa.array([2], pa.int64()), "a.b": ["y"]}))
    columns = T.StructType([T.StructField("a.b", T.StringType()), T.StructField("id", T.LongType())])
    (row,) = read(tmp_path, columns)
    assert list(row.items()) == [("a.b", "y"), ("id", 2)]


def test_instants_of_older_writers_are_instants_wherever_they_are(tmp_path: Path) -> None:
    at, instant = T.TimestampType(), pa.timestamp("us", "UTC")
    struct, nested = T.StructType([T.StructField("n", T.IntegerType()), T.StructField("at", at)]), {"n": 1, "at": NOON}
    arrow_struct = pa.struct([("n", pa.int32()), ("at", instant)])
    values: dict[str, tuple[Any, pa.DataType, T.DataType]] = {
        "at": (NOON, instant, at),
        "struct": (nested, arrow_struct, struct),
        "list": ([NOON, None], pa.list_(instant), T.ArrayType(at)),
        "map": ([("a", NOON)], pa.map_(pa.string(), instant), T.MapType(T.StringType(), at)),
        "by instant": ([(NOON, 1)], pa.map_(instant, pa.int32()), T.MapType(at, T.IntegerType())),
        "list of structs": ([nested, None], pa.list_(arrow_struct), T.ArrayType(struct)),
        "map of lists": (
            [("a", [NOON])],
            pa.map_(pa.string(), pa.list_(instant)),
            T.MapType(T.StringType(), T.ArrayType(at)),
        ),
    }
    table = pa.table({name: pa.array([value], kind) for name, (value, kind, _) in values.items()})
    write(tmp_path, table, use_deprecated_int96_timestamps=True)
    columns = T.StructType([T.StructField(name, kind) for name, (_, _, kind) in reversed(values.items())])
    assert read(tmp_path, columns) == [{name: value for name, (value, _, _) in values.items()}]


def test_a_local_time_within_a_column_is_no_instant(tmp_path: Path) -> None:
    local = pa.array([{"at": NOON.replace(tzinfo=None)}], pa.struct([("at", pa.timestamp("us"))]))
    write(tmp_path, pa.table({"s": local}))
    columns = T.StructType([T.StructField("s", T.StructType([T.StructField("at", T.TimestampType())]))])
    with pytest.raises(TableChangedError, match=r"'s' is struct<at: timestamp\[us\]>, and"):
        read(tmp_path, columns)


def test_values_of_the_partition_and_columns_that_came_later(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"id": pa.array([1, 2], pa.int64())}))
    columns = T.StructType(
        [
            T.StructField("id", T.LongType()),
            T.StructField("day", T.DateType()),
            T.StructField("shop", T.IntegerType()),
            T.StructField("later", T.StringType()),
        ]
    )
    rows = read(tmp_path, columns, partition={"day": "2024-03-01", "shop": None})
    assert rows == [{"id": number, "day": NOON.date(), "shop": None, "later": None} for number in (1, 2)]
    only = T.StructType([T.StructField("day", T.DateType(), nullable=False)])
    assert read(tmp_path, only, partition={"day": "2024-03-01"}) == [{"day": NOON.date()}] * 2


@pytest.mark.parametrize(("parts", "groups"), [(1, 5), (2, 5), (3, 5), (7, 5), (2, 1)])
def test_the_parts_of_a_file_have_each_row_once(tmp_path: Path, parts: int, groups: int) -> None:
    write(tmp_path, pa.table({"id": pa.array(range(10 * groups), pa.int64())}), row_group_size=10)
    rows = [row["id"] for part in range(parts) for row in read(tmp_path, ID, part=part, parts=parts)]
    assert rows == list(range(10 * groups))


def test_columns_are_found_by_their_ids_where_files_have_them(tmp_path: Path) -> None:
    fields = [
        pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)}) for name, number in (("a", 1), ("b", 2))
    ]
    write(tmp_path, pa.table({"a": [1], "b": [2]}, pa.schema(fields)))
    columns = T.StructType([T.StructField(name, T.LongType()) for name in ("b", "renamed", "later")])
    assert read(tmp_path, columns, field_ids={"b": 2, "renamed": 1, "later": 9}) == [
        {"b": 2, "renamed": 1, "later": None}
    ]
    write(tmp_path, pa.table({"a": [1]}))
    with pytest.raises(TableChangedError, match="has no ids of its columns"):
        read(tmp_path, ID, field_ids={"id": 1})


@pytest.mark.parametrize(
    ("values", "kind", "error", "said"),
    [
        (pa.array([1], pa.int32()), T.LongType(), TableChangedError, "'id' is int32, and int64"),
        (pa.array(["1"]), T.LongType(), TableChangedError, "'id' is string, and int64"),
        (pa.array([1.5]), T.FloatType(), TableChangedError, "'id' is double, and float"),
        (pa.array([NOON], pa.timestamp("us", "UTC")), T.TimestampNTZType(), TableChangedError, "'id' is timestamp"),
        (pa.array([1], pa.timestamp("ns", "UTC")), T.TimestampType(), BadRecordError, "does not fit"),
    ],
)
def test_what_would_not_stay_what_it_is_stops_by_name(
    tmp_path: Path, values: pa.Array, kind: T.DataType, error: type[ExactlyOnceError], said: str
) -> None:
    write(tmp_path, pa.table({"id": values}))
    with pytest.raises(error, match=said):
        read(tmp_path, T.StructType([T.StructField("id", kind)]))


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (pa.array([1]), T.IntegerType()),
        (pa.array([1], pa.int32()), T.DoubleType()),
        (pa.array([1.5]), T.FloatType()),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), T.DecimalType(12, 3)),
        (pa.array([Decimal("1.25")], pa.decimal128(9, 2)), T.DecimalType(8, 2)),
        (pa.array([[1]], pa.list_(pa.int32())), T.LongType()),
    ],
)
def test_a_field_is_widened_as_its_table_may_have_been_and_no_further(
    tmp_path: Path, values: pa.Array, kind: T.DataType
) -> None:
    field = pa.field("id", values.type, metadata={"PARQUET:field_id": "1"})
    write(tmp_path, pa.table([values], pa.schema([field])))
    with pytest.raises(TableChangedError, match="is declared"):
        read(tmp_path, T.StructType([T.StructField("id", kind)]), field_ids={"id": 1})


def test_a_required_column_with_nulls_stops_by_name(tmp_path: Path) -> None:
    write(tmp_path, pa.table({"id": pa.array([1, None], pa.int64())}))
    with pytest.raises(BadRecordError, match=r"file f\.parquet of table delta:/t: the required column 'id' has nulls"):
        read(tmp_path, T.StructType([T.StructField("id", T.LongType(), nullable=False)]))


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        ("2024-03-01 12:00:00", T.TimestampType(), "a time without a zone"),
        ("x", T.IntegerType(), "no int32"),
        ("\\u0000\\u00FF", T.BinaryType(), "bytes, which writers mean otherwise"),
    ],
)
def test_a_value_of_the_partition_that_can_t_be_read_stops_by_name(
    tmp_path: Path, text: str, kind: T.DataType, said: str
) -> None:
    write(tmp_path, pa.table({"id": [1]}))
    with pytest.raises(TableChangedError, match=said):
        read(tmp_path, T.StructType([T.StructField("part", kind)]), partition={"part": text})


def test_a_file_that_is_gone_or_is_another_one_stops_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataLostError, match=r"file f\.parquet of table delta:/t is gone"):
        read(tmp_path, ID)
    write(tmp_path, pa.table({"id": pa.array([1, 2], pa.int64())}))
    assert len(read(tmp_path, ID, rows=2)) == 2
    with pytest.raises(DataLostError, match=r"has 2 rows, and the table says 3"):
        read(tmp_path, ID, rows=3)


def schema(*fields: tuple[str, Any]) -> str:
    return json.dumps(
        {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True} for name, kind in fields]}
    )


NESTED = {"type": "array", "elementType": "integer", "containsNull": False}


def array(kind: str) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": True}


def struct(name: str, kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": name, "type": kind, "nullable": True}]}


def of_field(name: str, kind: T.DataType) -> T.StructType:
    return T.StructType([T.StructField(name, kind)])


@pytest.mark.parametrize(
    ("kind", "declared", "is_widened"),
    [
        ("integer", T.LongType(), True),
        ("float", T.DoubleType(), True),
        ("decimal(3,1)", T.DecimalType(5, 1), True),
        ("decimal(3,1)", T.DecimalType(5, 2), False),
        ("long", T.IntegerType(), False),
        (array("integer"), T.ArrayType(T.LongType()), True),
        (array("integer"), T.LongType(), False),
        ("integer", T.ArrayType(T.LongType()), False),
        (struct("a", array("float")), of_field("a", T.ArrayType(T.DoubleType())), True),
        (struct("integer", "integer"), of_field("long", T.LongType()), False),
        (struct("decimal(3,1)", "integer"), of_field("decimal(5,1)", T.IntegerType()), False),
    ],
)
def test_a_column_may_have_been_widened_where_fields_have_ids_and_nothing_else(
    kind: Any, declared: T.DataType, is_widened: bool
) -> None:
    columns = of_field("n", declared)
    found = table_rows.mismatch(columns, schema(("n", kind)), needs_all=True, may_widen=True)
    assert (found is None) == is_widened
    assert found is None or "its column 'n' is " in found
    assert table_rows.mismatch(columns, schema(("n", kind)), needs_all=True) is not None


@pytest.mark.parametrize(
    ("table", "needs_all", "said"),
    [
        (schema(("id", "long"), ("tags", NESTED), ("x", "string")), True, None),
        (schema(("id", "long")), True, "it has no column 'tags', its columns are id"),
        (schema(("id", "long")), False, None),
        (schema(("tags", NESTED)), False, "it has no column 'id'"),
        (schema(("id", "integer"), ("tags", NESTED)), False, "its column 'id' is integer, and long is declared"),
        (schema(("id", "long"), ("tags", "string")), True, "its column 'tags' is string, and"),
    ],
)
def test_the_tables_columns_are_compared_with_those_that_are_declared(
    table: str, needs_all: bool, said: str | None
) -> None:
    columns = T.StructType(
        [T.StructField("id", T.LongType(), nullable=False), T.StructField("tags", T.ArrayType(T.IntegerType()))]
    )
    found = table_rows.mismatch(columns, table, needs_all=needs_all)
    assert (found is None) == (said is None)
    assert said is None or said in str(found)

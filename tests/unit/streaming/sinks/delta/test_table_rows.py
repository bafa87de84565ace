"""Rows of a file in the table's columns."""

from __future__ import annotations

import pyarrow as pa
import pytest

from airflow_provider_exactlyonce.streaming.sinks.delta.table_rows import with_columns

INSTANT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), INSTANT), INSTANT, pa.binary()],
    ids=str,
)
@pytest.mark.parametrize("rows", [None, pa.table({"id": [1, 2]})])
def test_a_column_of_any_type_that_a_file_lacks_is_null(kind: pa.DataType, rows: pa.Table | None) -> None:
    filled = with_columns(rows, pa.schema([("k", pa.int16()), ("more", kind)]), {"k": "7"}, 2)
    assert filled.to_pylist() == [{"k": 7, "more": None}] * 2

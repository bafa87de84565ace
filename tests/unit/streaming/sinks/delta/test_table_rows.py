"""The columns of a file that is copied."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_exactlyonce.streaming.sinks.delta.table_rows import copied_columns, opened_parquet, with_columns

NOON = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def test_a_copy_has_texts_and_bytes_and_the_instants_of_sparks_old_form_wherever_they_are(tmp_path: Path) -> None:
    inner = pa.struct([("n", pa.int64()), ("t", INSTANT), ("none", pa.null())])
    columns = pa.schema(
        [
            ("id", pa.int64()),
            ("at", INSTANT),
            ("text", pa.string_view()),
            ("list", pa.large_list(inner)),
            ("map", pa.map_(pa.string(), pa.struct([("bytes", pa.binary_view()), ("t", INSTANT)]))),
            ("last", INSTANT),
        ]
    )
    row = {"id": 1, "at": NOON, "text": "a", "list": [{"n": 1, "t": NOON, "none": None}], "last": None}
    row["map"] = [("k", {"bytes": b"x", "t": NOON})]
    file = tmp_path / "f.parquet"
    pq.write_table(pa.Table.from_pylist([row], columns), file, use_deprecated_int96_timestamps=True)
    with file.open("rb") as opened:
        parquet = opened_parquet(opened)
        assert parquet.schema_arrow.field("at").type == LOCAL, "nothing in the file says more"
        copied = parquet.read().cast(copied_columns(parquet))
    kinds = {field.name: field.type for field in copied.schema}
    assert [kinds["at"], kinds["last"], kinds["text"]] == [INSTANT, INSTANT, pa.string()]
    assert kinds["list"].value_type.field("t").type == kinds["map"].item_type.field("t").type == INSTANT
    assert copied.to_pylist() == [row]


def test_local_times_stay_local_times(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    pq.write_table(pa.table({"local": pa.array([NOON.replace(tzinfo=None)], LOCAL)}), file)
    assert copied_columns(pq.ParquetFile(file)).field("local").type == LOCAL


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.string()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), INSTANT), INSTANT, pa.binary()],
    ids=str,
)
@pytest.mark.parametrize("rows", [None, pa.table({"id": [1, 2]})])
def test_a_column_of_any_type_that_a_file_lacks_is_null(kind: pa.DataType, rows: pa.Table | None) -> None:
    filled = with_columns(rows, pa.schema([("k", pa.int16()), ("more", kind)]), {"k": "7"}, 2)
    assert filled.to_pylist() == [{"k": 7, "more": None}] * 2

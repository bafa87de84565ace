"""The columns of a Parquet file, by what its values are."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_exactlyonce.tables.parquet_columns import columns_of, opened_parquet

NOON = datetime.datetime(2024, 3, 1, 12, tzinfo=datetime.UTC)
INSTANT, LOCAL = pa.timestamp("us", "UTC"), pa.timestamp("us")


def test_texts_bytes_and_the_instants_of_sparks_old_form_are_such_wherever_they_are(tmp_path: Path) -> None:
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
        as_they_are = parquet.read().cast(columns_of(parquet))
    kinds = {field.name: field.type for field in as_they_are.schema}
    assert [kinds["at"], kinds["last"], kinds["text"]] == [INSTANT, INSTANT, pa.string()]
    assert kinds["list"].value_type.field("t").type == kinds["map"].item_type.field("t").type == INSTANT
    assert as_they_are.to_pylist() == [row]


def test_local_times_stay_local_times(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    pq.write_table(pa.table({"local": pa.array([NOON.replace(tzinfo=None)], LOCAL)}), file)
    assert columns_of(pq.ParquetFile(file)).field("local").type == LOCAL


def test_categories_are_the_values_that_they_stand_for(tmp_path: Path) -> None:
    file = tmp_path / "f.parquet"
    texts = pa.array(["a", None, "b"]).dictionary_encode()
    written = pa.table({"text": texts, "list": pa.ListArray.from_arrays([0, 1, 3, 3], texts)})
    pq.write_table(written, file)
    with file.open("rb") as opened:
        parquet = opened_parquet(opened)
        read = parquet.read().cast(columns_of(parquet))
    assert (read.schema.field("text").type, read.schema.field("list").type.value_type) == (pa.string(), pa.string())
    assert read.to_pylist() == written.to_pylist()

"""Upserts into a Delta table: what every table's have in common, and what is Delta's own."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from deltalake.transaction import RemoveAction
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.log import escaped
from airflow_provider_exactlyonce.streaming.sinks.delta.schema import arrow_columns
from tests.integration.streaming.sinks.delta.lake import LONG, TEXT, DeltaLake
from tests.integration.streaming.sinks.lake import FAR_TIMES, FAR_VALUES, Live
from tests.integration.streaming.sinks.upsert_contract import UpsertContract, begun, row, stored


class TestDeltaUpserts(UpsertContract):
    """Its table is the fixture's."""


def test_a_merge_of_others_and_a_vacuum_without_a_retention_are_followed(lake: DeltaLake, tmp_path: Path) -> None:
    live, model, entries = begun(lake, tmp_path)
    columns = pa.schema([LONG, TEXT, ("v", pa.int64()), ("at", pa.int64())])

    def merged() -> None:
        source = pa.Table.from_pylist([stored(row(3, "m", 77))], columns)
        merge = lake.table.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
        merge.when_matched_update_all().when_not_matched_insert_all().execute()
        model.apply([row(3, "m", 77)])

    for number, others_change in enumerate([merged, lake.vacuum]):
        rows = [row(key, "u", number, number + 1, gone=key == number) for key in (number, 7 + number)]
        if number:
            others_change()  # it removes whatever is not committed
        entry = live.stage(rows)
        if not number:
            others_change()
        live.decide(entry)
        entries.append(entry)
        model.apply(rows)
        model.check(lake)
    assert lake.current_files() <= set(lake.path.rglob("*.parquet"))
    assert all("(MERGE)" in finding for finding in live.audit(entries))


def test_files_of_others_are_copied_as_they_are(lake: DeltaLake, tmp_path: Path) -> None:
    """Columns that were added later, nested ones, times, and values of which statistics say nothing."""
    columns = pa.schema(
        [
            LONG,
            ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")),
            ("amount", pa.decimal128(12, 2)),
            ("double", pa.float64()),
            ("nested", pa.struct([("a", pa.int64()), ("l", pa.list_(pa.string()))])),
        ]
    )
    utc = datetime.UTC
    given = [
        {
            "id": number,
            "at": datetime.datetime(1900, 1, 1, 0, 0, 0, number, utc),
            "local": datetime.datetime(2024, 2, 29, 23, 59, 59, 999999),
            "amount": Decimal(number) / 100,
            "double": float("inf"),
            "nested": {"a": None, "l": ["ü", None]},
        }
        for number in range(6)
    ]
    write_deltalake(str(lake.path), pa.Table.from_pylist([{"id": 9}, {"id": 5}], pa.schema([LONG])))
    write_deltalake(str(lake.path), pa.Table.from_pylist(given[:3], columns), mode="append", schema_mode="merge")
    kinds = T.StructType().add("id", T.LongType()).add("at", T.TimestampType()).add("local", T.TimestampNTZType())
    kinds = kinds.add("amount", T.DecimalType(12, 2)).add("double", T.DoubleType())
    kinds = kinds.add("nested", T.StructType().add("a", T.LongType()).add("l", T.ArrayType(T.StringType())))
    live = Live(lake.sink(mode="upsert", key="id"), tmp_path, columns=kinds)
    live.commit([{**given[1], "amount": None}], [given[4], given[5]])
    expected = [given[0], {**given[1], "amount": None}, given[2], *given[4:], {**dict.fromkeys(columns.names), "id": 9}]
    assert lake.rows() == expected
    assert lake.library_rows() == expected


def test_bounds_of_others_of_which_python_has_no_date_hold(lake: DeltaLake, tmp_path: Path) -> None:
    given = pa.Table.from_pylist(FAR_VALUES, arrow_columns(FAR_TIMES))
    write_deltalake(str(lake.path), given.slice(0, 2))
    write_deltalake(str(lake.path), given.slice(2), mode="append")
    changed = {**FAR_VALUES[1], "id": 9}
    before = lake.current_files()
    Live(lake.sink(mode="upsert", key="date"), tmp_path, columns=FAR_TIMES).commit([changed])
    assert lake.numbers() == [FAR_VALUES[0], *FAR_VALUES[2:], changed]
    assert len(before & lake.current_files()) == 1, "the other file is not copied"


def test_a_path_is_escaped_as_delta_rs_writes_it_into_the_log(lake: DeltaLake) -> None:
    lake.create(LONG, TEXT)
    names = [f"a{chr(code)}b" for code in range(1, 0x250)] + ["😀", "a/b"]
    lake.handle().append([RemoveAction(name, True, 1, 1, {}) for name in names], {}, {}, blind=False)
    written = [json.loads(line)["remove"]["path"] for line in lake.log_entry(1) if '"remove"' in line]
    assert written == [escaped(name) for name in names]


def spark_writes(lake: DeltaLake, values: Sequence[str]) -> None:
    """Write a file for each value of the partition, named in the log as Hadoop has it: without escaping letters."""
    lake.create(LONG, TEXT, partition_by=["k"])
    actions = []
    for number, value in enumerate(values):
        path = lake.path / f"k={value}" / f"{number}.parquet"
        path.parent.mkdir()
        pq.write_table(pa.table({"id": [number]}), path)
        name = str(path.relative_to(lake.path)).replace(" ", "%20")
        added = {"path": name, "partitionValues": {"k": value}, "size": path.stat().st_size, "modificationTime": 1}
        actions.append({"add": {**added, "dataChange": True, "stats": '{"numRecords":1}'}})
    (lake.path / "_delta_log" / f"{1:020d}.json").write_text("\n".join(map(json.dumps, actions)))


@pytest.mark.parametrize("mode", [{"mode": "upsert", "key": "id"}, {"mode": "overwrite partitions"}])
def test_a_file_that_delta_rs_would_not_take_out_stops_the_pipeline_and_no_other_does(
    lake: DeltaLake, tmp_path: Path, mode: Any
) -> None:
    spark_writes(lake, ["a@b+c", "x y", "ü", "z"])
    live = Live(lake.sink(partition_by="k", **mode), tmp_path)
    for number, value in enumerate(["a@b+c", "x y"]):
        live.commit([{"id": number, "k": value}])
    expected = [{"id": number, "k": value} for number, value in enumerate(["a@b+c", "x y", "ü", "z"])]
    assert lake.rows() == lake.library_rows() == expected
    entry = live.stage([{"id": 2, "k": "ü"}])
    with pytest.raises(RefusedError, match=r"has the file k=ü/2.parquet, .* by another name, k=%C3%BC/2.parquet"):
        live.committer.commit(entry)
    live.committer.abort()
    live.commit([{"id": 3, "k": "z"}])
    assert lake.rows() == lake.library_rows() == expected


@pytest.mark.parametrize("mode", ["upsert", "overwrite partitions"])
@pytest.mark.parametrize("name", ["delta.appendOnly", "delta.enableChangeDataFeed", "deletionVectors"])
def test_what_a_table_has_that_cannot_be_kept_is_refused_by_name(lake: DeltaLake, mode: str, name: str) -> None:
    lake.create(LONG, TEXT, partition_by=["k"])
    if name == "deletionVectors":
        lake.change("protocol", minReaderVersion=3, minWriterVersion=7, readerFeatures=[name], writerFeatures=[name])
    else:
        lake.change("metaData", configuration={name: "true"})
    columns = T.StructType().add("id", T.LongType()).add("k", T.StringType())
    key: dict[str, Any] = {"key": "id"} if mode == "upsert" else {}
    sink = lake.sink(mode=mode, partition_by="k", **key)
    if mode == "overwrite partitions" and name == "delta.enableChangeDataFeed":
        sink.check_columns(columns)  # whole files come and go
        return
    with pytest.raises(RefusedError, match=name):
        sink.check_columns(columns)

"""The columns of a Delta sink's rows and of its table, its properties and features: what fits, and what does not."""

from __future__ import annotations

import datetime
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from tests.integration.streaming.sinks.delta.lake import LONG, TEXT, DeltaLake
from tests.integration.streaming.sinks.lake import COLUMNS, PIPELINE, Live, rows

TWINS = T.StructType().add("a", T.LongType()).add("A", T.LongType())

# Columns


def test_a_table_is_made_at_the_claim_and_not_before(lake: DeltaLake, tmp_path: Path) -> None:
    lake.sink().check_columns(COLUMNS)
    committer = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    assert committer.tail() is None and not lake.path.exists()
    Live(lake.sink(), tmp_path)
    assert lake.read() == [] and lake.table.schema().to_json() == json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": "id", "type": "long", "nullable": True, "metadata": {}},
                {"name": "k", "type": "string", "nullable": True, "metadata": {}},
            ],
        },
        separators=(",", ":"),
    )


@pytest.mark.parametrize(
    ("has", "more", "said"),
    [
        ([LONG], {}, r"has no column 'k', which the rows have as string.*DeltaSink\(schema='evolve'\)"),
        ([LONG, pa.field("K", pa.string())], {}, "has the column 'K', and the rows 'k': rename it"),
        ([LONG, pa.field("k", pa.int32())], {}, "column 'k' of table .* is integer, and the rows have it as string"),
        ([LONG, TEXT, pa.field("must", pa.int64(), nullable=False)], {}, "column 'must' of table .* is NOT NULL"),
        ([LONG, TEXT], {"partition_by": ["k"]}, r"is partitioned by \['k'\], and the sink declares partition_by=\[\]"),
        (
            [LONG, TEXT],
            {"configuration": {"delta.setTransactionRetentionDuration": "interval 7 days"}},
            "delta.setTransactionRetentionDuration='interval 7 days': a pipeline that is stopped for longer",
        ),
        ([LONG, TEXT], {"configuration": {"delta.columnMapping.mode": "name"}}, r"columnMapping\.mode='name'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name_before_anything_starts(
    lake: DeltaLake, has: list[pa.Field], more: dict[str, Any], said: str
) -> None:
    lake.create(*has, **more)
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)
    assert lake.table.version() == 0


@pytest.mark.parametrize("readers", [[], ["typeWidening"]])
@pytest.mark.parametrize("feature", ["rowTracking", "inCommitTimestamp", "icebergCompatV2", "unheardOf"])
def test_a_feature_that_the_sink_does_not_know_is_refused_by_name(
    lake: DeltaLake, feature: str, readers: list[str]
) -> None:
    lake.create(LONG, TEXT)
    more = {"minReaderVersion": 3, "readerFeatures": readers} if readers else {}
    lake.change("protocol", minWriterVersion=7, writerFeatures=[feature, *readers], **more)
    named = ", ".join(sorted([feature, *readers]))
    with pytest.raises(RefusedError, match=f"has the features {named}, which this sink can't keep"):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("delta.constraints.positive", "id > 0", "has the constraint delta.constraints.positive='id > 0'"),
        ("delta.enableRowTracking", "true", "delta.enableRowTracking='true': rows would need numbers"),
        ("delta.enableInCommitTimestamps", "true", "delta.enableInCommitTimestamps='true'"),
    ],
)
def test_a_property_that_the_sink_cannot_keep_is_refused_by_name(
    lake: DeltaLake, name: str, value: str, said: str
) -> None:
    lake.create(LONG, TEXT)
    lake.change("metaData", configuration={name: value})
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize("given", ["id", "other"], ids=["in-the-rows", "not-in-the-rows"])
@pytest.mark.parametrize("rule", ["delta.generationExpression", "delta.identity.start", "delta.invariants"])
def test_a_column_with_a_rule_is_refused_by_name(lake: DeltaLake, rule: str, given: str) -> None:
    lake.create(LONG, TEXT)
    ruled = {"name": "id", "type": "long", "nullable": True, "metadata": {rule: "1"}}
    other = {"name": "other", "type": "long", "nullable": True, "metadata": {}}
    lake.change("metaData", schemaString=json.dumps({"type": "struct", "fields": [ruled, other]}))
    with pytest.raises(RefusedError, match=f"column 'id' of .*{rule}"):
        lake.sink().check_columns(T.StructType().add(given, T.LongType()))


def test_a_rule_of_a_part_of_a_column_is_refused_by_name(lake: DeltaLake) -> None:
    lake.create(LONG, TEXT)
    part = {"name": "a", "type": "long", "nullable": True, "metadata": {"delta.invariants": "1"}}
    parts = {"type": "array", "elementType": {"type": "struct", "fields": [part]}, "containsNull": True}
    column = {"name": "s", "type": parts, "nullable": True, "metadata": {}}
    lake.change("metaData", schemaString=json.dumps({"type": "struct", "fields": [column]}))
    with pytest.raises(RefusedError, match=r"column 's\.a' of .*delta\.invariants"):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        (T.StructType(), (), "no columns"),
        (T.StructType().add("a b", T.LongType()), (), r"column 'a b' has ' ' in its name"),
        (T.StructType().add("id", T.LongType()).add("ID", T.LongType()), (), "differ in case only"),
        (T.StructType().add("id", T.LongType()).add("id", T.LongType()), (), "'id' and 'id' are called the same"),
        (T.StructType().add("s", T.StructType().add("a b", T.LongType())), (), r"column 'a b' has ' ' in its name"),
        (T.StructType().add("s", T.ArrayType(TWINS)), (), "fields of column 's', 'a' and 'A' differ in case only"),
        (T.StructType().add("v", T.VariantType()), (), "column 'v' has the type variant"),
        (T.StructType().add("id", T.LongType()), ("day",), "partition_by names 'day'; the columns are id"),
        (T.StructType().add("id", T.LongType()), ("id",), "all columns are in partition_by"),
        (T.StructType().add("at", T.TimestampType()), ("at",), "column 'at' of partition_by is timestamp"),
        (T.StructType().add("a", T.DecimalType(8, 2)), ("a",), "column 'a' of partition_by is decimal"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    lake: DeltaLake, columns: T.StructType, by: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        lake.sink(partition_by=by).check_columns(columns)


ZONELESS = T.MapType(T.StringType(), T.ArrayType(T.TimestampNTZType()))


@pytest.mark.parametrize("columns", [T.StructType().add("m", ZONELESS), T.StructType().add("m", T.ArrayType(ZONELESS))])
def test_a_time_without_zone_in_a_map_is_refused_where_delta_rs_overlooks_it(
    lake: DeltaLake, tmp_path: Path, columns: T.StructType
) -> None:
    said = r"column 'm' has TIMESTAMP_NTZ within a map, .*'delta.feature.timestampNtz'='supported'"
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(columns)
    lake.create(LONG)
    sink = lake.sink(schema="evolve")
    with pytest.raises(RefusedError, match=said):
        sink.check_columns(columns)
    lake.table.alter.add_feature(TableFeatures.TimestampWithoutTimezone, allow_protocol_versions_increase=True)
    value = [("a", [datetime.datetime(2024, 1, 1)])]
    given = [{"m": value if isinstance(columns["m"].dataType, T.MapType) else [value]}]
    Live(sink, tmp_path, columns=columns).commit(given)
    assert lake.read() == [{"id": None, **given[0]}]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A b"}, "name='A b'"),
        ({"path": "relative"}, "neither an absolute path nor a URL"),
        ({"path": "s3://key:secret@bucket/x"}, "credentials"),
        ({"path": "/tmp/a%20b"}, "delta-rs takes '%20' for another character"),
        ({"path": "file:///tmp/a%20b"}, "delta-rs takes '%20' for another character"),
        ({"schema": "any"}, "schema='any'"),
        ({"compression": "brotli"}, "compression='brotli'"),
        ({"max_file_bytes": 10}, "at least 1 MiB"),
        ({"compact_every": 0}, r"compact_every=0\): a number of commits"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        DeltaSink(**{"name": "lake", "path": "/tmp/x", **changed})
    assert "secret" not in str(refused.value)


def test_an_option_with_which_two_writers_of_a_version_succeed_is_refused(
    lake: DeltaLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = lake.sink(storage_options={"AWS_S3_ALLOW_UNSAFE_RENAME": "true"})
    with pytest.raises(RefusedError, match="AWS_S3_ALLOW_UNSAFE_RENAME='true' lets two writers"):
        sink.check_columns(COLUMNS)
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    with pytest.raises(RefusedError, match="AWS_S3_ALLOW_UNSAFE_RENAME='true' lets two writers"):
        lake.sink().check_columns(COLUMNS)


def test_the_extra_that_is_missing_is_named(lake: DeltaLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deltalake", None)
    with pytest.raises(RefusedError, match=r"pip install 'airflow-provider-exactlyonce\[delta\]'"):
        lake.sink().check_columns(COLUMNS)


def test_columns_that_the_table_lacks_are_added_where_that_is_declared(lake: DeltaLake, tmp_path: Path) -> None:
    sink = lake.sink(schema="evolve")
    Live(sink, tmp_path).commit(rows(0, 2))
    wider = T.StructType().add("id", T.LongType()).add("k", T.StringType()).add("at", T.TimestampNTZType())
    at = datetime.datetime(2024, 1, 1)
    newer = Live(sink, tmp_path, run=2, columns=wider)
    newer.commit([{"id": 2, "k": "k2", "at": at}])
    older = Live(sink, tmp_path, run=3)
    older.commit(rows(3, 1))
    assert {row["id"]: row["at"] for row in lake.read()} == {0: None, 1: None, 2: at, 3: None}
    assert lake.table.to_pyarrow_table().num_rows == 4


def overwrite(table: DeltaTable) -> None:
    write_deltalake(table, pa.Table.from_pylist([], pa.schema([LONG])), mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize(("committed", "lose"), [(0, lambda table: table.restore(0)), (1, overwrite)])
def test_a_column_that_the_table_loses_after_the_start_stops_the_pipeline(
    lake: DeltaLake, tmp_path: Path, committed: int, lose: Callable[[DeltaTable], object]
) -> None:
    lake.create(LONG)
    sink = lake.sink(schema="evolve")
    live = Live(sink, tmp_path)
    for number in range(committed):
        live.commit(rows(number, 1))
    entry = live.stage(rows(committed, 1))
    lose(lake.table)
    with pytest.raises(RefusedError, match=r"has lost the column 'k' since the start, .*: start the pipeline again"):
        live.committer.commit(entry)
    live.committer.abort()
    assert lake.read() == []
    Live(sink, tmp_path, run=2).commit(rows(10, 1))
    assert lake.read() == rows(10, 1)


def test_a_null_in_a_column_that_is_not_null_in_the_table_is_refused(lake: DeltaLake, tmp_path: Path) -> None:
    lake.create(LONG, pa.field("k", pa.string(), nullable=False))
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 3))
    with pytest.raises(RecordRefusedError, match="column 'k' is NOT NULL in the table, and null in 1 rows"):
        live.stage([{"id": 1, "k": None}])

"""The columns of an Iceberg sink's rows and of its table, and its catalog: what fits, and what does not."""

from __future__ import annotations

import datetime
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.transforms import parse_transform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import (
    RecordRefusedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.integration.streaming.sinks.iceberg.lake import LONG, NAME, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import COLUMNS, PIPELINE, Live, rows


def test_a_table_is_made_when_the_tasks_need_it_and_not_before(lake: IcebergLake, tmp_path: Path) -> None:
    sink = lake.sink(partition_by=["k"])
    sink.check_columns(COLUMNS)
    committer = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    assert committer.tail() is None
    assert not (lake.folder / "warehouse").exists()
    Live(sink, tmp_path)
    assert lake.rows() == []
    assert [(field.name, field.field_type, field.required) for field in lake.table.schema().fields] == [
        ("id", LongType(), False),
        ("k", StringType(), False),
    ]
    assert [(field.name, str(field.transform)) for field in lake.table.spec().fields] == [("k", "identity")]


@pytest.mark.parametrize(
    ("has", "more", "said"),
    [
        ([LONG], {}, r"has no column 'k', which the rows have as string.*IcebergSink\(schema='evolve'\)"),
        ([LONG, NestedField(2, "K", StringType())], {}, "has the column 'K', and the rows 'k': rename it"),
        (
            [LONG, NestedField(2, "k", IntegerType())],
            {},
            "column 'k' of .* is int, and the rows have it as string",
        ),
        (
            [LONG, TEXT, NestedField(3, "must", LongType(), required=True)],
            {},
            "column 'must' of table .* is NOT NULL, and the rows lack it",
        ),
        (
            [LONG, TEXT],
            {"partition_spec": PartitionSpec(PartitionField(2, 1000, parse_transform("identity"), "k"))},
            r"is partitioned by \['k'\], and the sink declares partition_by=\[\]",
        ),
        (
            [LONG, TEXT],
            {"partition_spec": PartitionSpec(PartitionField(1, 1000, parse_transform("bucket[16]"), "b"))},
            r"is partitioned by \['bucket\(16, id\)'\], and the sink declares",
        ),
        (
            [LONG, TEXT],
            {"properties": {"format-version": "1"}},
            "format version 1; this sink writes version 2: ALTER",
        ),
        ([LONG, TEXT], {"properties": {"encryption.key-id": "x"}}, "has encryption.key-id='x', and this sink does not"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_by_name_before_anything_starts(
    lake: IcebergLake, has: list[NestedField], more: dict[str, Any], said: str
) -> None:
    table = lake.create(*has, **more)
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)
    assert lake.table.metadata_location == table.metadata_location


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        (T.StructType(), (), "no columns"),
        (T.StructType().add("id", T.LongType()).add("ID", T.LongType()), (), "differ in case only"),
        (T.StructType().add("v", T.VariantType()), (), "column 'v' has the type variant"),
        (T.StructType().add("id", T.LongType()), ("day",), "partition_by names 'day'; the columns are id"),
        (T.StructType().add("id", T.LongType()), ("bucket[16](id)",), "partition_by names 'bucket"),
        (T.StructType().add("id", T.LongType()), ("truncate(id)",), r"bucket\(16, column\) or truncate\(16, column\)"),
        (T.StructType().add("id", T.LongType()), ("bucket(0, id)",), "with any number from 1"),
        (T.StructType().add("id", T.LongType()), ("day(16, id)",), "year, month, day or hour of one"),
        (T.StructType().add("id", T.DoubleType()), ("bucket(16, id)",), "column 'id' is double; accepted are tinyint"),
        (T.StructType().add("at", T.TimestampType()), ("at",), "column 'at' is timestamp; accepted are string"),
        (T.StructType().add("d", T.DateType()), ("hour(d)",), "column 'd' is date; accepted are timestamp"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(
    lake: IcebergLake, columns: T.StructType, by: tuple[str, ...], said: str
) -> None:
    with pytest.raises(RefusedError, match=said):
        lake.sink(partition_by=by).check_columns(columns)


@pytest.mark.parametrize(
    ("by", "name"), [(("day(at)",), "at_day"), (("bucket(4, at)", "bucket(8, at)"), "at_bucket"), (("ü",), "_xFC")]
)
def test_a_part_of_partition_by_that_has_the_name_of_another_is_refused_where_a_table_is_made(
    lake: IcebergLake, tmp_path: Path, by: tuple[str, ...], name: str
) -> None:
    columns = T.StructType().add("at", T.TimestampType()).add("at_day", T.DateType())
    columns = columns.add("ü", T.StringType()).add("_xFC", T.StringType())
    with pytest.raises(RefusedError, match=rf"partition_by='.*' would have the name '{name}' in the table"):
        Live(lake.sink(partition_by=by), tmp_path, columns=columns)


@pytest.mark.parametrize("letter", ["#", "?"])
def test_a_warehouse_whose_files_would_be_one_is_refused_before_a_table_is_made(
    lake: IcebergLake, tmp_path: Path, letter: str
) -> None:
    lake.properties["warehouse"] = f"file://{tmp_path}/a{letter}b/warehouse"
    with pytest.raises(
        RefusedError, match=rf"table lake\.shop\.events is in 'file://.*pyiceberg ends .* at '[{letter}]'"
    ):
        Live(lake.sink(), tmp_path)
    assert not lake.catalog.table_exists(NAME)
    assert not list(tmp_path.glob("a*"))


def test_a_table_whose_files_would_be_one_is_refused_by_name(lake: IcebergLake, tmp_path: Path) -> None:
    said = "pyiceberg ends the path at '#'"
    lake.create(LONG, TEXT, properties={"write.data.path": f"file://{tmp_path}/a#b"})
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)
    lake.catalog.drop_table(NAME)
    lake.create(LONG, TEXT, location=f"file://{tmp_path}/a#b")
    with pytest.raises(RefusedError, match=said):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize(
    ("column", "kind", "is_former"),
    [
        ("id_bucket_16", T.StringType(), False),
        ("id_bucket_16", T.StringType(), True),
        ("s", T.StructType().add("part", T.StringType()), False),
    ],
)
def test_a_new_column_that_has_the_name_of_a_part_of_the_partitioning_is_refused_before_anything_is_written(
    lake: IcebergLake, tmp_path: Path, column: str, kind: T.DataType, is_former: bool
) -> None:
    name = column if column != "s" else "s.part"
    bucket = PartitionField(1, 1000, parse_transform("bucket[16]"), name)
    lake.create(LONG, TEXT, partition_spec=PartitionSpec(bucket))
    if is_former:
        with lake.table.update_spec() as update:
            update.remove_field(name)
    table, more = lake.table, T.StructType(list(COLUMNS.fields)).add(column, kind)
    sink = lake.sink(schema="evolve", partition_by=() if is_former else ["bucket(16, id)"])
    said = rf"lacks the column '{column}', and it can't be added: '{name}' is the name of bucket\(16, id\)"
    with pytest.raises(RefusedError, match=said):
        sink.check_columns(more)
    with pytest.raises(RefusedError, match=said):
        Live(sink, tmp_path, columns=more)
    assert lake.table.metadata_location == table.metadata_location


def test_a_new_column_that_has_the_name_of_one_by_which_the_table_was_partitioned_is_refused(lake: IcebergLake) -> None:
    lake.create(LONG, TEXT, partition_spec=PartitionSpec(PartitionField(2, 1000, parse_transform("identity"), "k")))
    with lake.table.update_spec() as update:
        update.remove_field("k")
    with lake.table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("k")
    with pytest.raises(RefusedError, match="'k' is the name of a part in what the table is or was partitioned by"):
        lake.sink(schema="evolve").check_columns(COLUMNS)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A b"}, "name='A b'"),
        ({"table": "events"}, r"IcebergSink\('events'\): name catalog, namespace and table"),
        ({"table": "lake..events"}, "name catalog, namespace and table"),
        ({"schema": "any"}, "schema='any'"),
        ({"compression": "brotli"}, "compression='brotli'"),
        ({"max_file_bytes": 10}, "at least 1 MiB"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(lake: IcebergLake, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        lake.sink(**changed)


def test_the_extra_that_is_missing_is_named(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyiceberg.io.pyarrow", None)
    with pytest.raises(RefusedError, match=r"pip install 'airflow-provider-exactlyonce\[iceberg\]'"):
        lake.sink().check_columns(COLUMNS)


@pytest.mark.parametrize("given", [{}, {"type": "unheard-of"}, {"type": "rest"}])
def test_a_catalog_that_cannot_be_opened_is_refused_and_shows_no_secret(
    lake: IcebergLake, given: dict[str, str]
) -> None:
    sink = lake.sink(catalog_properties={"s3.secret-access-key": "hunter2", **given})
    with pytest.raises(RefusedError, match=r"'lake' can't be opened .* which has s3\.secret-access-key") as refused:
        sink.check_columns(COLUMNS)
    assert "hunter2" not in "".join(traceback.format_exception(refused.value))


def test_a_catalog_of_the_environment_is_used(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyiceberg import catalog as pyiceberg_catalog
    from pyiceberg.utils.config import Config

    for name, value in lake.properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__LAKE__{name.upper()}", value)
    monkeypatch.setattr(pyiceberg_catalog, "_ENV_CONFIG", Config())  # it is read once
    Live(lake.sink(catalog_properties={}), tmp_path).commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_a_catalog_of_a_connection_is_used(lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXACTLYONCE_STORES", json.dumps({"catalog": lake.properties}))
    Live(lake.sink(catalog_properties={}, conn_id="catalog"), tmp_path).commit(rows(0, 2))
    assert lake.ids() == [0, 1]


def test_columns_that_the_table_lacks_are_added_where_that_is_declared(lake: IcebergLake, tmp_path: Path) -> None:
    sink = lake.sink(schema="evolve")
    Live(sink, tmp_path).commit(rows(0, 2))
    nested = T.StructType().add("a", T.ArrayType(T.LongType()))
    wider = T.StructType([*COLUMNS.fields, T.StructField("at", T.TimestampNTZType()), T.StructField("n", nested)])
    at = datetime.datetime(2024, 1, 1)
    newer = Live(sink, tmp_path, run=2, columns=wider)
    newer.commit([{"id": 2, "k": "k2", "at": at, "n": {"a": [1, None]}}])
    older = Live(sink, tmp_path, run=3)
    older.commit(rows(3, 1))
    assert {row["id"]: (row["at"], row["n"]) for row in lake.rows()} == {
        0: (None, None),
        1: (None, None),
        2: (at, {"a": [1, None]}),
        3: (None, None),
    }
    assert lake.rows() == lake.library_rows()


def test_a_column_with_a_dot_is_added_beside_a_struct(lake: IcebergLake, tmp_path: Path) -> None:
    sink = lake.sink(schema="evolve")
    nested = T.StructType([*COLUMNS.fields, T.StructField("a", T.StructType().add("b", T.LongType()))])
    Live(sink, tmp_path, columns=nested).commit([{"id": 0, "k": "k0", "a": {"b": 1}}])
    wider = T.StructType([*nested.fields, T.StructField("a.c", T.LongType())])
    Live(sink, tmp_path, run=2, columns=wider).commit([{"id": 1, "k": "k1", "a": {"b": 2}, "a.c": 3}])
    assert [(row["a"], row["a.c"]) for row in lake.rows()] == [({"b": 1}, None), ({"b": 2}, 3)]
    assert lake.rows() == lake.library_rows()


def test_a_column_that_would_have_the_path_of_a_part_is_refused_by_name(lake: IcebergLake, tmp_path: Path) -> None:
    """Iceberg can't have both, and says so in a way that looks as if the catalog did not answer."""
    struct = T.StructField("a", T.StructType().add("b", T.LongType()))
    column = T.StructField("a.b", T.LongType())
    both = T.StructType([*COLUMNS.fields, struct, column])
    said = r"two things 'a\.b' in 'a' and 'a\.b': rename one"
    sink = lake.sink(schema="evolve")
    with pytest.raises(RefusedError, match=f"sink lake: .*{said}"):
        sink.check_columns(both)
    Live(sink, tmp_path, columns=T.StructType([*COLUMNS.fields, struct]))
    with pytest.raises(RefusedError, match=f"table lake.shop.events of sink lake: .*{said}"):
        sink.check_columns(T.StructType([*COLUMNS.fields, column]))


def test_a_null_in_a_column_that_is_required_in_the_table_is_refused(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, NestedField(2, "k", StringType(), required=True))
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 3))
    with pytest.raises(RecordRefusedError) as refused:
        live.stage([{"id": 1, "k": None}])
    assert "column 'k' is NOT NULL in the table, and null in 1 rows" in str(typed_errors.find(str(refused.value)))
    assert lake.ids() == [0, 1, 2]

"""Values, statistics and partitions of an Iceberg table, as readers see them."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo, Reference
from pyiceberg.expressions.literals import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import parse_transform
from pyiceberg.types import DateType, TimestamptzType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import (
    COLUMNS,
    EVERY_TYPE,
    FAR_TIMES,
    FAR_VALUES,
    ODD,
    UTC,
    VALUES,
    Live,
    rows,
)


def test_files_have_the_ids_of_the_table(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 3))
    with lake.table.update_schema() as update:
        update.rename_column("k", "key")
    assert lake.library_rows() == [{"id": row["id"], "key": row["k"]} for row in rows(0, 3)]
    assert lake.rows() == lake.library_rows()


def test_statistics_leave_out_files_and_no_row(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path, columns=EVERY_TYPE)
    empty = dict.fromkeys(EVERY_TYPE.names)
    other = {**empty, "id": 10, "double": float("nan"), "float": 1.5, "text": "z", "amount": Decimal("5.25")}
    live.commit(VALUES, [other])
    first, second = sorted(lake.current_data_files(), key=lambda file: -file.record_count)
    ids = {field.name: field.field_id for field in lake.table.schema().fields}
    assert (first.record_count, second.record_count) == (3, 1)
    assert first.null_value_counts[ids["text"]] == 1
    assert ids["double"] in first.upper_bounds and ids["double"] not in second.upper_bounds, "NaN is greater than all"
    assert ids["float"] in second.lower_bounds
    for condition, expected in (
        (EqualTo(term=Reference("text"), value=literal("ü" * 100)), [1]),
        ("amount > 5.00", [10]),
        ("at >= '2024-02-29T23:59:59.999999+00:00'", [1]),
        ("local <= '1900-01-01T00:00:00.000001'", [1]),
        ("date < '1600-01-01'", [1]),
        ("big > 1", [1]),
        ("id < 3", [1, 2]),
        ("int = -2147483648", [1]),
        ("bool = true", [1]),
    ):
        assert [row["id"] for row in lake.find(row_filter=condition)] == expected, condition


@pytest.mark.slow
def test_a_row_group_whose_values_have_no_bounds_leaves_the_file_without(lake: IcebergLake, tmp_path: Path) -> None:
    """Parquet has no bounds of texts that are long: those of the other row groups must not stand for them."""
    live = Live(lake.sink(compression="none"), tmp_path)
    long = [{"id": number, "k": "m" * 1000} for number in range(34_000)]
    task = live.write(live.begin(), 0, long, [{"id": -1, "k": "z" * 10_000}])
    assert pq.read_metadata(task["files"][0]["path"].removeprefix("file://")).num_row_groups == 2
    key = str(lake.table.schema().find_field("k").field_id)
    assert key not in task["files"][0]["statistics"]["upper_bounds"]


MORE_ODD = [*ODD, "", "__HIVE_DEFAULT_PARTITION__", "x" * 300]


def test_odd_values_of_partitions_are_found_by_their_value(lake: IcebergLake, tmp_path: Path) -> None:
    given = [{"id": number, "k": value} for number, value in enumerate(MORE_ODD)]
    Live(lake.sink(partition_by="k"), tmp_path).commit(given)
    assert lake.rows() == given
    for row in given:
        if row["k"] is not None:
            assert lake.find(row_filter=EqualTo(term=Reference("k"), value=literal(str(row["k"])))) == [row]
    assert len(lake.files()) == len(MORE_ODD)


def test_a_column_of_whatever_name_can_make_partitions(lake: IcebergLake, tmp_path: Path) -> None:
    names = ["a b", "a.b", "Ünï", "1st", "x-y", "名前"]
    columns = T.StructType(
        [T.StructField("id", T.LongType()), *(T.StructField(name, T.StringType()) for name in names)]
    )
    given = [{"id": 1, **{name: name for name in names}}, {"id": 2, **dict.fromkeys(names)}]
    sink = lake.sink(partition_by=[*names, "bucket(4, 名前)"])
    Live(sink, tmp_path, columns=columns).commit(given)
    Live(sink, tmp_path, run=2, columns=columns)
    assert lake.rows() == lake.library_rows() == given
    assert lake.find(row_filter=EqualTo(term=Reference("名前"), value=literal("名前"))) == given[:1]


def test_a_text_whose_bound_cannot_be_cut_is_written_without(lake: IcebergLake, tmp_path: Path) -> None:
    given = [{"id": 1, "k": "x" * 15 + "\ud7ff" + "y"}]
    Live(lake.sink(), tmp_path).commit(given)
    assert lake.rows() == given
    assert lake.find(row_filter="k > 'x'") == given


def test_a_file_lacks_bounds_of_those_times_only_of_which_python_has_none(lake: IcebergLake, tmp_path: Path) -> None:
    near = {**FAR_VALUES[1], "local": 0}
    Live(lake.sink(), tmp_path, columns=FAR_TIMES).commit([FAR_VALUES[0], near])
    (file,) = lake.current_data_files()
    bounded = {lake.table.schema().find_column_name(key) for key in file.lower_bounds}
    assert bounded == {"id", "local"} == {lake.table.schema().find_column_name(key) for key in file.upper_bounds}
    assert lake.find(row_filter="at > '2024-01-01T00:00:00+00:00'", selected_fields=("id",)) == [{"id": 1}]


def test_partitions_of_other_types_are_read_as_such(lake: IcebergLake, tmp_path: Path) -> None:
    kinds: dict[str, T.DataType] = {
        "day": T.DateType(),
        "flag": T.BooleanType(),
        "n": T.ShortType(),
        "amount": T.DecimalType(8, 2),
    }
    columns = T.StructType([T.StructField("id", T.LongType()), *(T.StructField(*column) for column in kinds.items())])
    given: list[dict[str, Any]] = [
        {"id": 1, "day": datetime.date(1969, 12, 31), "flag": False, "n": -3, "amount": Decimal("-0.01")},
        {"id": 2, **dict.fromkeys(kinds)},
        {"id": 3, "day": datetime.date(2024, 2, 29), "flag": True, "n": 7, "amount": Decimal("123456.78")},
    ]
    Live(lake.sink(partition_by=list(kinds)), tmp_path, columns=columns).commit(given)
    assert lake.library_rows() == given
    assert lake.rows() == given
    assert [row["id"] for row in lake.find(row_filter="amount < 0 and day < '1970-01-01'")] == [1]


INSTANTS = [
    *(datetime.datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC)),
    *(datetime.datetime(1583, 2, 28, 1, tzinfo=UTC), datetime.datetime(2024, 2, 29, 23, 59, 59, 1, UTC)),
    datetime.datetime(1969, 1, 1, tzinfo=UTC),
]


@pytest.mark.parametrize(
    "transform", [*(pytest.param(name, marks=pytest.mark.slow) for name in ("year", "month", "day")), "hour"]
)
def test_times_are_partitioned_as_iceberg_has_it(lake: IcebergLake, tmp_path: Path, transform: str) -> None:
    columns = T.StructType().add("id", T.LongType()).add("at", T.TimestampType())
    given: list[dict[str, Any]] = [{"id": number, "at": at} for number, at in enumerate(INSTANTS)]
    Live(lake.sink(partition_by=f"{transform}(at)"), tmp_path, columns=columns).commit([*given, {"id": 99, "at": None}])
    expected = parse_transform(transform).transform(TimestamptzType())
    micros = [(at - datetime.datetime(1970, 1, 1, tzinfo=UTC)) // datetime.timedelta(microseconds=1) for at in INSTANTS]
    values = {file.partition[0] for file in lake.current_data_files()}
    assert values == {expected(moment) for moment in micros} | {None}
    assert lake.rows() == [*given, {"id": 99, "at": None}]
    for row in given:
        assert lake.find(row_filter=f"at = '{row['at'].isoformat()}'") == [row]


#: The hashes that the specification of Iceberg has as examples (appendix B).
HASHES: list[tuple[T.DataType, Any, int]] = [
    (T.IntegerType(), 34, 2017239379),
    (T.LongType(), 34, 2017239379),
    (T.DecimalType(9, 2), Decimal("14.20"), -500754589),
    (T.DateType(), datetime.date(2017, 11, 16), -653330422),
    (T.TimestampType(), datetime.datetime(2017, 11, 16, 22, 31, 8, tzinfo=UTC), -2047944441),
    (T.TimestampNTZType(), datetime.datetime(2017, 11, 16, 22, 31, 8), -2047944441),
    (T.StringType(), "iceberg", 1210000089),
]


@pytest.mark.parametrize(("kind", "value", "hashed"), HASHES, ids=[kind.simpleString() for kind, _, _ in HASHES])
def test_buckets_are_those_of_icebergs_specification(
    lake: IcebergLake, tmp_path: Path, kind: T.DataType, value: Any, hashed: int
) -> None:
    columns = T.StructType().add("id", T.LongType()).add("v", kind)
    given = [{"id": 1, "v": value}, {"id": 2, "v": None}, {"id": 3, "v": value}]
    entry = Live(lake.sink(partition_by="bucket(1000, v)"), tmp_path, columns=columns).commit(given)
    assert entry.rows == 3
    assert {file.partition[0] for file in lake.current_data_files()} == {(hashed & 0x7FFFFFFF) % 1000, None}
    assert [field.name for field in lake.table.spec().fields] == ["v_bucket"]
    assert lake.rows() == lake.library_rows() == given


def test_values_are_cut_as_icebergs_specification_has_it(lake: IcebergLake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("n", T.IntegerType()).add("d", T.DecimalType(6, 2))
    columns = columns.add("s", T.StringType())
    given: list[dict[str, Any]] = [
        {"id": 1, "n": 1, "d": Decimal("10.65"), "s": "iceberg"},
        {"id": 2, "n": -1, "d": Decimal("-0.01"), "s": "üñß€😀"},
        {"id": 3, "n": None, "d": None, "s": None},
    ]
    cut = ["truncate(10, n)", "truncate(50, d)", "truncate(3, s)"]
    Live(lake.sink(partition_by=cut), tmp_path, columns=columns).commit(given)
    partitions_of = [tuple(file.partition[n] for n in range(3)) for file in lake.current_data_files()]
    expected = [(0, Decimal("10.50"), "ice"), (-10, Decimal("-0.50"), "üñß"), (None, None, None)]
    assert sorted(partitions_of, key=str) == sorted(expected, key=str)
    assert [field.name for field in lake.table.spec().fields] == ["n_trunc", "d_trunc", "s_trunc"]
    assert lake.rows() == lake.library_rows() == given
    assert [row["id"] for row in lake.find(row_filter="n < 0")] == [2]
    again = Live(lake.sink(partition_by=cut), tmp_path, run=2, columns=columns)
    again.commit([{**given[0], "id": 4}])
    assert len(lake.ids()) == 4
    again.number += 1
    with pytest.raises(RecordRefusedError) as raised:
        again.stage([{**given[0], "n": -(2**31)}])
    marked = typed_errors.find(str(raised.value))
    assert isinstance(marked, RecordRefusedError), "Spark passes on its text only"
    assert "column n is -2147483648, which truncate[10]" in str(marked)


def test_days_of_dates_are_partitioned_as_iceberg_has_it(lake: IcebergLake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("d", T.DateType())
    days = [datetime.date(1969, 12, 31), datetime.date(1970, 1, 1), datetime.date(1583, 2, 28)]
    given: list[dict[str, Any]] = [{"id": number, "d": day} for number, day in enumerate(days)]
    for transform in ("year", "month", "day"):
        transformed = partitions._TRANSFORMS[transform](pa.array(days, pa.date32())).to_pylist()
        expected = parse_transform(transform).transform(DateType())
        assert transformed == [expected((day - datetime.date(1970, 1, 1)).days) for day in days]
    Live(lake.sink(partition_by="month(d)"), tmp_path, columns=columns).commit(given)
    assert lake.rows() == given


def create_with_dropped_part(lake: IcebergLake, *more: PartitionField) -> None:
    """Make a table that has a part of its partitioning dropped while its format has version 1, and then gets 2."""
    part = PartitionField(2, 1000, parse_transform("identity"), "k")
    lake.create(LONG, TEXT, partition_spec=PartitionSpec(part, *more), properties={"format-version": "1"})
    with lake.table.update_spec() as update:
        update.remove_field("k")
    with lake.table.transaction() as transaction:
        transaction.upgrade_table_version(2)
    assert str(lake.table.spec().fields[0].transform) == "void"


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("partition_by", [(), ("bucket(4, id)",)])
def test_a_part_that_was_dropped_in_version_1_is_not_declared_and_is_null(
    lake: IcebergLake, tmp_path: Path, mode: str, partition_by: tuple[str, ...]
) -> None:
    create_with_dropped_part(lake, *partitions.new_spec(partition_by, Schema(LONG), "the table").fields)
    keyed = {"mode": mode, "key": ["id", "k"]} if mode == "upsert" else {}
    live = Live(lake.sink(partition_by=partition_by, compact_every=2, **keyed), tmp_path)
    entries = [live.commit([{"id": number, "k": "a"}, {"id": number + 1, "k": "a"}]) for number in (1, 2, 3, 4)]
    ids = [1, 2, 3, 4, 5] if mode == "upsert" else [1, 2, 2, 3, 3, 4, 4, 5]
    assert lake.ids() == ids
    assert [row["id"] for row in lake.find(row_filter="id >= 4")] == [number for number in ids if number >= 4]
    assert live.audit(entries) == []
    assert {file.partition[0] for file in lake.current_data_files()} == {None}
    with pytest.raises(RefusedError, match="partition_by="):
        lake.sink(partition_by=["k", *partition_by]).check_columns(COLUMNS)


def test_a_part_that_was_dropped_together_with_its_column_is_refused_with_the_way_out(
    lake: IcebergLake, tmp_path: Path
) -> None:
    create_with_dropped_part(lake)
    with lake.table.update_schema() as change:
        change.delete_column("k")
    columns = T.StructType().add("id", T.LongType())
    with pytest.raises(RefusedError, match=r"'k' in its partitioning, .*: ALTER TABLE … DROP PARTITION FIELD k$"):
        lake.sink().check_columns(columns)
    with lake.table.update_spec() as update:
        update.remove_field("k")
    live = Live(lake.sink(), tmp_path, columns=columns)
    entries = [live.commit([{"id": number}]) for number in range(2)]
    assert lake.ids() == [0, 1]
    assert live.audit(entries) == []


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_files_of_a_partitioning_whose_column_was_dropped_stay_as_they_are(
    lake: IcebergLake, tmp_path: Path, mode: str
) -> None:
    part = PartitionField(2, 1000, parse_transform("identity"), "k")
    lake.create(LONG, TEXT, partition_spec=PartitionSpec(part))
    for number in range(3):
        lake.write(number, 1)
    with lake.table.update_spec() as update:
        update.remove_field("k")
    with lake.table.update_schema() as change:
        change.delete_column("k")
    keyed = {"mode": mode, "key": "id"} if mode == "upsert" else {}
    live = Live(lake.sink(**keyed), tmp_path, columns=T.StructType().add("id", T.LongType()))
    entries = [live.commit([{"id": 10 + number}]) for number in range(3)]
    assert lake.ids() == [row["id"] for row in lake.find()] == [0, 1, 2, 10, 11, 12]
    assert live.audit(entries) == []
    if mode == "upsert":
        with pytest.raises(RefusedError, match="in a partitioning by 'k', whose column was dropped"):
            live.commit([{"id": 1}])
        assert lake.ids() == [0, 1, 2, 10, 11, 12]

"""What is read of an Iceberg table's snapshots, and what is refused, on tables that pyiceberg has written."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as I
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import StringType as TextType
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import (
    ArrayType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
)

from airflow_provider_exactlyonce.checkpoint.start_checks import check_first_offsets
from airflow_provider_exactlyonce.exceptions import BatchFailedError, DataLostError, RefusedError
from airflow_provider_exactlyonce.streaming.job.table_stream import TableReading, TableStreamReader
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files
from airflow_provider_exactlyonce.tables import table_log
from airflow_provider_exactlyonce.tables.iceberg_log import IcebergTableLog
from airflow_provider_exactlyonce.tables.offsets import TableOffsets
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position
from airflow_provider_exactlyonce.tables.table_log import TableVersion
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.iceberg.merge_on_read import delete_first_row

NAME = "shop.sales.orders"


@pytest.fixture
def properties(tmp_path: Path) -> dict[str, str]:
    """Give a catalog with a table of three snapshots, of which each adds one file of two rows."""
    (tmp_path / "warehouse").mkdir()
    given = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}/warehouse"}
    catalog = load_catalog("shop", **given)
    catalog.create_namespace("sales")
    table = catalog.create_table("sales.orders", rows().schema)
    for snapshot in range(3):
        table.append(rows(2 * snapshot, 2 * snapshot + 1))
    catalog.close()
    return given


@pytest.fixture
def catalog(properties: Mapping[str, str]) -> Iterator[Catalog]:
    opened = load_catalog("shop", **properties)
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: Catalog) -> Table:
    return catalog.load_table("sales.orders")


def rows(*ids: int) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    return pa.table({"id": list(ids), "text": [f"row {number}" for number in ids]}, schema)


def read(properties: Mapping[str, str], start: int = 0) -> list[TableVersion]:
    return list(IcebergTableLog(NAME, properties).versions(Position(start)))


def ids(properties: Mapping[str, str], version: TableVersion) -> list[int]:
    store = IcebergTableLog(NAME, properties).store
    return [number for file in version.files for number in pq.read_table(store.open(file.path))["id"].to_pylist()]


def whole(properties: Mapping[str, str], version: int) -> list[TableVersion]:
    return list(IcebergTableLog(NAME, properties).versions(Position(version, SNAPSHOT)))


def compact(properties: Mapping[str, str], all_rows: pa.Table) -> None:
    """Write all rows into one file, as a compaction does."""
    ours = IcebergTable(NAME, properties)
    ours.open()
    new = list(_dataframe_to_data_files(ours.metadata, all_rows, ours.io))
    ours.append(new, {}, lambda *_: {}, removed=list(current_files(ours)), changes_rows=False)
    ours.close()


def expire(table: Table, *numbers: int) -> None:
    known = {snapshot.sequence_number: snapshot.snapshot_id for snapshot in table.metadata.snapshots}
    table.maintenance.expire_snapshots().by_ids([known[number] for number in numbers]).commit()


def test_each_snapshot_has_the_files_that_it_adds(properties: Mapping[str, str]) -> None:
    versions = read(properties)
    assert [version.version for version in versions] == [1, 2, 3]
    assert [ids(properties, version) for version in versions] == [[0, 1], [2, 3], [4, 5]]
    assert [file.rows for version in versions for file in version.files] == [2, 2, 2]
    assert all(version.rewrite is None and version.committed > 0 for version in versions)
    assert [version.version for version in read(properties, 3)] == [3]
    assert read(properties, 4) == []
    log = IcebergTableLog(NAME, properties)
    assert (log.begin(), log.end()) == (Position(0), Position(4))
    assert log.field_ids() == {"id": 1, "text": 2}
    fields = json.loads(log.columns())["fields"]
    assert [(field["name"], field["type"]) for field in fields] == [("id", "long"), ("text", "string")]


def test_what_is_written_later_is_seen_by_the_same_log(properties: Mapping[str, str], table: Table) -> None:
    log = IcebergTableLog(NAME, properties)
    assert len(list(log.versions(Position(0)))) == 3
    table.append(rows(6))
    assert [ids(properties, version) for version in log.versions(Position(4))] == [[6]]


def test_manifests_that_were_merged_add_nothing_again(properties: Mapping[str, str], table: Table) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"commit.manifest-merge.enabled": "true", "commit.manifest.min-count-to-merge": "2"})
    for number in (6, 7, 8):
        table.append(rows(number))
    assert [ids(properties, version) for version in read(properties)][3:] == [[6], [7], [8]]


@pytest.mark.parametrize("what", ["delete", "overwrite"])
def test_a_snapshot_that_takes_rows_out_is_told(properties: Mapping[str, str], table: Table, what: str) -> None:
    table.delete("id = 2") if what == "delete" else table.overwrite(rows(7), "id = 2")
    last = next(version for version in read(properties) if version.version == 4)
    assert last.rewrite == "is of the operation 'overwrite'"
    assert last.files == ()


def test_a_compaction_adds_no_rows(properties: Mapping[str, str]) -> None:
    compact(properties, rows(0, 1, 2, 3, 4, 5))
    last = read(properties)[-1]
    assert (last.version, last.files, last.rewrite) == (4, (), None)


def test_snapshots_that_have_expired_before_they_were_read_stop_by_name(
    properties: Mapping[str, str], table: Table
) -> None:
    expire(table, 1)
    assert IcebergTableLog(NAME, properties).begin() == Position(2, 1)
    with pytest.raises(DataLostError, match="has the snapshots 2 to 3 on its main branch, and what was added before"):
        read(properties, 0)
    # What was read last has to be there: else nobody knows what follows it.
    with pytest.raises(DataLostError, match=r"is to be read on after snapshot 1, .*; they are 2 to 3"):
        read(properties, 2)
    assert [version.version for version in read(properties, 3)] == [3]
    within = list(IcebergTableLog(NAME, properties).versions(Position(2, 1)))
    assert [version.version for version in within] == [2, 3]


def test_the_whole_table_at_a_snapshot_is_read_first_and_then_what_later_ones_add(
    properties: Mapping[str, str], table: Table
) -> None:
    table.refresh().append(rows(6))
    expire(table, 1)
    before = whole(properties, 2)
    assert [(version.version, version.first) for version in before] == [(2, SNAPSHOT), (3, 0), (4, 0)]
    assert [sorted(ids(properties, version)) for version in before] == [[0, 1, 2, 3], [4, 5], [6]]
    assert before[0].columns == IcebergTableLog(NAME, properties).columns()
    table.refresh().delete("id = 1")
    compact(properties, rows(0, 2, 3, 4, 5, 6))
    after = whole(properties, 2)
    assert after[:3] == before
    assert [(version.files, version.rewrite is None) for version in after[3:]] == [((), False), ((), True)]
    assert [sorted(ids(properties, version)) for version in whole(properties, 6)] == [[0, 2, 3, 4, 5, 6]]
    assert [sorted(ids(properties, version)) for version in whole(properties, 5)][:1] == [[0, 2, 3, 4, 5, 6]]


def test_the_same_log_knows_the_whole_table_and_what_its_snapshot_adds(properties: Mapping[str, str]) -> None:
    log = IcebergTableLog(NAME, properties)
    first, second = (next(log.versions(Position(2, file))) for file in (SNAPSHOT, 0))
    assert (len(first.files), len(second.files)) == (2, 1)
    assert next(log.versions(Position(2, SNAPSHOT + 1))) is first
    assert TableOffsets(log).rows(Position(2, SNAPSHOT + 1).offset, Position(4).offset) == 4
    place = (log.name, 0)
    assert TableOffsets(log).at_timestamp([place], 1)[place] == Position(1).offset


def test_a_whole_table_whose_snapshot_has_expired_stops_by_name(properties: Mapping[str, str], table: Table) -> None:
    expire(table, 1)
    for snapshot in (0, 1):
        with pytest.raises(
            DataLostError, match=r"initial_snapshot=True|is to be read as it is at snapshot 1, which is"
        ):
            whole(properties, snapshot)
    place = (f"iceberg:{NAME}", 0)
    offsets = TableOffsets(IcebergTableLog(NAME, properties))
    assert offsets.at_timestamp([place], 1)[place] == Position(2).offset
    check_first_offsets(offsets, {place[0]: {0: Position(2, SNAPSHOT).offset}}, [place[0]])
    with pytest.raises(RefusedError, match=r"from file 1 of version 2 on.*initial_snapshot=True it can begin"):
        check_first_offsets(offsets, {place[0]: {0: Position(2).offset}}, [place[0]])
    assert [sorted(ids(properties, version)) for version in whole(properties, 2)] == [[0, 1, 2, 3], [4, 5]]


def test_rows_that_are_deleted_beside_their_files_are_refused_in_a_whole_table(tmp_path: Path) -> None:
    lake = IcebergLake(tmp_path)
    lake.create(LONG, TEXT).append(pa.table({"id": [1, 2], "k": ["a", "b"]}))
    (file,) = (tmp_path / "warehouse").rglob("*.parquet")
    delete_first_row(lake, file)
    with pytest.raises(RefusedError, match=r"has rows at version 2 that are deleted beside their files"):
        list(lake.log().versions(Position(2, SNAPSHOT)))
    assert [len(version.files) for version in lake.log().versions(Position(1, SNAPSHOT))] == [1, 0]


def test_a_table_that_was_rolled_back_stops_by_name(properties: Mapping[str, str], table: Table) -> None:
    second = table.metadata.snapshots[1].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    with pytest.raises(DataLostError, match=r"is to be read on after snapshot 3, .*; they are 1 to 2"):
        read(properties, 4)
    table.refresh().append(rows(9))
    with pytest.raises(DataLostError, match="is to be read on after snapshot 3"):
        read(properties, 4)
    assert [ids(properties, version) for version in read(properties, 3)] == [[9]]


def test_a_new_pipeline_begins_at_a_snapshot_of_main_and_not_right_behind_anothers(
    properties: Mapping[str, str], table: Table
) -> None:
    table.manage_snapshots().create_branch(table.metadata.snapshots[-1].snapshot_id, "audit").commit()
    table.append(rows(8), branch="audit")
    table.append(rows(9))
    offsets = TableOffsets(IcebergTableLog(NAME, properties))
    for begin in (Position(4), Position(5, SNAPSHOT), Position(6), Position(0, SNAPSHOT)):
        offsets.check_begin(begin.offset)
    for begin, was in ((Position(5), "is to be read on after"), (Position(4, SNAPSHOT), "is to be read as it is at")):
        with pytest.raises(RefusedError, match=f"{was} snapshot 4, .* such as with starting_version=4"):
            offsets.check_begin(begin.offset)


def test_a_branch_of_its_own_is_not_read(properties: Mapping[str, str], table: Table) -> None:
    newest = table.metadata.snapshots[-1].snapshot_id
    table.manage_snapshots().create_branch(newest, "audit").commit()
    table.append(rows(8), branch="audit")
    table.append(rows(9))
    versions = read(properties)
    assert [version.version for version in versions] == [1, 2, 3, 5]
    assert [ids(properties, version) for version in read(properties, 4)] == [[9]]
    assert read(properties, 6) == []


def test_a_table_that_was_made_anew_stops_by_name(properties: Mapping[str, str], catalog: Catalog) -> None:
    offsets = TableOffsets(IcebergTableLog(NAME, properties))
    before = offsets.identity()
    catalog.drop_table("sales.orders")
    assert offsets.identity() is None
    catalog.create_table("sales.orders", rows().schema).append(rows(1))
    with pytest.raises(DataLostError, match=f"was recreated: its id is .*, and was {before}"):
        offsets.identity()
    with pytest.raises(DataLostError, match="is to be read on after snapshot 3"):
        read(properties, 4)


def test_an_empty_table_begins_and_ends_at_nothing(properties: Mapping[str, str], catalog: Catalog) -> None:
    catalog.create_table("sales.none", rows().schema)
    log = IcebergTableLog("shop.sales.none", properties)
    assert (log.begin(), log.end(), list(log.versions(Position(0)))) == (Position(0), Position(0), [])


def test_a_table_of_another_format_is_refused(properties: Mapping[str, str], catalog: Catalog) -> None:
    catalog.create_table("sales.old", rows().schema, properties={"format-version": "1"})
    with pytest.raises(RefusedError, match="is of Iceberg's format 1"):
        IcebergTableLog("shop.sales.old", properties).identity()


def test_a_catalog_that_can_t_be_opened_is_refused_without_its_properties() -> None:
    with pytest.raises(
        RefusedError, match=r"catalog 'shop' of table iceberg:shop.sales.orders can't be opened"
    ) as error:
        IcebergTableLog(NAME, {"type": "none such", "password": "hush"}).identity()
    assert "hush" not in str(error.value)


def test_a_column_that_is_added_is_told_with_the_first_snapshot_of_it(
    properties: Mapping[str, str], table: Table
) -> None:
    from pyiceberg.types import IntegerType

    with table.update_schema() as update:
        update.add_column("price", IntegerType())
    table.append(rows(6).append_column("price", pa.array([1], pa.int32())))
    *_, third, fourth = read(properties)
    assert third.columns is None
    assert fourth.columns is not None
    assert json.loads(fourth.columns)["fields"][-1]["type"] == "integer"


COLUMNS = StructType().add("id", LongType()).add("text", StringType())


def reader_of(properties: Mapping[str, str], columns: StructType = COLUMNS) -> TableStreamReader:
    name = f"iceberg:{NAME}"
    begin = Position(0)
    return TableStreamReader(
        TableReading(name=name, columns=columns, start=begin, files=None, skips=True, options=properties)
    )


def planned(reader: TableStreamReader, start: Position, end: Position) -> list[dict[str, Any]]:
    name = f"iceberg:{NAME}"
    first, last = ({name: {"0": position.offset}} for position in (start, end))
    return [row for part in reader.partitions(first, last) for batch in reader.read(part) for row in batch.to_pylist()]


def rename(update: UpdateSchema) -> None:
    update.rename_column("text", "words")


def drop(update: UpdateSchema) -> None:
    update.delete_column("text")


def exchange(update: UpdateSchema) -> None:
    update.rename_column("text", "words")
    update.rename_column("other", "text")


@pytest.mark.parametrize(
    "changes", [[rename], [drop], [drop, lambda update: update.add_column("text", TextType())], [exchange]]
)
@pytest.mark.parametrize("has_more", [False, True])
def test_a_column_whose_name_goes_to_another_one_or_to_none_stops_the_stream_and_is_no_null(
    properties: Mapping[str, str], table: Table, changes: list[Callable[[UpdateSchema], None]], has_more: bool
) -> None:
    with table.update_schema() as update:
        update.add_column("other", TextType())
    reader = reader_of(properties)
    assert [row["text"] for row in planned(reader, Position(0), Position(3))] == [
        f"row {number}" for number in range(4)
    ]
    for change in changes:
        with table.refresh().update_schema(allow_incompatible_changes=True) as update:
            change(update)
    if has_more:
        table.refresh().append(pa.table({"id": [9]}))
    if len(changes) == 1 and changes != [exchange]:
        with pytest.raises(RuntimeError, match=r"version 3 of table .* its column 'text' was renamed or dropped"):
            reader.latestOffset({f"iceberg:{NAME}": {"0": Position(3).offset}}, ReadAllAvailable())
    for read in (reader, reader_of(properties)):  # which has planned nothing before
        with pytest.raises(RuntimeError, match=r"TableChangedError.* its column 'text' was renamed or dropped"):
            planned(read, Position(3), Position(4))


@pytest.mark.parametrize("inside", [("n",), ("l", "element"), ("m", "value")], ids=".".join)
def test_a_field_of_a_column_whose_name_goes_to_another_one_stops_the_stream(
    properties: Mapping[str, str], catalog: Catalog, inside: tuple[str, ...]
) -> None:
    kind = StructType().add("x", LongType()).add("a", StringType())
    columns = StructType().add("n", kind).add("l", ArrayType(kind)).add("m", MapType(StringType(), kind))
    value = {"x": 1, "a": "old"}
    row = {"n": value, "l": [value], "m": [("k", value)]}
    catalog.drop_table("sales.orders")
    table = catalog.create_table("sales.orders", to_arrow_schema(columns))

    def append() -> None:
        table.append(pa.Table.from_pylist([row], table.schema().as_arrow()))

    append()
    assert planned(reader_of(properties, columns), Position(0), Position(2)) == [row]
    with table.update_schema() as update:
        update.delete_column((*inside, "a"))
    with table.update_schema() as update:
        update.add_column((*inside, "a"), TextType())
    append()
    assert planned(reader_of(properties, columns), Position(2), Position(3)) == [row]
    name = ".".join((*inside, "a"))
    for start in (Position(0), Position(2, SNAPSHOT)):
        with pytest.raises(RuntimeError, match=rf"TableChangedError.* has another field with the name '{name}'"):
            planned(reader_of(properties, columns), start, Position(3))


def test_a_column_is_read_by_the_name_that_it_has_now_and_what_came_later_is_null(
    properties: Mapping[str, str], table: Table
) -> None:
    with table.update_schema() as update:
        update.rename_column("text", "words")
        update.add_column("more", TextType())
    columns = StructType().add("id", LongType()).add("words", StringType()).add("more", StringType())
    expected = {"id": 0, "words": "row 0", "more": None}
    assert planned(reader_of(properties, columns), Position(0), Position(4))[0] == expected


NARROW = {
    "n": (2**31 - 1, pa.int32()),
    "f": (0.100000001490116, pa.float32()),
    "d": (Decimal("-9999999.99"), pa.decimal128(9, 2)),
    "l": ([-(2**31), None], pa.list_(pa.int32())),
    "s": ({"a": 1, "d": Decimal("0.1")}, pa.struct([("a", pa.int32()), ("d", pa.decimal128(3, 1))])),
    "m": ([("x", 1.5)], pa.map_(pa.string(), pa.float32())),
}
WIDE = {
    "n": (2**63 - 1, pa.int64(), LongType()),
    "f": (0.1, pa.float64(), DoubleType()),
    "d": (Decimal("-9999999999.99"), pa.decimal128(12, 2), DecimalType(12, 2)),
    "l": ([-(2**63)], pa.list_(pa.int64()), ArrayType(LongType())),
    "s": (
        {"a": 2**40, "d": Decimal("12345678901234567890.1")},
        pa.struct([("a", pa.int64()), ("d", pa.decimal128(38, 1))]),
        StructType().add("a", LongType()).add("d", DecimalType(38, 1)),
    ),
    "m": ([("x", 1e300)], pa.map_(pa.string(), pa.float64()), MapType(StringType(), DoubleType())),
}


def test_fields_that_were_widened_are_read_from_before_as_what_they_are_now(
    properties: Mapping[str, str], catalog: Catalog
) -> None:
    catalog.drop_table("sales.orders")
    old, new = (
        pa.table({name: pa.array([given[0]], given[1]) for name, given in values.items()}) for values in (NARROW, WIDE)
    )
    table = catalog.create_table("sales.orders", old.schema)
    table.append(old)
    with table.update_schema() as update:
        for path, kind in [
            *((("n",), I.LongType()), (("f",), I.DoubleType()), (("d",), I.DecimalType(12, 2))),
            *((("l", "element"), I.LongType()), (("s", "a"), I.LongType()), (("s", "d"), I.DecimalType(38, 1))),
            (("m", "value"), I.DoubleType()),
        ]:
            update.update_column(path, field_type=kind)
    table.append(new)
    columns = StructType([StructField(name, kind) for name, (_, _, kind) in WIDE.items()])
    both = [*old.to_pylist(), *new.to_pylist()]
    reader = reader_of(properties, columns)
    assert planned(reader, Position(0), Position(3)) == both
    assert sorted(planned(reader, Position(2, SNAPSHOT), Position(3)), key=lambda row: row["n"]) == both
    narrow = StructType().add("n", IntegerType())
    assert planned(reader_of(properties, narrow), Position(0), Position(2)) == [{"n": 2**31 - 1}]
    with pytest.raises(RuntimeError, match="its column 'n' is long, and integer is declared"):
        planned(reader_of(properties, narrow), Position(0), Position(3))


def test_a_store_goes_to_tasks(properties: Mapping[str, str]) -> None:
    store = pickle.loads(pickle.dumps(IcebergTableLog(NAME, properties).store))
    path = read(properties)[0].files[0].path
    assert store.is_there(path)
    assert not store.is_there(f"{path}-none")


def test_a_log_knows_the_versions_that_were_read_last_and_no_others(
    properties: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_log, "_REMEMBERED", 2)
    log = IcebergTableLog(NAME, properties)
    first, second = (list(log.versions(Position(0))) for _ in range(2))
    assert first == second
    assert [version.version for version in log._known.values()] == [version.version for version in first[-2:]]


def test_a_catalog_that_does_not_answer_when_it_is_opened_is_tried_again(
    properties: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_answer(*_: object, **properties: object) -> None:
        raise ConnectionError("refused")

    log = IcebergTableLog(NAME, properties)
    with monkeypatch.context() as patched:
        patched.setattr("pyiceberg.catalog.load_catalog", no_answer)
        with pytest.raises(BatchFailedError, match=r"sales\.orders can't be read: Conn"):
            log.identity()
    assert log.identity() is not None

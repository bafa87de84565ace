"""Upserts into an Iceberg table: what every table's have in common, and what is Iceberg's own."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.table import FileScanTask
from pyiceberg.table.snapshots import Operation
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, TimeType, UUIDType
from pyspark.sql import types as T

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.upserts import IcebergUpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkEntry
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.iceberg.merge_on_read import delete_first_row
from tests.integration.streaming.sinks.lake import COLUMNS as ID_AND_TEXT
from tests.integration.streaming.sinks.lake import UTC, Live, rows
from tests.integration.streaming.sinks.upsert_contract import COLUMNS, UpsertContract, begun, row, upsert


@pytest.mark.slow
class TestIcebergUpserts(UpsertContract):
    """Its table is the fixture's."""


@pytest.fixture
def read_files(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note which files of the table are read for their keys."""
    noted: list[str] = []
    real = IcebergUpsertTarget.read

    def read(target: IcebergUpsertTarget, file: Any, names: Any) -> pa.Table:
        noted.append(file.file_path)
        return real(target, file, names)

    monkeypatch.setattr(IcebergUpsertTarget, "read", read)
    return noted


# What a batch reads and writes


def test_only_files_whose_bounds_have_a_key_are_read(lake: IcebergLake, tmp_path: Path, read_files: list[str]) -> None:
    live = Live(upsert(lake), tmp_path, columns=COLUMNS)
    for first in range(0, 100, 10):
        live.commit([row(number) for number in range(first, first + 10)])
    read_files.clear()
    before = lake.current_files()
    live.commit([row(25, v=1, at=1), row(71, at=1, gone=True)])
    assert len(before - lake.current_files()) == 2
    assert len(read_files) == 1 + 2, "the task's, and two of the table's"


def test_only_partitions_that_follow_from_a_key_are_read(
    lake: IcebergLake, tmp_path: Path, read_files: list[str]
) -> None:
    columns = T.StructType().add("id", T.LongType()).add("at", T.TimestampType()).add("v", T.LongType())
    sink = lake.sink(mode="upsert", key=["id", "at"], partition_by=["bucket(8, id)", "day(at)"])
    live = Live(sink, tmp_path, columns=columns)
    days = [datetime.datetime(2024, 1, day, 12, tzinfo=UTC) for day in (1, 2)]
    live.commit([{"id": number, "at": day, "v": 0} for number in range(100) for day in days])
    assert len(lake.current_files()) == 16
    read_files.clear()
    live.commit([{"id": 7, "at": days[1], "v": 1}])
    assert len(read_files) == 1 + 1
    bucket = BucketTransform(8).transform(LongType())(7)
    (file,) = {file.file_path: file for file in lake.current_data_files() if file.record_count == 1}.values()
    assert file.partition[0] == bucket
    assert sum(given["v"] for given in lake.rows()) == 1
    assert len(lake.rows()) == 200


def test_files_without_bounds_are_read(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT, properties={"write.metadata.metrics.default": "none"})
    live = Live(lake.sink(mode="upsert", key="k"), tmp_path)
    live.commit([{"id": number, "k": "ü" * number} for number in range(1, 40)])
    assert not lake.current_data_files()[0].lower_bounds
    live.commit([{"id": 100, "k": "ü" * 30}])
    assert lake.ids() == [*range(1, 30), *range(31, 40), 100]


def test_bounds_of_before_a_column_was_widened_hold(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(NestedField(1, "id", IntegerType()), TEXT)
    lake.insert(rows(0, 5))
    with lake.table.update_schema() as update:
        update.update_column("id", LongType())
    live = Live(lake.sink(mode="upsert", key="id"), tmp_path)
    live.commit([{"id": 3, "k": "new"}, {"id": 2**40, "k": "new"}])
    live.commit([{"id": 4, "k": "newer"}])
    kinds = {3: "new", 4: "newer", 2**40: "new"}
    assert lake.rows() == [{"id": key, "k": kinds.get(key, f"k{key % 3}")} for key in [*range(5), 2**40]]


def test_a_batch_that_replaces_nothing_is_an_append_to_readers_of_changes(lake: IcebergLake, tmp_path: Path) -> None:
    live, _, _ = begun(lake, tmp_path)
    live.commit([row(20), row(21)])
    live.commit([row(20, v=1, at=1), row(0, at=1, gone=True), row(99, gone=True)])
    told = [snapshot.summary for snapshot in lake.table.snapshots() if snapshot.summary is not None]
    facts = [(of.operation, of.get("exactlyonce.rows"), of.get("total-records")) for of in told]
    append = Operation.APPEND
    assert facts[-3:] == [(append, "10", "10"), (append, "2", "12"), (Operation.OVERWRITE, "-1", "11")]


@pytest.mark.slow
def test_manifests_stay_few_though_each_batch_takes_files_out(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(
        *(LONG, TEXT, NestedField(3, "v", LongType()), NestedField(4, "at", LongType())),
        properties={"commit.manifest.min-count-to-merge": "5"},
    )
    live, model, entries = begun(lake, tmp_path)
    for number in range(1, 20):
        given = [row(key, "u", number, number) for key in (number % 10, 100 + number)]
        entries.append(live.commit(given))
        model.apply(given)
        snapshot = lake.table.current_snapshot()
        assert snapshot is not None and len(snapshot.manifests(lake.table.io)) <= 7
    model.check(lake)
    assert live.audit(entries) == []
    totals = lake.table.current_snapshot().summary  # type: ignore[union-attr]
    assert totals is not None
    assert totals["total-records"] == str(len(model.rows))
    assert totals["total-data-files"] == str(len(lake.current_files()))


# Files of others


def test_rows_of_others_are_copied_by_the_ids_of_columns_into_the_partitions_of_now(
    lake: IcebergLake, tmp_path: Path
) -> None:
    """Of columns that were renamed, added later and never written by the sink, and of files of an older spec."""
    more = [NestedField(5, "key", UUIDType()), NestedField(6, "time", TimeType()), NestedField(7, "x", DoubleType())]
    lake.create(LONG, NestedField(2, "old", TEXT.field_type), *more)
    given = [
        {"id": number, "old": f"k{number % 2}", "time": datetime.time(1, 2, 3, number), "x": float("nan")}
        for number in range(4)
    ]
    for one in given:
        one["key"] = bytes(range(16))
    lake.insert(given)
    with lake.table.update_schema() as update:
        update.rename_column("old", "k")
        update.add_column("late", LongType())
    with lake.table.update_spec() as spec:
        spec.add_identity("k")
    live = Live(lake.sink(mode="upsert", key="id", partition_by="k"), tmp_path)
    live.commit([{"id": 2, "k": "new"}])
    assert len(lake.current_files()) == 3, "one of each partition"
    by_id = {visible["id"]: visible for visible in lake.rows()}
    assert {key: visible["k"] for key, visible in by_id.items()} == {0: "k0", 1: "k1", 2: "new", 3: "k1"}
    assert [by_id[key]["time"] for key in (0, 1, 3)] == [given[key]["time"] for key in (0, 1, 3)]
    assert all(by_id[key]["x"] != by_id[key]["x"] for key in (0, 1, 3)), "NaN"
    assert by_id[2] == {"id": 2, "k": "new", "key": None, "time": None, "x": None, "late": None}
    assert str(by_id[0]["key"]) == "00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert lake.find(row_filter="k = 'k1'", selected_fields=("id",)) == [{"id": 1}, {"id": 3}]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Iceberg scan planning with the polars_iceberg plugin")
def test_polars_pyarrow_and_duckdb_see_the_same_rows(lake: IcebergLake, tmp_path: Path) -> None:
    columns = T.StructType([*COLUMNS, T.StructField("n", T.StructType().add("l", T.ArrayType(T.LongType())))])
    live = Live(upsert(lake, partition_by=["truncate(1, k)"]), tmp_path, columns=columns)
    for number in range(4):
        live.commit(
            [{**row(key, f"{key}", number, number, key == number), "n": {"l": [key, None]}} for key in range(number, 9)]
        )
    by_polars = polars.scan_iceberg(lake.table).collect().to_dicts()
    assert sorted(by_polars, key=lambda given: given["id"]) == lake.rows() == lake.library_rows()
    assert lake.ids() == [4, 5, 6, 7, 8]


# What is refused by name


def test_rows_that_are_deleted_beside_their_files_are_refused_at_the_start(lake: IcebergLake, tmp_path: Path) -> None:
    Live(lake.sink(), tmp_path).commit(rows(0, 5))
    set_back = lake.keep()
    delete_first_row(lake, lake.files()[0])
    said = r"table lake.shop.events of sink lake has rows that are deleted beside their files \(merge on read\)"
    with pytest.raises(RefusedError, match=said):
        lake.sink(mode="upsert", key="id").check_columns(ID_AND_TEXT)
    lake.sink().check_columns(ID_AND_TEXT)
    set_back()
    lake.sink(mode="upsert", key="id").check_columns(ID_AND_TEXT)


def staged_over_others(lake: IcebergLake, home: Path) -> tuple[Live, Path, SinkEntry]:
    """Return a run that has staged a row of a key in the place of one that is there, and the file that has that one."""
    live = Live(lake.sink(mode="upsert", key="id"), home)
    live.commit(rows(0, 5))
    (file,) = lake.files()
    return live, file, live.stage([{"id": 3, "k": "new"}])


def test_rows_that_are_deleted_beside_their_files_later_stop_the_pipeline_and_do_not_come_back(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, file, entry = staged_over_others(lake, tmp_path)

    def be_faster(write: Callable[[], None]) -> None:
        delete_first_row(lake, file)
        write()

    lake.at_next_write(monkeypatch, be_faster)
    with pytest.raises(RefusedError, match="deleted beside their files"):
        live.committer.commit(entry)
    assert lake.ids() == [1, 2, 3, 4]


def test_an_upsert_in_doubt_that_cannot_be_planned_anew_keeps_its_files(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, file, entry = staged_over_others(lake, tmp_path)

    def refuse(_: Callable[[], None]) -> None:
        monkeypatch.setattr(IcebergUpsertTarget, "current_files", refused)
        raise CommitFailedException("a second request was refused, and the first one may be carried out")

    def refused(_: object) -> None:
        raise RefusedError("no")

    staged = set(lake.files())
    lake.at_next_write(monkeypatch, refuse)
    with pytest.raises(CommitUnknownError, match="commit 2 is in doubt, and can't be tried again: no"):
        live.committer.commit(entry)
    assert staged < set(lake.files()), "what was copied is there as well"
    assert file in lake.current_files()


def test_files_that_are_not_of_parquet_are_refused(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(mode="upsert", key="id"), tmp_path)
    live.commit(rows(0, 5))
    entry = live.stage([{"id": 3, "k": "new"}])
    monkeypatch.setattr(DataFile, "file_format", property(lambda _: FileFormat.ORC))
    with pytest.raises(RefusedError, match="rewrites only files of Parquet"):
        live.committer.commit(entry)


def test_partitions_are_not_replaced_while_files_have_an_older_partitioning(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT)
    lake.insert(rows(0, 3))
    with lake.table.update_spec() as spec:
        spec.add_identity("k")
    live = Live(lake.sink(mode="overwrite partitions", partition_by="k"), tmp_path)
    live.commit([])
    entry = live.stage([{"id": 9, "k": "k0"}])
    with pytest.raises(RefusedError, match="files that were written before its partitions were changed"):
        live.committer.commit(entry)
    assert lake.ids() == [0, 1, 2]


def test_all_rows_of_a_day_are_replaced(lake: IcebergLake, tmp_path: Path) -> None:
    columns = T.StructType().add("id", T.LongType()).add("at", T.TimestampType())
    live = Live(lake.sink(mode="overwrite partitions", partition_by="day(at)"), tmp_path, columns=columns)
    at = [datetime.datetime(2024, 1, day, hour, tzinfo=UTC) for day, hour in ((1, 1), (1, 23), (2, 0))]
    entries = [live.commit([{"id": number, "at": moment} for number, moment in enumerate(at)])]
    Live(lake.sink(partition_by="day(at)"), tmp_path, columns=columns, pipeline="other").commit(
        [{"id": 7, "at": at[0]}]
    )
    entries.append(live.commit([{"id": 8, "at": at[1]}]))
    assert lake.ids() == [2, 8]
    assert live.audit(entries) == []


def test_the_order_in_which_a_file_is_read_is_that_of_its_rows(lake: IcebergLake, tmp_path: Path) -> None:
    """What a copy rests on: keys and rows are read one after the other, and belong together by their places."""
    live = Live(lake.sink(mode="upsert", key="id"), tmp_path)
    live.commit([{"id": number * 7919 % 300_000, "k": str(number)} for number in range(300_000)])
    table, (file,) = lake.table, lake.current_data_files()
    scans = [
        ArrowScan(table.metadata, table.io, table.schema().select(*names), AlwaysTrue())
        for names in (("id",), ("id", "k"))
    ]
    read = [
        pa.chunked_array([batch["id"] for batch in scan.to_record_batches([FileScanTask(file)])]).to_pylist()
        for scan in scans
    ]
    assert read[0] == read[1]

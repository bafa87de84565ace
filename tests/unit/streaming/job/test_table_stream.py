"""What the reader of a table says to Spark, and what its tasks read, without Spark."""

from __future__ import annotations

import pickle
import time
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from unittest.mock import Mock

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import types as T
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxFiles

from airflow_provider_exactlyonce.exceptions import DataLostError, TableChangedError
from airflow_provider_exactlyonce.streaming.job.table_stream import (
    TablePartition,
    TableReading,
    TableStreamReader,
    stream,
    tasks,
)
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from airflow_provider_exactlyonce.tables.positions import SNAPSHOT, Position
from airflow_provider_exactlyonce.tables.table_log import TableFile
from tests.unit.tables.delta_tables import append, entry, rows, three_versions

COLUMNS = T.StructType([T.StructField("id", T.LongType()), T.StructField("text", T.StringType())])
ALL = ReadAllAvailable()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return three_versions(tmp_path / "orders")


def reader_of(
    path: Path,
    *,
    start: int = 0,
    files: int | None = None,
    skips: bool = False,
    whole: bool = False,
    complete: int | None = None,
) -> TableStreamReader:
    begin = Position(start, SNAPSHOT if whole else 0)
    reading = TableReading(
        name=f"delta:{path}", columns=COLUMNS, start=begin, files=files, skips=skips, options={}, complete=complete
    )
    reader: TableStreamReader = pickle.loads(pickle.dumps(TableStreamReader(reading)))  # as it comes to its process
    return reader


def at(path: Path, offset: int) -> dict[str, dict[str, int]]:
    return {f"delta:{path}": {"0": offset}}


def ids(reader: TableStreamReader, start: dict[str, dict[str, int]], end: dict[str, dict[str, int]]) -> list[int]:
    found = []
    for partition in pickle.loads(pickle.dumps(reader.partitions(start, end))):
        for batch in reader.read(partition):
            found += batch["id"].to_pylist()
    return found


def batches(reader: TableStreamReader) -> Iterator[list[int]]:
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, reader.getDefaultReadLimit())) != start:
        yield ids(reader, start, end)
        start = end


def test_a_batch_has_all_that_is_there_or_so_many_files(path: Path) -> None:
    assert list(batches(reader_of(path))) == [[0, 1, 2, 3, 4, 5]]
    assert list(batches(reader_of(path, files=1))) == [[0, 1], [2, 3], [4, 5]]
    assert list(batches(reader_of(path, files=2))) == [[0, 1, 2, 3], [4, 5]]
    assert list(batches(reader_of(path, start=1))) == [[2, 3, 4, 5]]
    assert list(batches(reader_of(path, start=3))) == []
    assert reader_of(path).getDefaultReadLimit() == ALL
    assert reader_of(path, files=5).getDefaultReadLimit() == ReadMaxFiles(5)


def test_offsets_are_written_as_sparks_kafka_source_writes_them(path: Path) -> None:
    reader = reader_of(path)
    assert reader.initialOffset() == at(path, 0)
    assert reader.latestOffset(at(path, 0), ALL) == at(path, 3_000_000)
    assert reader.latestOffset(at(path, 3_000_000), ALL) == at(path, 3_000_000)
    assert reader.partitions(at(path, 1), at(path, 1)) == []


def test_a_range_that_is_read_again_has_the_same_rows_whatever_was_written_since(path: Path) -> None:
    before = ids(reader_of(path), at(path, 1_000_000), at(path, 3_000_000))
    append(path, 9)
    DeltaTable(path).optimize.compact()
    assert ids(reader_of(path), at(path, 1_000_000), at(path, 3_000_000)) == before == [2, 3, 4, 5]


@pytest.mark.parametrize("files", [None, 1, 2, 4])
def test_a_table_is_read_as_it_is_at_a_version_and_on_and_a_range_of_it_again_with_the_same_rows(
    path: Path, files: int | None
) -> None:
    append(path, 6, 7)
    DeltaTable(path).create_checkpoint()
    for version in range(3):
        entry(path, version).unlink()
    append(path, 8)
    reader = reader_of(path, start=3, whole=True, files=files)
    ranges = [reader.initialOffset()]
    while (end := reader.latestOffset(ranges[-1], reader.getDefaultReadLimit())) != ranges[-1]:
        ranges.append(end)
    assert (ranges[0], ranges[-1]) == (at(path, 3_500_000), at(path, 5_000_000))
    read = [ids(reader, start, end) for start, end in pairwise(ranges)]
    assert sorted(chain.from_iterable(read)) == list(range(9))
    assert read[-1][-1] == 8
    assert len(read) == {None: 1, 1: 5, 2: 3, 4: 2}[files]
    DeltaTable(path).optimize.compact()
    append(path, 9)
    again = reader_of(path, files=files)  # whatever is declared by now
    assert [ids(again, start, end) for start, end in pairwise(ranges)] == read
    DeltaTable(path).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(RuntimeError, match=r"DataLostError.* is gone: it was compacted and vacuumed"):
        ids(again, ranges[0], ranges[1])


def test_a_whole_table_whose_columns_are_others_stops_the_stream(path: Path) -> None:
    other = pa.table({"id": pa.array([7], pa.int32()), "text": ["x"]})
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    reader = reader_of(path, start=3, whole=True)
    with pytest.raises(RuntimeError, match=r"version 3 of table .* changes its columns: its column 'id' is integer"):
        reader.latestOffset(reader.initialOffset(), ALL)


def test_what_is_available_now_is_what_was_there_then(path: Path) -> None:
    reader = reader_of(path, files=2)
    reader.prepareForTriggerAvailableNow()
    append(path, 9)
    assert list(batches(reader)) == [[0, 1, 2, 3], [4, 5]]
    planned_further = at(path, 4_000_000)  # by a run before it
    assert reader.latestOffset(planned_further, ALL) == planned_further


def test_nothing_new_is_looked_for_once_a_while(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, end = reader_of(path), at(path, 3_000_000)
    assert reader.latestOffset(end, ALL) == end
    append(path, 9)
    assert reader.latestOffset(end, ALL) == end  # the second is not over
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 1.01)
    assert reader.latestOffset(end, ALL) == at(path, 4_000_000)


def test_a_rewrite_stops_the_stream_behind_what_came_before_it(path: Path) -> None:
    DeltaTable(path).delete("id = 2")
    append(path, 9)
    reader = reader_of(path)
    assert reader.latestOffset(at(path, 0), ALL) == at(path, 3_000_000)
    assert ids(reader, at(path, 0), at(path, 3_000_000)) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(RuntimeError) as stopped:
        reader.latestOffset(at(path, 3_000_000), ALL)
    found = typed_errors.find(str(stopped.value))
    assert isinstance(found, TableChangedError)
    assert "version 3 of table" in str(found)
    with pytest.raises(RuntimeError, match="TableChangedError"):  # nor is it read as part of a range
        reader.partitions(at(path, 0), at(path, 5_000_000))


def test_a_rewrite_is_passed_over_as_a_whole_where_that_is_said(path: Path) -> None:
    DeltaTable(path).merge(
        rows(2, 8), "t.id = s.id", "s", "t"
    ).when_matched_delete().when_not_matched_insert_all().execute()
    append(path, 9)
    assert list(batches(reader_of(path, skips=True))) == [[0, 1, 2, 3, 4, 5, 9]]


def test_a_version_that_changes_a_declared_column_stops_the_stream(path: Path) -> None:
    other = pa.table({"id": pa.array([7], pa.int32()), "text": ["x"]})
    write_deltalake(path, other, mode="overwrite", schema_mode="overwrite")
    reader = reader_of(path)
    with pytest.raises(RuntimeError, match="takes 3 files out of it"):
        reader.latestOffset(at(path, 3_000_000), ALL)
    append_column = rows(7).append_column("more", pa.array([1]))
    fresh = path.with_name("fresh")
    append(fresh, 1)
    write_deltalake(fresh, append_column, mode="append", schema_mode="merge")
    assert list(batches(reader_of(fresh))) == [[1, 7]]  # a column more is not read


def overwrite(path: Path, *names: str) -> None:
    rows = pa.table({name: ["x"] for name in names})
    write_deltalake(path, rows, mode="overwrite", schema_mode="overwrite")


@pytest.mark.parametrize("seen", [True, False])
def test_a_column_that_a_version_loses_that_is_passed_over_stops_the_stream(path: Path, seen: bool) -> None:
    reader = reader_of(path, skips=True, complete=None if seen else 2)
    before = at(path, 0 if seen else 3_000_000)
    append(path, 6)
    overwrite(path, "id", "words")
    write_deltalake(path, pa.table({"id": ["7"], "words": ["y"]}), mode="append")
    overwrite(path, "id", "text")
    end = reader.latestOffset(before, ALL)
    assert end == at(path, 4_000_000)
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"TableChangedError.*version 4 of table .* drops its column 'text'"):
            reader.latestOffset(end, ALL)
    with pytest.raises(RuntimeError, match="TableChangedError"):
        reader.partitions(before, at(path, 6_000_000))


def test_the_start_tells_the_reader_which_version_has_all_columns(path: Path) -> None:
    spark = Mock()
    stream(spark, reader_of(path, skips=True)._reading)
    (source,) = spark.dataSource.register.call_args.args
    reader = source({}).streamReader(COLUMNS)
    overwrite(path, "id")
    with pytest.raises(RuntimeError, match=r"version 3 of table .* drops its column 'text'"):
        reader.latestOffset(at(path, 3_000_000), ALL)


def test_a_column_that_is_lost_without_a_row_stops_the_stream(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    for names in (["id", "text"], ["id"]):
        write_deltalake(empty, rows().select(names), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(RuntimeError, match=r"version 1 of table .* drops its column 'text'"):
        reader_of(empty, complete=0).latestOffset(at(empty, 1_000_000), ALL)


def test_a_column_that_comes_later_is_null_until_then(tmp_path: Path) -> None:
    late = tmp_path / "late"
    write_deltalake(late, rows(1).select(["id"]))
    write_deltalake(late, rows(2).select(["id"]), mode="overwrite", schema_mode="overwrite")
    write_deltalake(late, rows(3), mode="append", schema_mode="merge")
    reader = reader_of(late, skips=True, complete=2)
    assert list(batches(reader)) == [[1, 3]]
    assert ids(reader, at(late, 0), at(late, 3_000_000)) == [1, 3]


def test_a_file_that_is_gone_stops_the_task_by_name(path: Path) -> None:
    reader = reader_of(path)
    (partition,) = reader.partitions(at(path, 0), at(path, 3_000_000))
    next(path.glob("*.parquet")).unlink()
    with pytest.raises(RuntimeError) as stopped:
        list(reader.read(partition))
    assert isinstance(typed_errors.find(str(stopped.value)), DataLostError)


def test_small_files_are_read_together_and_a_large_one_in_parts() -> None:
    mebibyte = 2**20
    sizes = [1, 1, 200 * mebibyte, 70 * mebibyte, *([mebibyte] * 20)]
    files = [TableFile(path=str(number), bytes=size) for number, size in enumerate(sizes)]
    planned = list(tasks(iter(files)))
    large = [task for task in planned if task[0].parts > 1]
    assert [(part.file.path, part.part, part.parts) for task in large for part in task] == [
        ("2", part, 3) for part in range(3)
    ]
    together = [[part.file.path for part in task] for task in planned if task[0].parts == 1]
    assert sorted(int(path) for task in together for path in task) == [0, 1, *range(3, 24)]
    assert max(map(len, together)) > 1
    assert len(together) > 1


def test_a_partition_goes_to_a_task_with_all_that_it_needs(path: Path) -> None:
    (partition,) = reader_of(path).partitions(at(path, 0), at(path, 1_000_000))
    assert isinstance(partition, TablePartition)
    again = pickle.loads(pickle.dumps(partition))
    assert [part.file for part in again.parts] == [part.file for part in partition.parts]

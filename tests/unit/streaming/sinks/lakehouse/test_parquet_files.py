"""How many bytes of a task wait in memory, whatever its rows are partitioned by."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_exactlyonce.streaming.sinks.lakehouse import parquet_files
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.files import TableFiles
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.parquet_files import ParquetFile, PartitionedFiles


class Local(TableFiles):
    def local(self, name: str) -> Path:
        return Path(name)

    def remote(self, name: str) -> Any:
        raise NotImplementedError


class File(ParquetFile):
    def _statistics(self, footer: pq.FileMetaData) -> Any:
        return footer.num_row_groups


class Files(PartitionedFiles):
    def _new(self, name: str, schema: pa.Schema, partition: Mapping[str, str | None]) -> ParquetFile:
        return File(Local(), name, schema, "none", partition)

    @property
    def waiting_bytes(self) -> int:
        return sum(file.waiting_bytes for file in self._open.values())


def test_a_task_with_many_partitions_keeps_as_much_in_memory_as_one_with_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "_ROW_GROUP_BYTES", 4_000)
    monkeypatch.setattr(parquet_files, "_TASK_BYTES", 16_000)
    files = Files(str(tmp_path), 0, ["p"], 2**30)
    most = 0
    for number in range(40):
        rows = pa.RecordBatch.from_pydict(
            {"p": [f"p{n % 20}" for n in range(400)], "v": [number * 400 + n for n in range(400)]}
        )
        files.write(rows, rows.select(["v"]))
        most = max(most, files.waiting_bytes)
    assert 12_000 < most < 16_000
    written = files.finish()
    assert len(written) == 20
    assert sum(file["rows"] for file in written) == 16_000
    assert sorted(v for file in written for v in pq.ParquetFile(file["path"]).read()["v"].to_pylist()) == list(
        range(16_000)
    )


def test_a_task_with_few_partitions_writes_row_groups_of_their_full_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_files, "_ROW_GROUP_BYTES", 4_000)
    monkeypatch.setattr(parquet_files, "_TASK_BYTES", 16_000)
    files = Files(str(tmp_path), 0, [], 2**30)
    for number in range(10):
        rows = pa.RecordBatch.from_pydict({"v": list(range(number * 100, number * 100 + 100))})
        files.write(rows, rows)
    (file,) = files.finish()
    assert (file["rows"], file["statistics"]) == (1_000, 2)


def test_all_files_are_closed_and_the_first_error_is_told_when_some_can_not_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def remove(_: TableFiles, name: str) -> None:
        if len(refused) < 2:
            refused.append(name)
            raise PermissionError(name)
        Path(name).unlink()

    monkeypatch.setattr(Local, "remove", remove)
    files = Files(str(tmp_path), 0, ["p"], 2**30)
    rows = pa.RecordBatch.from_pydict({"p": ["a", "b", "c", "d"], "v": [1, 2, 3, 4]})
    files.write(rows, rows.select(["v"]))
    opened = list(files._open.values())
    with pytest.raises(PermissionError) as error:
        files.close()
    assert str(error.value) == refused[0]
    assert all(file._file.closed and not file._parquet.is_open for file in opened)
    assert sorted(map(str, tmp_path.rglob("*.parquet"))) == sorted(refused)
    files.close()


def test_what_rows_are_partitioned_by_may_have_any_name(tmp_path: Path) -> None:
    files = Files(str(tmp_path), 0, ["_list", "0"], 2**30)
    rows = pa.RecordBatch.from_pydict({"_list": ["a", "b", "a"], "0": [1, 1, 1], "v": [1, 2, 3]})
    files.write(rows, rows.select(["v"]))
    written = {file["partition"]["_list"]: pq.ParquetFile(file["path"]).read()["v"] for file in files.finish()}
    assert {name: values.to_pylist() for name, values in written.items()} == {"a": [1, 3], "b": [2]}


@pytest.mark.parametrize("size", [1, 7, 100], ids=lambda size: f"batches of {size}")
def test_files_have_about_the_size_that_is_declared_whatever_the_sizes_of_batches_and_rows(
    tmp_path: Path, size: int
) -> None:
    values = [bytes([number]) * (50 + number % 7 * 50) for number in range(100)]
    values[50] *= 100
    files = Files(str(tmp_path), 0, [], 4_000)
    for begun in range(0, 100, size):
        rows = pa.RecordBatch.from_pydict({"v": values[begun : begun + size]})
        files.write(rows, rows)
    written = files.finish()
    assert [v for file in written for v in pq.ParquetFile(file["path"]).read()["v"].to_pylist()] == values
    sizes = [file["size"] for file in written]
    assert len(sizes) == 6
    assert [4_000 <= size < 6_000 for size in sizes] == [True, True, False, True, True, False], sizes
    assert sizes[2] > 10_000, "it has the large row"

"""``FileSink`` and ``FileTable`` of 0.1 warn, mean a Delta table, and refuse by name what they can't mean any more."""

from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming import DeltaSink, FileSink, FileTable
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry

ROWS = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "day": ["a", "b", "a"]})
RELEASE = Path(__file__).parents[4] / "releases" / "0.1.0" / "file-sink"


def file_sink(**given: Any) -> FileSink:
    with pytest.warns(DeprecationWarning, match="declare DeltaSink with the same name.*deleted in 0.3"):
        return FileSink(**{"name": "files", "path": "/tmp/table", **given})


def file_table(path: str | Path) -> FileTable:
    with pytest.warns(DeprecationWarning, match="use deltalake.DeltaTable.*deleted in 0.3"):
        return FileTable(str(path), pipeline="p", sink="files")


def commit(sink: DeltaSink, folder: Path, number: int) -> None:
    with closing(sink.open(SinkContext(pipeline="p", home=folder))) as committer:
        committer.expect_columns(from_arrow_schema(ROWS.schema))
        committer.claim(number)
        attempt = SinkAttempt(name=f"a{number}", pipeline="p", commit=number, run=number)
        committer.begin(attempt)
        with closing(committer.open_writer()(attempt, 0)) as writer:
            writer.write(ROWS)
            committer.pre_commit([writer.finish()])
        entry = SinkEntry(commit=number, run=number, lineage="l", batch=number, source={}, rows=3, digest=number)
        committer.commit(entry)
        committer.settled(number)


def test_a_file_sink_writes_what_a_delta_sink_of_the_same_name_goes_on_with(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    commit(file_sink(path=path, partition_by=["day"]), tmp_path, 1)
    commit(DeltaSink(name="files", path=path, partition_by=["day"]), tmp_path, 2)
    sink = file_sink(path=path)
    with pytest.warns(DeprecationWarning, match="FileTable"):
        table = sink.table("p")
    assert table.commit == 2
    assert sorted(table.to_table()["id"].to_pylist()) == [1, 1, 2, 2, 3, 3]
    with pytest.raises(RefusedError, match="is partitioned by day, and these columns are not in its files"):
        table.paths()
    assert table.compact() == 4
    assert file_table(path).to_table().num_rows == 6
    assert table.clean(grace_hours=24) == 0


def test_a_table_without_a_commit_has_no_rows(tmp_path: Path) -> None:
    table = file_table(tmp_path)
    assert (table.commit, table.paths(), table.to_table().num_rows, table.compact(), table.clean()) == (0, [], 0, 0, 0)


def test_files_are_named_where_they_have_all_columns(tmp_path: Path) -> None:
    commit(file_sink(path=str(tmp_path / "table")), tmp_path, 1)
    (path,) = file_table(tmp_path / "table").paths()
    assert Path(path.removeprefix("file://")).is_file()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"format": "csv"}, "format='csv'"),
        ({"storage_options": {"key": "a", "secret": "hunter2"}}, "delta-rs has words of its own"),
        ({"path": "relative"}, "neither an absolute path nor a URL"),
    ],
)
def test_what_a_file_sink_cannot_be_any_more_is_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.warns(DeprecationWarning, match="FileSink"), pytest.raises(RefusedError, match=said) as refused:
        FileSink(**{"name": "files", "path": "/tmp/x", **changed})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda table: table.files(),
        lambda table: table.history(),
        lambda table: table.paths(through=3),
        lambda table: table.to_table(where=bool),
    ],
)
def test_what_a_file_table_had_of_its_own_log_is_refused_with_the_way(ask: Any, tmp_path: Path) -> None:
    with pytest.raises(RefusedError, match=r"is gone with the format of 0\.1\.0: ask deltalake\.DeltaTable"):
        ask(file_table(tmp_path))


def test_files_of_0_1_0_are_refused_with_the_command_that_converts_them(tmp_path: Path) -> None:
    path = Path(shutil.copytree(RELEASE, tmp_path / "table"))
    with pytest.raises(RefusedError, match=f"exactlyonce convert-files {path}"):
        file_sink(path=str(path)).open(SinkContext(pipeline="shop-archive", home=tmp_path))
    with pytest.raises(RefusedError, match=f"exactlyonce convert-files {path}"):
        file_table(path)
    assert [name.name for name in path.iterdir()] == ["_exactlyonce"]

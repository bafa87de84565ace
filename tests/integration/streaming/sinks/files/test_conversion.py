"""What the file sink of 0.1.0 has committed, and nothing else, becomes a Delta table, whenever the command dies."""

from __future__ import annotations

import datetime
import importlib.util
import json
import math
import os
import shutil
import signal
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fsspec
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from airflow_provider_exactlyonce import failpoints
from airflow_provider_exactlyonce.control import lease as leases
from airflow_provider_exactlyonce.control.home import Home
from airflow_provider_exactlyonce.exceptions import AlreadyRunningError, RefusedError
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.files import conversion
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkContext, SinkEntry
from tests import commands
from tests.delta_reader import read_delta
from tests.integration.streaming.sinks.delta import test_storage
from tests.old_files import OldLog

PIPELINE = "shop-archive"
RELEASE = Path(__file__).parents[4] / "releases" / "0.1.0"


def row_of(number: int) -> dict[str, Any]:
    """Return a row as ``tests/releases/0.1.0/file-sink`` has it."""
    return {
        "id": number,
        "day": datetime.date(2026, 1, 1 + number % 2) if number % 7 else None,
        "amount": Decimal(number - 5) / 4,
        "v": None if number % 5 == 0 else number / 8,  # None: NaN
        "note": None if number % 3 == 0 else f"a/b={number} ü",
        "at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=number),
        "parts": None if number % 4 == 0 else {"n": number, "l": [f"k{number}", None]},
    }


def seen(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in order, and NaN, which equals nothing, as None."""
    return sorted(
        ({**row, "v": None if math.isnan(row["v"]) else row["v"]} for row in rows), key=lambda row: int(row["id"])
    )


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RELEASE / "file-sink", tmp_path / "files"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    Home(tmp_path / "home").create(PIPELINE)
    return tmp_path / "home"


def convert(files: Path | str, home: Path, *more: str, code: int = 0) -> commands.Said:
    return commands.run("convert-files", str(files), "--home", str(home), *more, code=code)


def opened(files: Path, tmp_path: Path) -> SinkCommitter:
    """Open the Delta sink that goes on."""
    sink = DeltaSink(name="files", path=str(files), partition_by=["day"])
    committer = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path / "home"))
    columns = conversion.find(str(files)).columns
    committer.expect_columns(from_arrow_schema(columns))
    return committer


def check_whole(files: Path, tmp_path: Path) -> None:
    """Each row is there once, for a reader of nothing but the protocol, and the sink goes on at the next commit."""
    expected = [row_of(number) for number in range(40)]
    visible = [{**row, "day": row["day"] and datetime.date.fromisoformat(row["day"])} for row in read_delta(files)]
    assert seen(visible) == expected
    with closing(opened(files, tmp_path)) as committer:
        entry = committer.claim(3)
        assert entry is not None and (entry.commit, entry.run, entry.rows, entry.digest) == (5, 2, 10, 2**63 + 5)
        assert list(committer.audit([entry])) == []
        attempt = SinkAttempt(name="next", pipeline=PIPELINE, commit=6, run=3)
        committer.begin(attempt)
        with closing(committer.open_writer()(attempt, 0)) as writer:
            old = conversion.find(str(files))
            rows = [{**row_of(number), "v": math.nan if number % 5 == 0 else number / 8} for number in range(40, 50)]
            writer.write(pa.RecordBatch.from_pylist(rows, old.columns))
            committer.pre_commit([writer.finish()])
        following = SinkEntry(commit=6, run=3, lineage="l", batch=5, source={}, rows=10, digest=6)
        committer.commit(following)
        committer.settled(6)
        assert list(committer.audit([entry, following])) == []
    assert sorted(row["id"] for row in read_delta(files)) == list(range(50))
    known = {name.removeprefix("file://") for name in DeltaTable(files).file_uris()}
    assert {str(name) for name in (files / "exactlyonce").rglob("*.parquet")} == known


def _extension(name: str) -> str:
    """Return the file of an extension of DuckDB, which is installed with the tests: nothing is downloaded."""
    spec = importlib.util.find_spec("duckdb_ext")
    assert spec is not None and spec.submodule_search_locations is not None
    return str(next(Path(spec.submodule_search_locations[0]).rglob(f"{name}.duckdb_extension")))


def test_the_committed_rows_are_a_table_for_every_reader_and_the_sink_goes_on(
    files: Path, home: Path, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match=f"commits up to 5 of the file sink files.*convert-files {files}"):
        opened(files, tmp_path)
    before = {name: name.read_bytes() for name in files.rglob("*") if name.is_file()}
    body = convert(files, home, "--dry-run", "--json").body
    assert (body["commit"], body["rows"], body["files"], body["partition_by"]) == (5, 40, 14, ["day"])
    assert {name: name.read_bytes() for name in files.rglob("*") if name.is_file()} == before
    convert(files, home)
    assert {name: name.read_bytes() for name in before} == before, "the old files stay"
    expected = [row_of(number) for number in range(40)]
    assert seen(OldLog(files, PIPELINE).rows()) == expected, "readers of 0.1.0 see the same as before"
    assert seen(DeltaTable(files).to_pyarrow_table().to_pylist()) == expected
    assert seen(polars.scan_delta(str(files)).collect().to_dicts()) == expected
    with duckdb.connect() as database:
        database.load_extension(_extension("delta"))
        rows = database.sql(f"SELECT * FROM delta_scan('{files}')").to_arrow_table().to_pylist()
        assert seen(rows) == expected
    convert(files, home)
    assert DeltaTable(files).version() == 2, "there was nothing left to do"
    check_whole(files, tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        *failpoints.CONVERSION_NAMES,
        *(pytest.param(step, marks=pytest.mark.slow) for step in ("after-sink-fence", "before-sink-decision")),
    ],
)
def test_a_conversion_that_dies_at_a_step_is_repeated(files: Path, home: Path, tmp_path: Path, step: str) -> None:
    commands.run_apart("convert-files", str(files), "--home", str(home), code=-signal.SIGKILL, failpoints=step)
    if step == "convert-committed":
        opened(files, tmp_path).close()
    else:
        with pytest.raises(RefusedError, match="convert-files"):
            opened(files, tmp_path)
    convert(files, home)
    check_whole(files, tmp_path)


@pytest.fixture
def old(tmp_path: Path) -> OldLog:
    log = OldLog(tmp_path / "table", PIPELINE)
    log.claim(1)
    return log


def entry_of(commit: int, rows: int) -> SinkEntry:
    return SinkEntry(commit=commit, run=1, lineage="l", batch=commit - 1, source={}, rows=rows, digest=commit)


def test_a_run_of_0_1_0_that_was_frozen_in_its_commit_finds_the_log_ended(old: OldLog, home: Path) -> None:
    old.commit(entry_of(1, 2), pa.table({"id": [1, 2]}))
    frozen = old.write("frozen", pa.table({"id": [3]}))
    position = old.folder / "log" / f"{3:020d}.json"
    convert(old.root, home)
    with pytest.raises(FileExistsError):
        position.open("x")
    taken = json.loads(position.read_text())
    assert (taken["kind"], taken["run"] > 10**18, taken["entry"]["commit"]) == ("claim", True, 1)
    assert Path(old.root, frozen[0]["name"]).exists()
    assert sorted(row["id"] for row in read_delta(old.root)) == [1, 2]


def test_a_run_that_commits_between_look_and_end_is_not_cut_off(old: OldLog) -> None:
    old.commit(entry_of(1, 2), pa.table({"id": [1, 2]}))
    old_files = conversion.find(str(old.root))
    old.commit(entry_of(2, 1), pa.table({"id": [3]}))
    with pytest.raises(AlreadyRunningError, match="was just written: a run of pipeline shop-archive lives"):
        conversion.convert(old_files, [])
    assert not DeltaTable.is_deltatable(str(old.root))


def test_a_pipeline_that_runs_is_left_alone(files: Path, home: Path) -> None:
    with leases.holding(Home(home).lease, PIPELINE, "driver"):
        refused = convert(files, home, code=AlreadyRunningError.exit_code)
    assert f"pipeline {PIPELINE} runs: pid {os.getpid()}" in refused.err
    assert not (files / "_delta_log").exists()
    assert len(list(files.rglob("log/*.json"))) == 8, "the log was not ended"


def test_columns_that_came_went_and_changed_their_type_have_the_newest(old: OldLog, home: Path) -> None:
    old.commit(entry_of(1, 1), pa.table({"id": pa.array([1], pa.int32()), "gone": ["a"]}))
    old.commit(entry_of(2, 1), pa.table({"k": ["b"], "id": pa.array([2**40], pa.int64())}))
    convert(old.root, home)
    assert sorted(read_delta(old.root), key=lambda row: int(row["id"])) == [
        {"k": None, "id": 1, "gone": "a"},
        {"k": "b", "id": 2**40, "gone": None},
    ]


def test_an_empty_batch_before_and_after_is_part_of_the_ledger(old: OldLog, home: Path, tmp_path: Path) -> None:
    old.commit(entry_of(1, 0))
    old.commit(entry_of(2, 1), pa.table({"id": [7]}))
    old.commit(entry_of(3, 0))
    convert(old.root, home)
    assert read_delta(old.root) == [{"id": 7}]
    sink = DeltaSink(name="files", path=str(old.root))
    with closing(sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))) as committer:
        committer.expect_columns(from_arrow_schema(pa.schema([("id", pa.int64())])))
        assert committer.claim(2) == entry_of(3, 0)
        assert list(committer.audit([entry_of(number, 1 if number == 2 else 0) for number in (1, 2, 3)])) == []
        findings = list(committer.audit([entry_of(3, 5)]))
        assert len(findings) == 1 and findings[0].startswith("commit 3: ")


def test_a_partition_that_readers_of_delta_take_for_null_is_refused_with_the_way_out(old: OldLog, home: Path) -> None:
    old.commit(entry_of(1, 2), pa.table({"id": [1, 2], "k": ["", "b"]}), by="k")
    printed = convert(old.root, home, code=RefusedError.exit_code).err
    assert "column 'k' of partition_by is the text ''" in printed
    assert "convert without it, --partition-by ''" in printed
    assert convert(old.root, home, "--dry-run", code=RefusedError.exit_code).err == printed
    assert not DeltaTable.is_deltatable(str(old.root))
    assert old.last()["run"] == 1  # type: ignore[index]
    refused = convert(old.root, home, "--partition-by", "id", code=RefusedError.exit_code)
    assert "'id' is none of the columns by which the files were written, k" in refused.err
    convert(old.root, home, "--partition-by", "")
    assert sorted(row["k"] for row in read_delta(old.root)) == ["", "b"]


def test_a_dry_run_refuses_a_partition_by_that_no_table_can_have(old: OldLog, home: Path) -> None:
    old.commit(entry_of(1, 1), pa.table({"id": [1], "price": [Decimal("1.50")]}), by="price")
    refused = convert(old.root, home, "--dry-run", code=RefusedError.exit_code)
    assert "column 'price' of partition_by is decimal(" in refused.err


def _cut(old: OldLog) -> str:
    place = next(old.folder.rglob("*.parquet"))
    place.write_bytes(place.read_bytes()[:-1])
    return f"{place} is missing or not as it was committed"


def _remove_file(old: OldLog) -> str:
    place = next(old.folder.rglob("*.parquet"))
    place.unlink()
    return f"{place} is missing or not as it was committed"


def _remove_record(old: OldLog) -> str:
    place = old.folder / "log" / f"{2:020d}.json"
    place.unlink()
    return f"{place} is missing"


def _change_rows(old: OldLog) -> str:
    place = old.folder / "log" / f"{2:020d}.json"
    body = json.loads(place.read_text())
    place.write_text(json.dumps({**body, "files": []}))
    return f"{place} says 1 rows, and its files have 0"


def _change_type(old: OldLog) -> str:
    old.commit(entry_of(3, 1), pa.table({"id": [datetime.date(2026, 1, 1)]}))
    return "column 'id' of .* is int64, and the newest files have it as date32"


@pytest.mark.parametrize("change", [_cut, _remove_file, _remove_record, _change_rows, _change_type])
def test_what_is_not_whole_is_refused_by_name_and_nothing_is_changed(old: OldLog, home: Path, change: Any) -> None:
    for number in (1, 2):
        old.commit(entry_of(number, 1), pa.table({"id": [number]}))
    expected = change(old)
    before = {name: name.read_bytes() for name in old.root.rglob("*") if name.is_file()}
    with pytest.raises(RefusedError, match=expected):
        conversion.find(str(old.root))
    convert(old.root, home, code=RefusedError.exit_code)
    assert {name: name.read_bytes() for name in old.root.rglob("*") if name.is_file()} == before


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RELEASE / "write-ahead-log", tmp_path / "log"))


def test_what_is_no_file_sinks_is_refused_and_a_delta_sink_may_be_beside_it(
    elsewhere: Path, old: OldLog, tmp_path: Path
) -> None:
    with pytest.raises(RefusedError, match="a write-ahead log goes on as it is"):
        conversion.find(str(elsewhere))
    DeltaSink(name="files", path=str(elsewhere)).open(SinkContext(pipeline=PIPELINE, home=tmp_path)).close()
    with pytest.raises(RefusedError, match="has committed nothing"):
        conversion.find(str(old.root))
    old.commit(entry_of(1, 1), pa.table({"id": [1]}))
    other = OldLog(old.root, "other")
    other.commit(entry_of(1, 1), pa.table({"id": [1]}))
    with pytest.raises(RefusedError, match=r"several sinks, other\.files, shop-archive\.files"):
        conversion.find(str(old.root))
    with pytest.raises(RefusedError, match="file sink files of pipeline other"):
        DeltaSink(name="new", path=str(old.root)).open(SinkContext(pipeline="new", home=tmp_path))


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the clients have deprecations of their own
def test_files_in_an_object_store_are_converted_there(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with test_storage.s3() as emulated:
        for name, value in emulated.options.items():
            monkeypatch.setenv(name.upper(), value)
        _convert_in_a_bucket(home)


def _convert_in_a_bucket(home: Path) -> None:
    store = fsspec.filesystem("s3", skip_instance_cache=True)
    store.put(str(RELEASE / "file-sink" / "_exactlyonce"), "bucket/table/_exactlyonce", recursive=True)
    sink = DeltaSink(name="files", path="s3://bucket/table", partition_by=["day"])
    context = SinkContext(pipeline=PIPELINE, home=home)
    with pytest.raises(RefusedError, match="exactlyonce convert-files s3://bucket/table"):
        sink.open(context)
    for _ in range(2):
        convert(sink.path, home)
    rows = DeltaTable(sink.path).to_pyarrow_table().to_pylist()
    assert seen(rows) == [row_of(number) for number in range(40)]
    entry = conversion.find(sink.path).entry
    with closing(sink.open(context)) as committer:
        assert committer.tail() == entry
        assert list(committer.audit([entry])) == []

"""Files: what every sink has to pass, and what readers, stragglers, compactions and audits see."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyspark.sql.types import LongType, StructType, TimestampType, VariantType

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.files import sink as files
from airflow_provider_exactlyonce.streaming.sinks.files.file_table import FileTable
from airflow_provider_exactlyonce.streaming.sinks.files.sink import FileCommitter, FileSink
from airflow_provider_exactlyonce.streaming.sinks.files.storage import RemoteStorage, open_storage
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.spark import typed_errors
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from airflow_provider_exactlyonce.testing.sink_conformance import _at_call as at_call
from airflow_provider_exactlyonce.testing.sink_conformance import _forked as forked
from airflow_provider_exactlyonce.testing.sink_conformance import _wait as wait
from tests import faulty_targets

PIPELINE = "conformance"


def leftovers(sink: FileSink) -> list[str]:
    """All data files below a local sink's path that no reader gets."""
    root = Path(sink.path.removeprefix("dir://"))
    known = set(sink.table(PIPELINE).paths())
    return [str(file) for file in root.rglob("*.parquet") if str(file) not in known and "-other." not in str(file)]


class TestLocalFiles(SinkConformance):
    kills = 5
    refused_columns = (StructType().add("id", LongType()).add("k", VariantType()), "'k'")

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faulty_targets.storages(monkeypatch)

    def make_sink(self, folder: Path) -> FileSink:
        return FileSink(name="files", path=str(folder / "table"), partition_by=["k"])

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return [row for path in sink.table(PIPELINE).paths() for row in pq.ParquetFile(path).read().to_pylist()]

    def staged(self, sink: Any) -> Iterable[str]:
        return leftovers(sink)

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copytree(sink.path, folder / "backup", dirs_exist_ok=True)

        def put_back() -> None:
            shutil.rmtree(sink.path)
            shutil.move(backup, sink.path)

        return put_back


class TestFilesThroughFsspec(SinkConformance):
    """The same through fsspec's own interface, with a secret among its options."""

    kills = 2
    secrets = ("hunter2",)

    def make_sink(self, folder: Path) -> FileSink:
        options = {"path": str(folder), "target_protocol": "file", "target_options": {"secret": "hunter2"}}
        return FileSink(name="files", path="dir://table", storage_options=options)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return sink.table(PIPELINE).to_table().to_pylist()  # type: ignore[no-any-return]

    def staged(self, sink: Any) -> Iterable[str]:
        known = set(sink.table(PIPELINE).paths())
        root = Path(sink.storage_options["path"])
        return [str(file) for file in root.rglob("*.parquet") if str(file) not in known and "-other." not in str(file)]


class TestFilesInAnObjectStore(SinkConformance):
    """In fsspec's memory, which forgets what another process writes: so without the crashes."""

    test_a_batch_is_there_once_whichever_step_its_process_dies_after = None  # type: ignore[assignment]
    test_a_batch_is_there_once_wherever_within_a_step_its_process_dies = None  # type: ignore[assignment]
    test_a_process_that_is_frozen_in_its_commit_never_adds_to_what_the_next_claim_saw = None  # type: ignore[assignment]

    def make_sink(self, folder: Path) -> FileSink:
        return FileSink(name="files", path=f"memory://{folder}")

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return sink.table(PIPELINE).to_table().to_pylist()  # type: ignore[no-any-return]

    def staged(self, sink: Any) -> Iterable[str]:
        system = fsspec.filesystem("memory")
        known = set(sink.table(PIPELINE).paths())
        found = system.find(sink.path.removeprefix("memory://"))
        files = [f"memory://{name}" for name in found if name.endswith(".parquet") and "-other." not in name]
        return [name for name in files if name not in known]


ROWS = pa.schema([("id", pa.int64()), ("day", pa.date32()), ("amount", pa.decimal128(12, 2)), ("note", pa.string())])


def batch(first: int, count: int) -> pa.RecordBatch:
    rows = [
        {
            "id": number,
            "day": datetime.date(2024, 1, 1 + number % 3) if number % 10 else None,
            "amount": Decimal(number) / 4,
            "note": f"a/b={number}",
        }
        for number in range(first, first + count)
    ]
    return pa.RecordBatch.from_pylist(rows, ROWS)


class Live:
    """A run of a sink; each :meth:`commit` gives it one task's rows."""

    def __init__(self, sink: FileSink, tmp_path: Path, run: int = 1) -> None:
        self.sink, self.run = sink, run
        self.committer: FileCommitter = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
        claimed = self.committer.claim(run)
        self.number = claimed.commit if claimed else 0

    def stage(self, tasks: Sequence[pa.RecordBatch]) -> SinkAttempt:
        attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=PIPELINE, commit=self.number + 1, run=self.run)
        self.committer.begin(attempt)
        told = []
        for task, rows in enumerate(tasks):
            with closing(self.committer.open_writer()(attempt, task)) as writer:
                writer.write(rows)
                told.append(writer.finish())
        self.committer.pre_commit(told)
        return attempt

    def commit(self, *tasks: pa.RecordBatch) -> SinkEntry:
        self.stage(tasks)
        self.number += 1
        source = {"events": {0: (self.number, self.number + 1)}}
        rows = sum(one.num_rows for one in tasks)
        entry = SinkEntry(
            commit=self.number, run=self.run, lineage="l", batch=self.number, source=source, rows=rows, digest=rows
        )
        self.committer.commit(entry)
        self.committer.settled(self.number)
        return entry


@pytest.fixture(params=["", "memory://"], ids=["local", "memory"])
def sink(request: pytest.FixtureRequest, tmp_path: Path) -> FileSink:
    return FileSink(name="files", path=f"{request.param}{tmp_path}/table", partition_by=["day"])


def test_values_come_back_as_they_were_and_their_partitions_leave_out_files(sink: FileSink, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    live.commit(batch(0, 30), batch(30, 30))
    table = sink.table(PIPELINE)
    assert sorted(table.to_table().to_pylist(), key=lambda row: row["id"]) == batch(0, 60).to_pylist()
    one_day = table.to_table(where=lambda values: values["day"] == "2024-01-02").to_pylist()
    assert {row["day"] for row in one_day} == {datetime.date(2024, 1, 2)} and len(one_day) == 18
    assert table.to_table(where=lambda values: values["day"] is None).num_rows == 6


def test_a_table_without_a_commit_has_no_rows(sink: FileSink) -> None:
    table = sink.table(PIPELINE)
    assert (table.commit, table.paths(), table.to_table().num_rows, list(table.history())) == (0, [], 0, [])


def test_a_reader_sees_each_commit_as_it_was(sink: FileSink, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    for number in range(4):
        live.commit(batch(number * 10, 10))
    table = sink.table(PIPELINE)
    assert [table.to_table(through=commit).num_rows for commit in range(5)] == [0, 10, 20, 30, 40]


def test_a_column_that_a_new_version_adds_is_null_in_older_rows(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    live = Live(sink, tmp_path)
    live.commit(pa.RecordBatch.from_pydict({"id": [1]}))
    live.commit(pa.RecordBatch.from_pydict({"id": [2], "k": ["new"]}))
    assert sink.table(PIPELINE).to_table().to_pylist() == [{"id": 1, "k": None}, {"id": 2, "k": "new"}]


def test_a_file_that_has_its_size_is_closed_and_another_begun(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"), compression="none", max_file_bytes=2**20)
    live = Live(sink, tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.committer.open_writer()(attempt, 0)) as writer:
        for number in range(2):
            writer.write(pa.RecordBatch.from_pydict({"id": [number], "b": [os.urandom(40 * 2**20)]}))
        files = writer.finish()["files"]
    assert [file["rows"] for file in files] == [1, 1]


def test_compaction_keeps_rows_history_and_readers_in_the_midst(sink: FileSink, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    entries = [live.commit(batch(number * 10, 10)) for number in range(6)]
    table = sink.table(PIPELINE)
    before = table.dataset()
    small = len(table.paths())
    assert table.compact() == small
    assert len(table.paths()) == 4 < small  # three days and the nulls
    assert sorted(before.to_table()["id"].to_pylist()) == list(range(60))
    assert table.clean() == 0  # within the grace period
    entries.append(live.commit(batch(60, 10)))  # the live run appends behind the compaction
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(70))
    assert sorted(table.to_table(through=3)["id"].to_pylist()) == list(range(30))
    assert list(table.history()) == entries
    assert list(live.committer.audit(entries)) == []
    assert table.clean(grace_hours=0) == small
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(70))
    assert list(live.committer.audit(entries)) == []
    assert Live(sink, tmp_path, run=2).number == 7


def test_a_compaction_that_dies_anywhere_changes_no_row_and_what_it_leaves_goes(tmp_path: Path) -> None:
    """A child is killed at calls spread over it, and the last one over the files that all before have left."""
    sink = FileSink(name="files", path=str(tmp_path / "table"), partition_by=["day"])
    live = Live(sink, tmp_path)
    entries = [live.commit(batch(number * 10, 10)) for number in range(3)]
    table = sink.table(PIPELINE)

    def compact(call: int) -> int:
        def live_and_die() -> None:
            at_call(call, signal.SIGKILL)
            table.compact()
            sys.setprofile(None)

        return os.waitstatus_to_exitcode(wait(forked(live_and_die, tmp_path)))

    call, step = 1, 40
    while compact(call) == -signal.SIGKILL:
        assert sorted(table.to_table()["id"].to_pylist()) == list(range(30)), call
        call, step = call + step, step * 2 if step < 600 else step
    assert call > 500, "it was killed some times"
    assert list(live.committer.audit(entries)) == []
    assert leftovers(sink)
    table.clean(grace_hours=0)
    assert leftovers(sink) == []
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(30))


def test_compactions_and_commits_at_one_time_lose_no_row(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    live, done = Live(sink, tmp_path), threading.Event()
    compacted = []

    def compact() -> None:
        while not done.is_set():
            with contextlib.suppress(BatchFailedError):
                compacted.append(sink.table(PIPELINE).compact())

    threads = [threading.Thread(target=compact) for _ in range(2)]
    for thread in threads:
        thread.start()
    entries = [live.commit(batch(number * 10, 10)) for number in range(40)]
    done.set()
    for thread in threads:
        thread.join()
    assert any(compacted)
    table = sink.table(PIPELINE)
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(400))
    assert list(live.committer.audit(entries)) == []
    table.clean(grace_hours=0)
    assert leftovers(sink) == []


def test_the_log_forgets_what_lies_behind_an_old_compaction_and_the_pipeline_has_forgotten(
    sink: FileSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entries = [live.commit(batch(number * 10, 10)) for number in range(3)]
    table = sink.table(PIPELINE)
    table.compact()
    entries += [live.commit(batch(number * 10, 10)) for number in range(3, 6)]
    live.committer.forget(6)
    assert list(table.history()) == entries, "a reader may have begun before the compaction"
    monkeypatch.setattr(files, "_READER_SECONDS", -1)
    live.committer.forget(2)
    assert list(table.history()) == entries[1:]
    live.committer.forget(6)
    assert list(table.history()) == entries[3:], "rows of what follows the compaction are found by it"
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(60))
    assert table.to_table(through=4).num_rows == 40
    with pytest.raises(RefusedError, match="begins after commit 2"):
        table.paths(through=2)
    assert list(live.committer.audit(entries[3:])) == []
    for file in Path(sink.path).rglob("*.parquet"):
        os.utime(file, (0, 0))
    assert table.clean() == 0, "what was replaced stays for the grace period"
    table.compact()
    live.committer.forget(7)
    assert list(table.history()) == []
    assert Live(sink, tmp_path, run=2).number == table.commit == 6
    assert table.clean(grace_hours=0) > 0
    assert list(live.committer.audit([])) == []
    assert sorted(table.to_table()["id"].to_pylist()) == list(range(60))


def test_what_a_straggler_writes_after_the_next_claim_goes_by_age(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    old = Live(sink, tmp_path)
    attempt = old.stage([batch(0, 10)])
    new = Live(sink, tmp_path, run=2)
    assert leftovers(sink) == []
    with closing(old.committer.open_writer()(attempt, 5)) as straggler:
        straggler.write(batch(0, 10))
        straggler.finish()
    new.commit(batch(0, 10))
    late = leftovers(sink)
    assert len(late) == 1
    marker = next(Path(sink.path).rglob("attempts/*.json"))
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "began": time.time() - 2 * 3600}))
    Live(sink, tmp_path, run=3)
    assert leftovers(sink) == [] and not list(Path(sink.path).rglob("attempts/*.json"))
    assert sink.table(PIPELINE).to_table().num_rows == 10


@pytest.fixture
def audited(tmp_path: Path) -> tuple[Live, list[SinkEntry]]:
    live = Live(FileSink(name="files", path=str(tmp_path / "table")), tmp_path)
    entries = [live.commit(batch(number * 10, 10)) for number in range(3)]
    assert list(live.committer.audit(entries)) == []
    return live, entries


def test_the_audit_names_a_file_that_is_gone_changed_or_cut(audited: tuple[Live, list[SinkEntry]]) -> None:
    live, entries = audited
    first, second, third = (Path(path) for path in live.sink.table(PIPELINE).paths())
    first.unlink()
    content = second.read_bytes()
    second.write_bytes(content[:100] + bytes([content[100] ^ 1]) + content[101:])
    third.write_bytes(third.read_bytes()[:-1])
    found = list(live.committer.audit(entries))
    assert len(found) == 3
    assert "a committed file with 10 rows is missing" in found[0] and str(first) in found[0]
    assert "checksum" in found[1] and str(second) in found[1]
    assert "checksum" in found[2] and str(third) in found[2]


def test_the_audit_names_a_record_that_is_missing_torn_or_changed(audited: tuple[Live, list[SinkEntry]]) -> None:
    live, entries = audited
    _, one, two, _ = sorted(Path(live.sink.path).rglob("log/*.json"))
    body = json.loads(two.read_text())
    two.write_text(json.dumps({**body, "files": []}))
    assert any("has 10 rows, and its files 0" in text for text in live.committer.audit(entries))
    one.rename(one.with_name(f".{one.name}"))
    found = list(live.committer.audit(entries))
    assert any(text.startswith("commit 1: the log has no record") for text in found)
    assert any("the record before it is missing" in text for text in found)
    two.write_text(two.read_text()[:-5])
    found = list(live.committer.audit(entries))
    assert len(found) == 1 and f"{two} is no record of a sink's log" in found[0]


def test_a_value_that_makes_no_directory_is_refused_by_name(tmp_path: Path) -> None:
    live = Live(FileSink(name="files", path=str(tmp_path / "table"), partition_by=["k"]), tmp_path)
    live.commit(pa.RecordBatch.from_pydict({"id": [1, 2, 3, 4], "k": ["", "..", "a/b=ü\n", None]}))
    assert sorted(live.sink.table(PIPELINE).to_table()["id"].to_pylist()) == [1, 2, 3, 4]
    with pytest.raises(RecordRefusedError) as refused:
        live.stage([pa.RecordBatch.from_pydict({"id": [5], "k": ["x" * 300]})])
    told = typed_errors.find(str(refused.value))
    assert isinstance(told, RecordRefusedError) and "column 'k' of partition_by has the value 'xxx" in str(told)


def test_files_that_the_driver_does_not_see_are_not_committed(tmp_path: Path) -> None:
    live = Live(FileSink(name="files", path=str(tmp_path / "table")), tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.committer.open_writer()(attempt, 0)) as writer:
        writer.write(batch(0, 10))
        told = writer.finish()
    Path(live.sink.path, told["files"][0]["name"]).unlink()
    with pytest.raises(BatchFailedError, match=r"is not there for the driver: both have to see the same file system"):
        live.committer.pre_commit([told])


def test_a_path_on_a_file_system_without_exclusive_creation_is_refused(tmp_path: Path) -> None:
    sink = FileSink(name="files", path="ftp://nowhere/table")
    with pytest.raises(RefusedError, match=r"path='(ftp|http)://"):
        sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    sink = FileSink(name="files", path="http://nowhere/table")
    with pytest.raises(RefusedError, match=r"HTTPFileSystem can neither rename nor create|can't be opened"):
        sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    with pytest.raises(RefusedError, match="path='gibberish://x' can't be opened"):
        open_storage("gibberish://x", {})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"name": "A b"}, r"name='A b'"),
        ({"path": "relative/path"}, "neither an absolute path nor a URL"),
        ({"path": "s3://key:secret@bucket/x"}, "credentials"),
        ({"format": "csv"}, r"format='csv'"),
        ({"compression": "brotli"}, r"compression='brotli'"),
        ({"max_file_bytes": 10}, "at least 1 MiB"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedError, match=said) as refused:
        FileSink(**{"name": "files", "path": "/tmp/x", **changed})
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("columns", "by", "said"),
    [
        (StructType(), [], "no columns"),
        (StructType().add("id", LongType()).add("ID", LongType()), [], "differ in case only"),
        (
            StructType().add("id", LongType()).add("s", StructType().add("v", VariantType())),
            [],
            "column 's'|column 'v'",
        ),
        (StructType().add("id", LongType()), ["day"], "partition_by names 'day'; the columns are id"),
        (StructType().add("at", TimestampType()), ["at"], "column 'at' of partition_by is timestamp"),
    ],
)
def test_columns_that_do_not_fit_are_refused_by_name(columns: StructType, by: list[str], said: str) -> None:
    with pytest.raises(RefusedError, match=said):
        FileSink(name="files", path="/tmp/x", partition_by=by).check_columns(columns)


def test_of_many_who_create_one_name_one_succeeds(tmp_path: Path) -> None:
    for storage in (open_storage(str(tmp_path), {}), open_storage(f"memory://{tmp_path}", {})):
        for number in range(20):
            won: list[int] = []

            def create(me: int, number: int = number, storage: Any = storage, won: list[int] = won) -> None:
                with contextlib.suppress(FileExistsError):
                    storage.create(f"log/{number}", b"%d" % me)
                    won.append(me)

            threads = [threading.Thread(target=create, args=(me,)) for me in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(won) == 1 and storage.read(f"log/{number}") == b"%d" % won[0]


class IgnorantStore(MemoryFileSystem):  # type: ignore[misc]
    """An object store that has never heard of conditional writes."""

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        super().pipe_file(path, value, **kwargs)


def test_a_store_that_ignores_conditional_writes_is_refused(tmp_path: Path) -> None:
    storage = RemoteStorage(IgnorantStore(), str(tmp_path), in_memory=False)
    with pytest.raises(RefusedError, match="was created twice: this store ignores conditional writes"):
        storage.check_exclusive("sink")
    assert storage.below("sink") == []
    RemoteStorage(MemoryFileSystem(), str(tmp_path), in_memory=False).check_exclusive("sink")


def test_two_who_read_a_table_by_its_name_alone_see_the_same(tmp_path: Path) -> None:
    sink = FileSink(name="files", path=str(tmp_path / "table"))
    Live(sink, tmp_path).commit(batch(0, 10))
    table = FileTable(str(tmp_path / "table"), pipeline=PIPELINE, sink="files")
    assert table.paths() == sink.table(PIPELINE).paths() and table.commit == 1

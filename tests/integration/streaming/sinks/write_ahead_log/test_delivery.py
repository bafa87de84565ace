"""The write-ahead log: what every sink has to pass, and a target that fails, forgets to answer, or dies with us."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructType, VariantType
from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, CommitUnknownError, FencedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkCommitter, SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log import delivery
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.delivery import Target
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.sink import WriteAheadLogSink
from airflow_provider_exactlyonce.streaming.sinks.write_ahead_log.storage import LocalStorage
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from dags.jobs.payments_archive import HttpTarget
from tests import faulty_targets
from tests.http_target import Server
from tests.waiting import HANG_SECONDS, eventually

PIPELINE = "conformance"


@dataclass(frozen=True)
class FolderTarget(Target):
    """A file of JSON lines for each commit; it can tell which it has."""

    folder: Path

    @override
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        file = self.folder / f"{entry.commit}.{os.getpid()}.{threading.get_ident()}"
        file.write_text("".join(json.dumps(row) + "\n" for batch in rows for row in batch.to_pylist()))
        file.replace(self.folder / f"{entry.commit}.json")

    @override
    def has(self, entry: SinkEntry) -> bool:
        return (self.folder / f"{entry.commit}.json").exists()


def delivered_rows(sink: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for file in sink.target.folder.glob("*.json") for line in file.read_text().splitlines()]


@dataclass(frozen=True)
class AppendingTarget(Target):
    """One file that only grows, and nobody knows what is in it."""

    file: Path

    @override
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        with self.file.open("a") as opened:
            opened.writelines(f"{row['id']}\n" for batch in rows for row in batch.to_pylist())


class TestWriteAheadLog(SinkConformance):
    kills = 3
    faults = 3
    refused_columns = (StructType().add("id", LongType()).add("k", VariantType()), "'k'")

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faulty_targets.write_ahead_logs(monkeypatch)

    def make_sink(self, folder: Path) -> WriteAheadLogSink:
        (folder / "target").mkdir()
        return WriteAheadLogSink(
            name="log", path=str(folder / "wal"), target=FolderTarget(folder / "target"), wait_seconds=30
        )

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        return delivered_rows(sink)

    def staged(self, sink: Any) -> Iterable[str]:
        folder = Path(sink.path)
        left = [*folder.parent.glob("home/sinks/log/staging/*/*/*"), *folder.rglob("log/.*"), *folder.rglob("probe-*")]
        return [str(name) for name in left]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copytree(sink.path, folder / "backup", dirs_exist_ok=True)

        def put_back() -> None:
            shutil.rmtree(sink.path)
            shutil.move(backup, sink.path)

        return put_back


@pytest.fixture
def server() -> Iterator[Server]:
    with Server.running() as server:
        yield server


def open_run(sink: WriteAheadLogSink, tmp_path: Path, run: int) -> SinkCommitter:
    committer = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    committer.claim(run)
    return committer


def entry_of(commit: int, run: int) -> SinkEntry:
    return SinkEntry(commit=commit, run=run, lineage="l", batch=commit - 1, source={}, rows=10, digest=commit)


def commit(committer: SinkCommitter, number: int, run: int = 1, *, settle: bool = True) -> None:
    """Commit the ids from ``number * 10`` on, ten of them."""
    attempt = SinkAttempt(name=os.urandom(8).hex(), pipeline=PIPELINE, commit=number, run=run)
    committer.begin(attempt)
    with closing(committer.open_writer()(attempt, 0)) as writer:
        writer.write(pa.RecordBatch.from_pydict({"id": list(range(number * 10, number * 10 + 10))}))
        committer.pre_commit([writer.finish()])
    committer.commit(entry_of(number, run))
    if settle:
        committer.settled(number)


def records_of(sink: WriteAheadLogSink) -> list[Path]:
    return sorted(Path(sink.path).rglob("log/*.json"))


def until(condition: Callable[[], bool]) -> None:
    eventually(condition, "the condition", poll_seconds=0.01)


def http_sink(server: Server, tmp_path: Path, **settings: Any) -> WriteAheadLogSink:
    target = HttpTarget(server.url, timeout_seconds=HANG_SECONDS)
    return WriteAheadLogSink(name="log", path=str(tmp_path / "wal"), target=target, **settings)


def test_commits_reach_an_http_server_once_and_in_order_whatever_it_answers(server: Server, tmp_path: Path) -> None:
    server.unavailable, server.lost = 1, 1
    sink = http_sink(server, tmp_path, wait_seconds=HANG_SECONDS)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in range(1, 6):
            commit(committer, number)
    assert [number for number, _ in server.commits] == [1, 2, 3, 4, 5]
    assert server.ids == list(range(10, 60))
    assert sink.delivered(PIPELINE).commit == 5
    assert 0 < server.asked < 5, "it is asked in doubt only"


def test_nothing_is_delivered_before_the_pipelines_ledger_has_it(server: Server, tmp_path: Path) -> None:
    sink = http_sink(server, tmp_path, wait_seconds=HANG_SECONDS)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        commit(committer, 1)
        commit(committer, 2, settle=False)
        time.sleep(0.3)
        assert server.ids == list(range(10, 20))
    with closing(open_run(sink, tmp_path, 2)) as committer:
        time.sleep(0.3)
        assert server.ids == list(range(10, 20))
        committer.settled(2)
        assert server.ids == list(range(10, 30))


def test_the_first_commit_of_a_sink_that_joins_waits_for_the_pipelines_ledger_too(
    server: Server, tmp_path: Path
) -> None:
    sink = http_sink(server, tmp_path, wait_seconds=HANG_SECONDS, drain_seconds=HANG_SECONDS)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        commit(committer, 7, settle=False)
    with closing(open_run(sink, tmp_path, 2)) as committer:
        committer.settled(6)
        time.sleep(0.3)
        assert (server.ids, committer.undelivered) == ([], 0)
        committer.settled(7)
        assert (server.ids, committer.undelivered) == (list(range(70, 80)), 0)
    assert sink.delivered(PIPELINE).commit == 7


def test_what_a_sink_that_joins_never_got_is_not_owed(server: Server, tmp_path: Path) -> None:
    server.unavailable = 1000
    with closing(open_run(http_sink(server, tmp_path, wait_seconds=0, drain_seconds=0.05), tmp_path, 1)) as committer:
        commit(committer, 7)
        until(lambda: server.unavailable < 1000)
        assert committer.undelivered == 1


def test_an_outage_holds_up_no_batch_and_the_next_run_delivers_the_rest(server: Server, tmp_path: Path) -> None:
    server.unavailable = 1000
    sink = http_sink(server, tmp_path, wait_seconds=0.05, drain_seconds=0.05)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in range(1, 11):
            commit(committer, number)
        assert committer.undelivered == 10
    assert server.ids == [] and sink.delivered(PIPELINE).commit == 0
    server.unavailable = 0
    with closing(open_run(http_sink(server, tmp_path, wait_seconds=HANG_SECONDS), tmp_path, 2)) as committer:
        committer.settled(10)
        assert committer.undelivered == 0
    assert server.ids == list(range(10, 110))


@dataclass(frozen=True)
class DyingTarget(Target):
    """Dies right after it has delivered a commit, before anybody can note it."""

    inner: Target
    dies: int

    @override
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        self.inner.deliver(entry, rows)
        if entry.commit == self.dies:
            os.kill(os.getpid(), signal.SIGKILL)


def dies_between_delivery_and_note(inner: Target, tmp_path: Path) -> None:
    sink = WriteAheadLogSink(
        name="log", path=str(tmp_path / "wal"), target=DyingTarget(inner, dies=2), wait_seconds=HANG_SECONDS
    )
    child = os.fork()
    if child == 0:
        try:
            committer = open_run(sink, tmp_path, 1)
            commit(committer, 1)
            commit(committer, 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert sink.delivered(PIPELINE).commit == 1
    after = WriteAheadLogSink(name="log", path=str(tmp_path / "wal"), target=inner, wait_seconds=HANG_SECONDS)
    with closing(open_run(after, tmp_path, 2)) as committer:
        committer.settled(2)
        commit(committer, 3, 2)
    assert after.delivered(PIPELINE).commit == 3


def test_a_target_that_can_be_asked_has_each_commit_once_after_a_crash(server: Server, tmp_path: Path) -> None:
    dies_between_delivery_and_note(HttpTarget(server.url, timeout_seconds=HANG_SECONDS), tmp_path)
    assert server.ids == list(range(10, 40))


def test_a_target_that_cannot_be_asked_has_a_commit_twice_after_a_crash(tmp_path: Path) -> None:
    target = AppendingTarget(tmp_path / "lines")
    assert not target.can_be_asked
    dies_between_delivery_and_note(target, tmp_path)
    counts = Counter(int(line) for line in target.file.read_text().splitlines())
    assert counts == {number: 2 if 20 <= number < 30 else 1 for number in range(10, 40)}, "none lost, commit 2 doubled"


def test_a_superseded_run_delivers_nothing_any_more(server: Server, tmp_path: Path) -> None:
    server.unavailable = 1000
    old = open_run(http_sink(server, tmp_path, wait_seconds=0, drain_seconds=0.05), tmp_path, 1)
    commit(old, 1)
    until(lambda: server.unavailable < 1000)
    with closing(open_run(http_sink(server, tmp_path, wait_seconds=HANG_SECONDS), tmp_path, 2)) as new:
        server.unavailable = 0
        time.sleep(1.5)  # the old one has tried again
        assert server.ids == []
        new.settled(1)
        assert server.ids == list(range(10, 20))
    old.close()
    assert server.ids == list(range(10, 20))


def test_delivered_commits_leave_the_log_by_age_and_the_rest_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FolderTarget(tmp_path / "target")
    target.folder.mkdir()
    sink = WriteAheadLogSink(name="log", path=str(tmp_path / "wal"), target=target, wait_seconds=HANG_SECONDS)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in range(1, 6):
            commit(committer, number)
        for record in records_of(sink)[:4]:
            line, _, rows = record.read_bytes().partition(b"\n")
            body = json.loads(line)
            record.write_bytes(json.dumps({**body, "written": body["written"] - 25 * 3600}).encode() + b"\n" + rows)
        commit(committer, 6)
        entries = [entry_of(number, 1) for number in range(1, 7)]
        assert list(committer.audit(entries)) == []
        assert [int(record.stem) for record in records_of(sink)] == [5, 6, 7], "those of commits 4, 5 and 6"
        (target.folder / "6.json").unlink()
        assert list(committer.audit(entries)) == ["commit 6: it was delivered, and the target does not have it"]
        monkeypatch.setattr(FolderTarget, "has", lambda *_: None)
        with pytest.raises(BatchFailedError, match="does not say whether it has commit 6"):
            list(committer.audit(entries))
    with closing(open_run(sink, tmp_path, 2)) as committer:
        assert committer.tail() == entry_of(6, 1)


class StoresOwnError(Exception):
    """Stands for the errors of fsspec's packages, which are no ``OSError``."""


def test_a_store_that_lets_nothing_be_removed_holds_up_no_delivery(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(*_: object) -> None:
        raise StoresOwnError("503")

    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        monkeypatch.setattr(type(committer._storage), "remove", remove)  # type: ignore[attr-defined]
        for number in (1, 2):
            commit(committer, number)
            assert (committer.undelivered, sink.delivered(PIPELINE).commit) == (0, number)
        monkeypatch.undo()
    assert sink.target.commits() == [1, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"target": "http://x"}, "not a Target"),
        ({"keep_hours": 0.5}, "keep_hours=0.5"),
        ({"path": "relative"}, "neither an absolute path"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(changed: dict[str, Any], said: str) -> None:
    given = {"name": "log", "path": "/tmp/x", "target": AppendingTarget(Path("/tmp/y"))}
    with pytest.raises(RefusedError, match=said):
        WriteAheadLogSink(**{**given, **changed})


@dataclass(frozen=True)
class AskedTarget(AppendingTarget):
    """Knows what it has by the number of each commit, kept beside the lines."""

    @override
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        super().deliver(entry, rows)
        with self.file.with_suffix(".commits").open("a") as opened:
            opened.write(f"{entry.commit}\n")

    @override
    def has(self, entry: SinkEntry) -> bool | None:
        return entry.commit in self.commits()

    def commits(self) -> list[int]:
        file = self.file.with_suffix(".commits")
        return [int(line) for line in file.read_text().split()] if file.exists() else []


@dataclass(frozen=True)
class SilentTarget(AskedTarget):
    """Can be asked, and often does not know."""

    @override
    def has(self, entry: SinkEntry) -> bool | None:
        answers = self.file.with_suffix(".asked")
        with answers.open("a") as opened:
            opened.write("?")
        return None if answers.stat().st_size % 3 else super().has(entry)


def asked_sink(tmp_path: Path, kind: type[AskedTarget] = AskedTarget, name: str = "wal") -> WriteAheadLogSink:
    return WriteAheadLogSink(
        name="log", path=str(tmp_path / name), target=kind(tmp_path / "lines"), wait_seconds=30, drain_seconds=30
    )


def test_a_log_that_was_set_back_delivers_no_commit_again(tmp_path: Path) -> None:
    sink = asked_sink(tmp_path)
    for until_commit, run in ((4, 1), (6, 2)):
        with closing(open_run(sink, tmp_path, run)) as committer:
            for number in range(1 if run == 1 else 5, until_commit + 1):
                commit(committer, number, run)
        if run == 1:
            shutil.copytree(sink.path, tmp_path / "backup")
    shutil.rmtree(sink.path)
    shutil.move(tmp_path / "backup", sink.path)
    with closing(open_run(sink, tmp_path, 3)) as committer:
        for number in (5, 6, 7):
            commit(committer, number, 3)
    assert sink.target.commits() == [1, 2, 3, 4, 5, 6, 7]  # type: ignore[attr-defined]


@pytest.mark.parametrize("by", ["nobody", "another driver"])
def test_a_log_that_is_set_back_behind_a_claim_alone_while_its_driver_runs_gets_no_record_at_another_place(
    by: str, tmp_path: Path
) -> None:
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        commit(committer, 1)
        assert committer.claim(1) == entry_of(1, 1)
        lost = records_of(sink)[-1]
        told = f"{lost}, the last record that this driver has written before commit 2, is "
        lost.unlink()
        if by == "another driver":
            open_run(sink, tmp_path, 1).close()
        with pytest.raises(CommitUnknownError, match=re.escape(told + ("missing" if by == "nobody" else "another"))):
            commit(committer, 2)
        if by == "another driver":
            with pytest.raises(FencedError, match="another driver with the same run number"):
                committer.claim(1)
            return
        assert committer.claim(1) == entry_of(1, 1)
        commit(committer, 2)
    assert sink.target.commits() == [1, 2]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kept", ["log", "delivered"], ids=["its notes are lost", "its notes are newer than it"])
def test_notes_that_do_not_belong_to_the_log_lose_no_commit_and_deliver_none_again(tmp_path: Path, kept: str) -> None:
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in (1, 2):
            commit(committer, number)
    backup = shutil.copytree(sink.path, tmp_path / "backup")
    with closing(open_run(sink, tmp_path, 2)) as committer:
        for number in (3, 4):
            commit(committer, number, 2)
    folder = Path(sink.path) / "_exactlyonce" / f"{PIPELINE}.log"
    first = 5
    if kept == "log":
        shutil.rmtree(folder / "delivered")
    else:
        shutil.rmtree(folder / "log")
        shutil.copytree(backup / folder.relative_to(sink.path) / "log", folder / "log")
        first = 3
    for run in (3, 4):  # more claims, so that positions are others than before
        open_run(sink, tmp_path, run).close()
    with closing(open_run(sink, tmp_path, 5)) as committer:
        for number in range(first, 7):
            commit(committer, number, 5)
    assert sink.target.commits() == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


def test_a_target_that_does_not_know_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "_FIRST_PAUSE_SECONDS", 0.01)
    sink = asked_sink(tmp_path, SilentTarget)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in (1, 2):
            commit(committer, number)
    shutil.rmtree(Path(sink.path) / "_exactlyonce" / f"{PIPELINE}.log" / "delivered")
    with closing(open_run(sink, tmp_path, 2)) as committer:
        commit(committer, 3, 2)
    assert sink.target.commits() == [1, 2, 3]  # type: ignore[attr-defined]


@dataclass(frozen=True)
class HoldingTarget(AskedTarget):
    """Is frozen after it has taken a commit, until a file is gone."""

    @override
    def deliver(self, entry: SinkEntry, rows: Iterator[pa.RecordBatch]) -> None:
        super().deliver(entry, rows)
        until(lambda: not self.file.with_suffix(".hold").exists())


@pytest.mark.parametrize("run", [2, 1], ids=["by the next run", "by another driver with its run number"])
def test_a_superseded_driver_that_thaws_in_a_delivery_delivers_no_more_and_does_not_set_the_note_back(
    tmp_path: Path, run: int
) -> None:
    old = open_run(
        WriteAheadLogSink(
            name="log", path=str(tmp_path / "wal"), target=HoldingTarget(tmp_path / "lines"), wait_seconds=0
        ),
        tmp_path,
        1,
    )
    hold = tmp_path / "lines.hold"
    hold.touch()
    for number in (1, 2):
        commit(old, number)
    sink = asked_sink(tmp_path)
    until(lambda: sink.target.commits() == [1])  # type: ignore[attr-defined]
    with closing(open_run(sink, tmp_path, run)) as new:
        new.settled(2)
        for number in (3, 4):
            commit(new, number, run)
    assert sink.delivered(PIPELINE).commit == 4
    hold.unlink()
    old.close()
    assert sink.delivered(PIPELINE).commit == 4
    unasked = WriteAheadLogSink(
        name="log", path=sink.path, target=AppendingTarget(tmp_path / "others"), wait_seconds=30
    )
    with closing(open_run(unasked, tmp_path, 3)) as last:
        commit(last, 5, 3)
    assert sink.target.commits() == [1, 2, 3, 4]  # type: ignore[attr-defined]
    assert (tmp_path / "others").read_text().split() == [str(number) for number in range(50, 60)]


def test_a_note_of_version_0_1_0_is_read(tmp_path: Path) -> None:
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in (1, 2):
            commit(committer, number)
    folder = Path(sink.path) / "_exactlyonce" / f"{PIPELINE}.log"
    (note,) = (folder / "delivered").iterdir()
    position, newest = note.stem.split("-")
    note.unlink()
    (folder / "delivered.json").write_text(json.dumps({"commit": int(newest), "position": int(position)}))
    assert sink.delivered(PIPELINE) == delivery.DeliveryProgress(commit=2, position=int(position))
    unasked = WriteAheadLogSink(
        name="log", path=sink.path, target=AppendingTarget(tmp_path / "others"), wait_seconds=30
    )
    with closing(open_run(unasked, tmp_path, 2)) as committer:
        commit(committer, 3, 2)
    assert (tmp_path / "others").read_text().split() == [str(number) for number in range(30, 40)]


@pytest.fixture
def audited(tmp_path: Path) -> Iterator[tuple[WriteAheadLogSink, SinkCommitter, list[SinkEntry]]]:
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in (1, 2, 3):
            commit(committer, number)
        entries = [entry_of(number, 1) for number in (1, 2, 3)]
        assert list(committer.audit(entries)) == []
        yield sink, committer, entries


def test_the_audit_names_a_record_whose_rows_are_changed_or_cut(
    audited: tuple[WriteAheadLogSink, SinkCommitter, list[SinkEntry]],
) -> None:
    sink, committer, entries = audited
    _, first, second, _ = records_of(sink)
    content = first.read_bytes()
    first.write_bytes(content[:-40] + bytes([content[-40] ^ 1]) + content[-39:])
    second.write_bytes(second.read_bytes()[:-1])
    findings = list(committer.audit(entries))
    assert findings == [
        f"commit 1: {first} is missing, or its rows are not those that were committed",
        f"commit 2: {second} is missing, or its rows are not those that were committed",
    ]


def test_the_audit_names_a_record_that_is_missing_or_torn(
    audited: tuple[WriteAheadLogSink, SinkCommitter, list[SinkEntry]],
) -> None:
    sink, committer, entries = audited
    _, first, second, _ = records_of(sink)
    first.rename(first.with_name(f".{first.name}"))
    findings = list(committer.audit(entries))
    assert findings == [f"{second}: the record before it is missing", "commit 1: the log has no record of it"]
    second.write_bytes(second.read_bytes()[:20])
    assert f"{second} is no record of a sink's log" in next(iter(committer.audit(entries)))


@pytest.mark.parametrize("leaving", [1, 2, 3])
@pytest.mark.parametrize("is_lost", [False, True], ids=["", "another is lost"])
def test_what_leaves_the_log_while_it_is_audited_is_no_finding(
    leaving: int, is_lost: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever look of the audit at the log they leave before."""
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        for number in range(1, 6):
            commit(committer, number)
        expected = []
        entries = [entry_of(number, 1) for number in range(1, 6)]
        if is_lost:
            *_, lost, last = records_of(sink)
            lost.unlink()
            expected = [f"{last}: the record before it is missing", "commit 4: the log has no record of it"]
        whole = shutil.copytree(sink.path, tmp_path / "whole")
        looks = leave_before = 0

        def counted(look: Callable[[LocalStorage, str], Any]) -> Callable[[LocalStorage, str], Any]:
            def look_at(storage: LocalStorage, name: str) -> Any:
                nonlocal looks
                looks += 1
                if looks == leave_before:
                    for record in records_of(sink)[:leaving]:
                        record.unlink()
                return look(storage, name)

            return look_at

        for look in (LocalStorage.names, LocalStorage.open):
            monkeypatch.setattr(LocalStorage, look.__name__, counted(look))
        while looks >= leave_before:
            looks, leave_before = 0, leave_before + 1
            shutil.copytree(whole, sink.path, dirs_exist_ok=True)
            assert list(committer.audit(entries)) == expected, f"they have left before look {leave_before}"


def test_a_driver_whose_run_number_is_given_to_another_is_superseded(tmp_path: Path) -> None:
    sink = asked_sink(tmp_path)
    said = "run 1 of conformance is superseded by another driver with the same run number in sink log"
    with closing(open_run(sink, tmp_path, 1)) as first, closing(open_run(sink, tmp_path, 1)) as second:
        with pytest.raises(FencedError, match=said):
            commit(first, 1)
        commit(second, 1)
        with pytest.raises(FencedError, match=said):
            first.claim(1)
        for _ in range(2):
            assert second.claim(1) == entry_of(1, 1)
        commit(second, 2)
    assert sink.target.commits() == [1, 2]  # type: ignore[attr-defined]


def test_what_a_killed_process_left_of_a_record_goes_with_the_next_claim(tmp_path: Path) -> None:
    sink = asked_sink(tmp_path)
    with closing(open_run(sink, tmp_path, 1)) as committer:
        commit(committer, 1)
    log = records_of(sink)[0].parent
    dead, later = log / f".{2:020d}.json.{'a' * 32}", log / f".{9:020d}.json.{'b' * 32}"
    dead.touch()
    later.touch()
    open_run(sink, tmp_path, 2).close()
    assert not dead.exists()
    assert later.exists(), "somebody may be about to create what comes after the claim"


RELEASE = Path(__file__).parents[4] / "releases" / "0.1.0" / "write-ahead-log"


def test_a_log_of_version_0_1_0_is_gone_on_with_and_what_it_had_not_delivered_is_once(tmp_path: Path) -> None:
    """Its target has commits 1 and 2; it was killed in commit 5."""
    shutil.copytree(RELEASE, tmp_path / "wal")
    for record in (tmp_path / "wal").rglob("log/*.json"):
        record.write_text(json.dumps({**json.loads(record.read_text()), "written": 0}))
    (tmp_path / "lines.commits").write_text("1\n2\n")
    sink = WriteAheadLogSink(
        name="endpoint", path=str(tmp_path / "wal"), target=AskedTarget(tmp_path / "lines"), wait_seconds=HANG_SECONDS
    )
    context = SinkContext(pipeline="shop-archive", home=tmp_path)
    assert sink.delivered("shop-archive").commit == 2
    with closing(sink.open(context)) as committer:
        newest = committer.claim(2)
        assert newest is not None and (newest.commit, newest.run) == (4, 1)
        committer.settled(4)
        commit(committer, 5, 2)
        assert list(committer.audit([newest, entry_of(5, 2)])) == []
    assert sink.target.commits() == [1, 2, 3, 4, 5]  # type: ignore[attr-defined]
    delivered = [int(line) for line in (tmp_path / "lines").read_text().split()]
    assert delivered == [*range(8, 16), *range(50, 60)]
    assert [int(record.stem) for record in records_of(sink)] == [6, 7], "what was delivered leaves it by its age"
    assert sorted(file.parent.name for file in (tmp_path / "wal").rglob("*.parquet")) == ["r1-c5-a1"]

"""The example of a sink of one's own passes what every sink has to pass."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StructType

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, FencedError, InvariantError
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext, SinkEntry
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from dags.jobs.own_sink import SqliteSink


def test_what_others_have_put_into_the_staging_folder_stops_no_claim_and_stays(tmp_path: Path) -> None:
    sink = TestSqliteSink().make_sink(tmp_path)
    staging = tmp_path / "home" / "sinks" / "table" / "staging"
    for name in ("lost+found", "1", "2"):
        (staging / name).mkdir(parents=True)
    (staging / ".nfs0001").touch()
    with closing(sink.open(SinkContext(pipeline="p", home=tmp_path / "home"))) as committer:
        assert committer.claim(1) is None
    assert {path.name for path in staging.iterdir()} == {"lost+found", ".nfs0001", "2"}


def test_a_run_that_was_frozen_in_its_claim_while_a_successor_has_committed_is_superseded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = TestSqliteSink().make_sink(tmp_path)
    context = SinkContext(pipeline="p", home=tmp_path / "home")
    entry = SinkEntry(commit=1, run=2, lineage="l", batch=0, source={}, rows=0, digest=0)
    with closing(sink.open(context)) as frozen, closing(sink.open(context)) as successor:
        take_over = frozen.take_over

        def take_over_and_freeze(run: int) -> None:
            take_over(run)
            successor.claim(2)
            successor.begin(SinkAttempt(name="a", pipeline="p", commit=1, run=2))
            successor.pre_commit([])
            successor.commit(entry)

        monkeypatch.setattr(frozen, "take_over", take_over_and_freeze)
        with pytest.raises(FencedError, match="superseded by run 2"):
            frozen.claim(1)
        assert successor.tail() == entry


def test_a_run_whose_successor_has_committed_already_is_superseded_in_its_commit(tmp_path: Path) -> None:
    tests = TestSqliteSink()
    sink, context = tests.make_sink(tmp_path), SinkContext(pipeline="p", home=tmp_path / "home")
    with closing(sink.open(context)) as old, closing(sink.open(context)) as successor:
        old.claim(1)
        tests._stage(old, run=1, commit=1)
        successor.claim(2)
        tests._commit(successor, run=2, commit=1)
        with pytest.raises(FencedError, match="superseded by run 2"):
            old.commit(tests._entry(1, 1))


def test_rows_that_a_pre_commit_of_ones_own_has_forgotten_are_missed_before_anything_is_published(
    tmp_path: Path,
) -> None:
    context = SinkContext(pipeline="p", home=tmp_path / "home")
    entry = SinkEntry(commit=1, run=1, lineage="l", batch=0, source={}, rows=3, digest=0)
    with closing(TestSqliteSink().make_sink(tmp_path).open(context)) as committer:
        committer.claim(1)
        committer.begin(SinkAttempt(name="a", pipeline="p", commit=1, run=1))
        with pytest.raises(InvariantError, match="0 rows are staged, the entry has 3: is pre_commit overridden"):
            committer.commit(entry)
        assert committer.tail() is None


def test_a_target_that_is_set_back_behind_all_commits_while_its_driver_runs_gets_no_later_one(tmp_path: Path) -> None:
    tests = TestSqliteSink()
    sink = tests.make_sink(tmp_path)
    with closing(sink.open(SinkContext(pipeline="p", home=tmp_path / "home"))) as committer:
        committer.claim(1)
        put_back = tests.set_back(sink, tmp_path)
        tests._commit(committer, run=1, commit=1)
        put_back()
        told = "has commit 0 where this driver knows of commit 1, and would write commit 2: it was set back"
        with pytest.raises(CommitUnknownError, match=told):
            tests._commit(committer, run=1, commit=2)
        assert list(tests.visible(sink)) == [] and committer.claim(1) is None


class TestSqliteSink(SinkConformance):
    refused_columns = (StructType().add("id", LongType()).add("w", DoubleType()), "w")

    def make_sink(self, folder: Path) -> SqliteSink:
        with closing(sqlite3.connect(folder / "payments.db")) as database:
            database.execute("CREATE TABLE payments (id INT, k TEXT, v REAL)")
        return SqliteSink(name="table", path=folder / "payments.db", table="payments")

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        with closing(sqlite3.connect(sink.path)) as database:
            rows = database.execute(f"SELECT id, k, v FROM {sink.table}").fetchall()
        return [dict(zip(("id", "k", "v"), row, strict=True)) for row in rows]

    def staged(self, sink: Any) -> Iterable[str]:
        return [str(file) for file in sink.path.parent.glob("home/sinks/table/staging/*/*/*")]

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copy(sink.path, folder / "backup.db")

        def put_back() -> None:
            shutil.copy(backup, sink.path)

        return put_back

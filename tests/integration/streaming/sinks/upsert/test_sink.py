"""The idempotent sink passes what every sink has to pass, into SQLite."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import DoubleType, LongType, StructType

from airflow_provider_exactlyonce.exceptions import CommitUnknownError, RefusedError
from airflow_provider_exactlyonce.ledger.records import LedgerPointer, OtherSink
from airflow_provider_exactlyonce.streaming.commit.sink_group import SinkGroup
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.upsert import table as upsert_table
from airflow_provider_exactlyonce.streaming.sinks.upsert.sink import UpsertSink
from airflow_provider_exactlyonce.testing.sink_conformance import SinkConformance
from tests import faulty_targets
from tests.ledger_records import commit_record

COMMIT = commit_record(300, batch=299, sink_topic_ids={}, epoch=0, others={"table": OtherSink(rows=0, digest=0)})


def test_entries_go_a_hundred_at_a_time_when_the_pipeline_has_forgotten_their_commits(tmp_path: Path) -> None:
    sink = TestUpsertSink().make_sink(tmp_path)
    committer = sink.open(SinkContext(pipeline="p", home=tmp_path))
    others = SinkGroup("p", {"table": committer})

    def kept() -> tuple[int, int]:
        with closing(sqlite3.connect(tmp_path / "target.db")) as database:
            counts: tuple[int, int] = database.execute(
                "SELECT min(number), max(number) FROM exactlyonce_commits"
            ).fetchone()
            return counts

    others.claim(1, None, 1)
    entry = SinkEntry(commit=0, run=1, lineage="l", batch=0, source={}, rows=0, digest=0)
    with closing(sqlite3.connect(tmp_path / "target.db")) as database, database:
        rows = [("p", "table", commit, replace(entry, commit=commit).to_json()) for commit in range(1, 301)]
        database.executemany("INSERT INTO exactlyonce_commits VALUES (?, ?, ?, ?)", rows)
    for oldest, first in ((1, 1), (100, 1), (101, 101), (150, 101), (201, 201), (999, 300)):
        others.settled(replace(COMMIT, before=LedgerPointer(oldest=oldest)))
        assert kept() == (first, 300), oldest
    others.claim(2, COMMIT, 300)
    committer.commit(replace(entry, commit=301))
    others.settled(replace(COMMIT, commit=301, before=LedgerPointer(oldest=101)))
    assert kept() == (300, 301), "what is gone does not come back, and the newest is not alone"


@pytest.mark.parametrize(
    ("url", "dataset"),
    [
        ("mysql+pymysql://u:secret@db:3306/shop?ssl_key=k", ("mysql://db:3306", "shop.orders")),
        ("postgresql://u:secret@db/shop", ("postgres://db", "shop.orders")),
        ("sqlite:////data/shop.db", ("sqlite://", "/data/shop.db.orders")),
    ],
)
def test_lineage_is_told_the_table_without_a_secret(url: str, dataset: tuple[str, str]) -> None:
    assert upsert_table.dataset(url, "orders") == dataset


class TestUpsertSink(SinkConformance):
    kills = 3
    faults = 3
    refused_columns = (StructType().add("id", LongType()).add("w", DoubleType()), "w")
    commit_column: str | None = None

    @pytest.fixture(autouse=True)
    def calls_can_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        faulty_targets.sqlalchemy(monkeypatch)

    def set_back(self, sink: Any, folder: Path) -> Callable[[], None]:
        backup = shutil.copy(folder / "target.db", folder / "backup.db")

        def put_back() -> None:
            shutil.copy(backup, folder / "target.db")

        return put_back

    def make_sink(self, folder: Path) -> UpsertSink:
        with closing(sqlite3.connect(folder / "target.db")) as database:
            database.execute("CREATE TABLE payments (id BIGINT PRIMARY KEY, k TEXT, v REAL, made BIGINT)")
        url = f"sqlite:///{folder / 'target.db'}"
        return UpsertSink(name="table", url=url, table="payments", key="id", commit_column=self.commit_column)

    def visible(self, sink: Any) -> Iterable[Mapping[str, Any]]:
        with closing(sqlite3.connect(sink.url.removeprefix("sqlite:///"))) as database:
            rows = database.execute(f"SELECT id, k, v FROM {sink.table}").fetchall()
        return [dict(zip(("id", "k", "v"), row, strict=True)) for row in rows]

    def staged(self, sink: Any) -> Iterable[str]:
        return []  # it writes straight into the table

    def test_a_database_that_is_set_back_while_its_driver_runs_gets_no_later_commit(self, tmp_path: Path) -> None:
        sink = self.make_sink(tmp_path)
        with closing(sink.open(SinkContext(pipeline="p", home=tmp_path))) as committer:
            committer.claim(1)
            self._commit(committer, run=1, commit=1)
            put_back = self.set_back(sink, tmp_path)
            self._commit(committer, run=1, commit=2)
            put_back()
            told = "has commit 1 where this driver knows of commit 2, and would write commit 3: it was set back"
            with pytest.raises(CommitUnknownError, match=told):
                self._commit(committer, run=1, commit=3)
            assert committer.claim(1) == self._entry(1, 1)


class TestFencedUpsertSink(TestUpsertSink):
    kills = 2
    faults = 3
    commit_column = "made"

    def test_pipelines_that_share_a_target_do_not_meet(self, tmp_path: Path) -> None:
        with pytest.raises(RefusedError, match="two pipelines' numbers can't be told apart"):
            super().test_pipelines_that_share_a_target_do_not_meet(tmp_path)

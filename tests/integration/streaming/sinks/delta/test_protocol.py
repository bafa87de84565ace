"""The Delta sink's protocol: zombies, outcomes that nobody knows, and what the clean-up of the log leaves."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    FencedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming import DeltaSink
from airflow_provider_exactlyonce.streaming.sinks.delta import log as delta_log
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkContext
from tests.integration.streaming.sinks.delta.runs import (
    COLUMNS,
    LONG,
    PIPELINE,
    TEXT,
    Live,
    cleaned,
    foreign,
    ids,
    made,
    rows,
)

# Zombies


def test_a_zombie_with_an_older_or_a_fresh_handle_commits_nothing(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    old = Live(sink, tmp_path)
    entry = old.stage(rows(0, 2))
    successor = Live(sink, tmp_path, run=2)
    with pytest.raises(FencedError, match="run 1 of pipeline shop is superseded by run 2"):
        old.committer.commit(entry)
    again = sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    again.expect_columns(COLUMNS)
    with pytest.raises(FencedError):
        again.claim(1)
    successor.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_what_delta_rs_itself_would_take_and_refuse(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    """What the sink rests on: without a retry a stale handle is refused, and with one a fresh handle never is."""
    Live(sink, tmp_path).commit(rows(0, 1))

    def put(handle: DeltaTable, version: int, retries: int) -> None:
        handle.create_write_transaction(
            [],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction("zombie", version)], max_commit_retries=retries
            ),
        )

    stale, also_stale = DeltaTable(table), DeltaTable(table)
    put(DeltaTable(table), 5, 0)
    with pytest.raises(Exception, match="Failed to commit transaction: 0"):
        put(stale, 6, 0)
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        put(also_stale, 6, 5)
    put(DeltaTable(table), 4, 5)
    assert DeltaTable(table).transaction_version("zombie") == 4, "a fresh handle sets it back"
    foreign_handle = DeltaTable(table)
    foreign(table, 10, 1)
    put(foreign_handle, 5, 5)
    assert DeltaTable(table).transaction_version("zombie") == 5, "a retry goes on over other applications"


def test_a_commit_that_the_table_has_or_a_table_that_was_made_anew_is_in_doubt(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    live.commit(rows(0, 1))
    for number in (1, 0):
        live.number = number - 1
        with pytest.raises(CommitUnknownError, match=f"has commit 1 .* would write commit {number}: it was set back"):
            live.committer.commit(live.stage(rows(0, 1)))
        live.committer.claim(1)
    live.number = 1
    entry = live.stage(rows(1, 1))
    shutil.rmtree(table / "_delta_log")
    made(table, pa.schema([LONG, TEXT]))
    for _ in range(9):
        foreign(table, 100, 1)
    with pytest.raises((CommitUnknownError, BatchFailedError)):
        live.committer.commit(entry)
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert ids(table) == [100] * 9


def test_what_a_task_that_ran_twice_has_left_goes_when_the_commit_is_settled(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    (kept,) = (table / "exactlyonce").rglob("*.parquet")
    shutil.copy(kept, kept.with_name("00000-twice.parquet"))
    live.committer.commit(entry)
    assert len(list((table / "exactlyonce").rglob("*.parquet"))) == 2
    live.committer.settled(1)
    assert list((table / "exactlyonce").rglob("*.parquet")) == [kept]


def test_a_table_that_somebody_else_makes_meanwhile_is_used(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaLog.create

    def late(log: DeltaLog, *given: Any) -> None:
        made(table, pa.schema([TEXT, LONG]))
        real(log, *given)

    monkeypatch.setattr(DeltaLog, "create", late)
    Live(sink, tmp_path).commit(rows(0, 2))
    assert ids(table) == [0, 1]


# Unknown outcomes


def lose_answers(monkeypatch: pytest.MonkeyPatch, *, before: bool) -> None:
    real = DeltaLog.append

    def append(log: DeltaLog, *given: Any) -> None:
        if before:
            raise ConnectionError("the request was lost")
        real(log, *given)
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(DeltaLog, "append", append)


def test_a_commit_whose_answer_is_lost_is_found(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    with monkeypatch.context() as patched:
        lose_answers(patched, before=False)
        live.commit(rows(0, 2))
    live.commit(rows(2, 2))
    assert ids(table) == [0, 1, 2, 3]


def test_a_commit_whose_answer_is_lost_until_a_successor_has_committed_keeps_its_files(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    real = DeltaLog.append

    def append(log: DeltaLog, *given: Any) -> None:
        real(log, *given)
        monkeypatch.setattr(DeltaLog, "append", real)
        successor = Live(sink, tmp_path, run=2)
        assert successor.number == 1
        successor.commit(rows(2, 2))
        raise ConnectionError("the answer was lost")

    monkeypatch.setattr(DeltaLog, "append", append)
    with pytest.raises(CommitUnknownError, match="has commit 2 by another attempt than the one at 1"):
        live.committer.commit(entry)
    with pytest.raises(FencedError):
        live.committer.claim(1)
    assert ids(table) == [0, 1, 2, 3]


def test_a_commit_that_a_claim_finds_is_on_disk_before_the_claim_says_so(
    sink: DeltaSink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(delta_log, "flush_commit", lambda path, version: kept.append(version))
    live = Live(sink, tmp_path)
    entry, real = live.stage(rows(0, 2)), DeltaLog.append

    def silent(log: DeltaLog) -> None:
        raise ConnectionError("no answer")

    with monkeypatch.context() as patched:

        def append(log: DeltaLog, *given: Any) -> None:
            real(log, *given)
            patched.setattr(DeltaLog, "refresh", silent)
            raise ConnectionError("the answer was lost")

        patched.setattr(DeltaLog, "append", append)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    assert kept == [0, 1], "the table, and the claim"
    assert live.committer.claim(1) == entry
    assert kept == [0, 1, 3, 2], "another claim, and the commit before it"


def test_a_commit_whose_request_is_lost_is_in_doubt_until_a_claim(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    with monkeypatch.context() as patched:
        lose_answers(patched, before=True)
        with pytest.raises(CommitUnknownError, match=r"version 2 of table .* may be written or not"):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    assert not list(table.rglob("*/shop.lake/*/*.parquet"))
    live.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_a_request_that_arrives_after_the_claim_that_decided_is_refused(
    sink: DeltaSink, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    late: list[Callable[[], None]] = []

    def delay(log: DeltaLog, *given: Any) -> None:
        on_its_way = DeltaLog(str(table), {})
        assert on_its_way.open() and on_its_way.version == log.version
        late.append(lambda: on_its_way.append(*given))
        raise ConnectionError("no answer yet")

    with monkeypatch.context() as patched:
        patched.setattr(DeltaLog, "append", delay)
        with pytest.raises(CommitUnknownError):
            live.committer.commit(entry)
    assert live.committer.claim(1) is None
    with pytest.raises(CommitFailedError):
        late[0]()
    live.commit(rows(0, 2))
    assert ids(table) == [0, 1]


def test_a_hook_of_delta_rs_that_fails_after_the_commit_does_not_double_it(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    made(table, pa.schema([LONG, TEXT]), configuration={"delta.checkpointInterval": "1"})
    live = Live(sink, tmp_path)
    (table / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    (table / "_delta_log" / "_last_checkpoint").mkdir()
    live_entry = live.stage(rows(0, 2))
    try:
        live.committer.commit(live_entry)
    finally:
        (table / "_delta_log" / "_last_checkpoint").rmdir()
    assert ids(table) == [0, 1]
    assert Live(sink, tmp_path, run=2).number == 1


# Retention


def test_the_newest_commit_is_known_when_its_version_was_cleaned_up(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entries = [live.commit(rows(0, 2)), live.commit(rows(2, 2))]
    foreign(table, 100, 1)
    cleaned(table)
    assert sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[-1]
    newer = Live(sink, tmp_path, run=2)
    assert newer.number == 2
    entries.append(newer.commit(rows(4, 2)))
    assert ids(table) == [0, 1, 2, 3, 4, 5, 100]
    assert list(newer.committer.audit(entries)) == []
    with pytest.raises(FencedError):
        live.committer.claim(1)


@pytest.mark.parametrize("superseded", [False, True])
def test_a_run_that_was_frozen_for_longer_than_the_log_is_kept_sees_what_happened(
    sink: DeltaSink, table: Path, tmp_path: Path, superseded: bool
) -> None:
    live = Live(sink, tmp_path)
    live.commit(rows(0, 2))
    entry, handle = live.stage(rows(2, 2)), DeltaTable(table)
    if superseded:
        Live(sink, tmp_path, run=2).commit(rows(2, 2))
    for _ in range(3):
        foreign(table, 100, 1)
    cleaned(table)
    with pytest.raises(DeltaError):
        handle.create_write_transaction(
            [], mode="append", schema=handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )
    if superseded:
        with pytest.raises(FencedError):
            live.committer.commit(entry)
    else:
        live.committer.commit(entry)
    assert ids(table) == [0, 1, 2, 3, 100, 100, 100]


def test_a_note_that_was_not_copied_is_found_in_the_log_and_its_loss_is_named(
    sink: DeltaSink, table: Path, tmp_path: Path
) -> None:
    live = Live(sink, tmp_path)
    entry = live.commit(rows(0, 2))
    for note in (table / "_exactlyonce").rglob("*.json"):
        note.unlink()
    assert sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entry
    assert Live(sink, tmp_path, run=2).number == 1
    for note in (table / "_exactlyonce").rglob("*.json"):
        note.unlink()
    foreign(table, 100, 1)
    cleaned(table)
    with pytest.raises(RefusedError, match="the note of commit 1 of shop/lake is missing"):
        sink.open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def test_a_claim_removes_nothing_that_may_be_committed(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    entry = live.stage(rows(0, 2))
    live.committer.commit(entry)  # and dies before it is settled
    live.number += 1
    second = live.stage(rows(2, 2))
    live.committer.commit(second)
    assert len(list((table / "_exactlyonce").rglob("*.json"))) == 2
    DeltaTable(table).optimize.compact()
    before = sorted((table / "exactlyonce").rglob("*.parquet"))
    Live(sink, tmp_path, run=2)
    assert sorted((table / "exactlyonce").rglob("*.parquet")) == before, "older versions of the table have them"
    assert DeltaTable(table, version=2).to_pyarrow_table().num_rows == 2
    assert len(list((table / "_exactlyonce").rglob("*.json"))) == 1


def test_files_that_the_driver_does_not_see_are_not_committed(sink: DeltaSink, table: Path, tmp_path: Path) -> None:
    live = Live(sink, tmp_path)
    attempt = SinkAttempt(name="a", pipeline=PIPELINE, commit=1, run=1)
    live.committer.begin(attempt)
    with closing(live.committer.open_writer()(attempt, 0)) as writer:
        writer.write(pa.RecordBatch.from_pylist(rows(0, 2), live.columns))
        task = writer.finish()
    (table / task["files"][0]["path"]).unlink()
    with pytest.raises(BatchFailedError, match="is not there for the driver: both have to see the same table"):
        live.committer.pre_commit([task])

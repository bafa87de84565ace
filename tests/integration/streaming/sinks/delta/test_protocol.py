"""The Delta sink's protocol: zombies, outcomes that nobody knows, and what the clean-up of the log leaves."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from airflow_provider_exactlyonce.exceptions import (
    BatchFailedError,
    CommitUnknownError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.delta import log as delta_log
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from tests.integration.streaming.sinks.delta.lake import LONG, TEXT, DeltaLake
from tests.integration.streaming.sinks.lake import PIPELINE, Live, rows

# Zombies


def test_what_delta_rs_itself_would_take_and_refuse(lake: DeltaLake, tmp_path: Path) -> None:
    """What the sink rests on: without a retry a stale handle is refused, and with one a fresh handle never is."""
    Live(lake.sink(), tmp_path).commit(rows(0, 1))

    def put(handle: DeltaTable, version: int, retries: int) -> None:
        handle.create_write_transaction(
            [],
            mode="append",
            schema=handle.schema(),
            commit_properties=CommitProperties(
                app_transactions=[Transaction("zombie", version)], max_commit_retries=retries
            ),
        )

    stale, also_stale = lake.table, lake.table
    put(lake.table, 5, 0)
    with pytest.raises(Exception, match="Failed to commit transaction: 0"):
        put(stale, 6, 0)
    with pytest.raises(Exception, match="Concurrent transaction failed"):
        put(also_stale, 6, 5)
    put(lake.table, 4, 5)
    assert lake.table.transaction_version("zombie") == 4, "a fresh handle sets it back"
    foreign_handle = lake.table
    lake.write(10, 1)
    put(foreign_handle, 5, 5)
    assert lake.table.transaction_version("zombie") == 5, "a retry goes on over other applications"


def test_two_optimizations_of_delta_rs_double_rows_and_the_audit_names_it(lake: DeltaLake, tmp_path: Path) -> None:
    """A defect of delta-rs. Where it is mended, docs/compaction.md need not warn of its ``optimize`` any more."""
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(0, 2)), live.commit(rows(2, 2))]
    stale = lake.table
    lake.compact()
    assert live.audit(entries) == []
    stale.optimize.compact()
    assert lake.ids() == [0, 0, 1, 1, 2, 2, 3, 3]
    (finding,) = live.audit(entries)
    assert finding.startswith(
        "version 5 (OPTIMIZE) has taken out 2 files that version 4 (OPTIMIZE) had taken out before"
    )


@pytest.mark.parametrize("predicate", [None, "true", "id >= 0"])
@pytest.mark.parametrize("operation", ["DELETE", "WRITE"])
def test_a_delete_or_overwrite_of_delta_rs_notices_a_compaction_meanwhile_only_if_it_has_a_predicate(
    lake: DeltaLake, tmp_path: Path, operation: str, predicate: str | None
) -> None:
    """A defect of delta-rs, as above. Where it is mended, docs/compaction.md need not warn of it any more."""
    live = Live(lake.sink(compact_every=2), tmp_path)
    entries = [live.commit(rows(0, 2)), live.stage(rows(2, 2))]
    live.put(entries[1])
    stale = lake.table

    def operate() -> None:
        if operation == "DELETE":
            stale.delete(predicate)
        else:
            given = pa.table({"id": pa.array([9], pa.int64()), "k": ["m"]})
            write_deltalake(stale, given, mode="overwrite", predicate=predicate)

    live.committer.settled(2)
    assert lake.table.version() == stale.version() + 1, "there was a compaction"
    if predicate is not None:
        with pytest.raises(CommitFailedError, match="a concurrent transactions added new data"):
            operate()
        assert lake.ids() == [0, 1, 2, 3]
        assert live.audit(entries) == []
        return
    operate()
    assert lake.ids() == [0, 1, 2, 3] + ([9] if operation == "WRITE" else []), "rows that are deleted come back"
    assert live.audit(entries)[0].startswith(
        f"version 5 ({operation}) has taken out 2 files that version 4 (WRITE) had taken out before"
    )


def test_a_commit_that_the_table_has_or_a_table_that_was_made_anew_is_in_doubt(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 1))
    for number in (1, 0):
        live.number = number - 1
        with pytest.raises(CommitUnknownError, match=f"has commit 1 .* would write commit {number}: it was set back"):
            live.committer.commit(live.stage(rows(0, 1)))
        live.committer.claim(1)
    live.number = 1
    entry = live.stage(rows(1, 1))
    shutil.rmtree(lake.path / "_delta_log")
    lake.create(LONG, TEXT)
    for _ in range(9):
        lake.write(100, 1)
    with pytest.raises((CommitUnknownError, BatchFailedError)):
        live.committer.commit(entry)
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert lake.ids() == [100] * 9


@pytest.mark.parametrize("commits", [1, 3])
@pytest.mark.parametrize("anew", [None, 0, 2])
def test_a_directory_that_is_removed_or_has_another_table_is_told_from_a_store_that_does_not_answer(
    lake: DeltaLake, tmp_path: Path, anew: int | None, commits: int
) -> None:
    live = Live(lake.sink(), tmp_path)
    for number in range(commits):
        live.commit(rows(number, 1))
    entry = live.stage(rows(commits, 1))
    shutil.rmtree(lake.path)
    if anew is not None:
        lake.create(LONG, TEXT)
        for _ in range(anew):
            lake.write(100, 1)
    with pytest.raises(CommitUnknownError, match="recreated"):
        live.committer.commit(entry)
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert lake.ids() == [100] * (anew or 0)


def test_a_directory_that_is_put_back_from_an_older_copy_is_told_from_a_store_that_does_not_answer(
    lake: DeltaLake, tmp_path: Path
) -> None:
    live = Live(lake.sink(), tmp_path)
    first = live.commit(rows(0, 1))
    copy = shutil.copytree(lake.path, tmp_path / "copy")
    for number in (1, 2):
        live.commit(rows(number, 1))
    entry = live.stage(rows(3, 1))
    shutil.rmtree(lake.path)
    copy.rename(lake.path)
    with pytest.raises(CommitUnknownError, match=f"{lake.path} was removed, recreated or set back since version 3"):
        live.committer.commit(entry)
    assert live.committer.claim(1) == first
    assert lake.ids() == [0]


def test_an_error_of_delta_rs_in_a_table_that_is_there_is_no_answer(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 1))

    def update_incremental(_: DeltaTable) -> NoReturn:
        raise DeltaError("the store is away")

    with monkeypatch.context() as away:
        away.setattr(DeltaTable, "update_incremental", update_incremental)
        with pytest.raises(BatchFailedError, match="does not answer: DeltaError: the store is away"):
            live.committer.commit(entry)
    live.decide(entry)
    assert lake.ids() == [0]


def test_a_table_that_somebody_else_makes_meanwhile_is_used(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = DeltaLog.create

    def late(log: DeltaLog, *given: Any) -> None:
        lake.create(TEXT, LONG)
        real(log, *given)

    monkeypatch.setattr(DeltaLog, "create", late)
    Live(lake.sink(), tmp_path).commit(rows(0, 2))
    assert lake.ids() == [0, 1]


# Unknown outcomes


def test_a_commit_that_a_claim_finds_is_on_disk_before_the_claim_says_so(
    lake: DeltaLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[int] = []
    monkeypatch.setattr(delta_log, "flush_commit", lambda path, version: kept.append(version))
    live = Live(lake.sink(), tmp_path)
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


def test_a_hook_of_delta_rs_that_fails_after_the_commit_does_not_double_it(lake: DeltaLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT, configuration={"delta.checkpointInterval": "1"})
    live = Live(lake.sink(), tmp_path)
    (lake.path / "_delta_log" / "_last_checkpoint").unlink(missing_ok=True)
    (lake.path / "_delta_log" / "_last_checkpoint").mkdir()
    live_entry = live.stage(rows(0, 2))
    try:
        live.committer.commit(live_entry)
    finally:
        (lake.path / "_delta_log" / "_last_checkpoint").rmdir()
    assert lake.ids() == [0, 1]
    assert Live(lake.sink(), tmp_path, run=2).number == 1


# Retention


def test_a_handle_of_before_the_clean_up_of_the_log_writes_nothing(lake: DeltaLake, tmp_path: Path) -> None:
    """What the sink rests on, when it was frozen for longer than the log is kept."""
    Live(lake.sink(), tmp_path).commit(rows(0, 2))
    handle = lake.table
    for _ in range(3):
        lake.write(100, 1)
    lake.expire()
    with pytest.raises(DeltaError):
        handle.create_write_transaction(
            [], mode="append", schema=handle.schema(), commit_properties=CommitProperties(max_commit_retries=0)
        )


def test_a_note_that_was_not_copied_is_found_in_the_log_and_its_loss_is_named(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.commit(rows(0, 2))
    for note in lake.notes():
        note.unlink()
    assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entry
    assert Live(lake.sink(), tmp_path, run=2).number == 1
    for note in lake.notes():
        note.unlink()
    lake.write(100, 1)
    lake.expire()
    with pytest.raises(RefusedError, match="the note of commit 1 of shop/lake is missing"):
        lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def test_a_claim_removes_nothing_that_may_be_committed(lake: DeltaLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.stage(rows(0, 2))
    live.committer.commit(entry)  # and dies before it is settled
    live.number += 1
    second = live.stage(rows(2, 2))
    live.committer.commit(second)
    assert len(lake.notes()) == 2
    lake.compact()
    before = lake.files()
    Live(lake.sink(), tmp_path, run=2)
    assert lake.files() == before, "older versions of the table have them"
    assert DeltaTable(lake.path, version=2).to_pyarrow_table().num_rows == 2
    assert len(lake.notes()) == 1

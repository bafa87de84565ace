"""Iceberg tables that were set back or made anew, and what is left of attempts."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_exactlyonce.exceptions import (
    CommitUnknownError,
    FencedError,
    RefusedError,
)
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from tests.integration.streaming.sinks.iceberg.lake import LONG, NAME, TEXT, IcebergLake
from tests.integration.streaming.sinks.lake import PIPELINE, Live, rows


def test_a_table_that_was_set_back_says_what_it_has_and_what_was_after_stays(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(4)]
    forward = lake.table.current_snapshot()
    assert forward is not None
    lake.table.manage_snapshots().rollback_to_snapshot(lake.snapshot_of(2)).commit()
    assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[1]
    with pytest.raises(CommitUnknownError, match=r"has commit 2 .* would write commit 5: it was set back"):
        live.committer.commit(live.stage(rows(8, 2)))
    newer = Live(lake.sink(), tmp_path, run=2)
    assert newer.number == 2
    again = [newer.commit(rows(number * 2, 2)) for number in (2, 3)]
    assert lake.ids() == list(range(8))
    assert newer.audit([*entries[:2], *again]) == []
    Live(lake.sink(), tmp_path, run=3)
    assert lake.table.scan(snapshot_id=forward.snapshot_id).to_arrow().num_rows == 8, "who looks there finds all files"
    with pytest.raises(FencedError):
        live.committer.claim(1)


def test_a_table_that_was_set_back_behind_all_commits_is_refused_by_name(lake: IcebergLake, tmp_path: Path) -> None:
    lake.create(LONG, TEXT)
    lake.write(100, 2)
    start = lake.table.current_snapshot()
    assert start is not None
    Live(lake.sink(), tmp_path).commit(rows(0, 2))
    lake.table.manage_snapshots().rollback_to_snapshot(start.snapshot_id).commit()
    with pytest.raises(RefusedError, match="was set back behind its commit 1, to where no snapshot says"):
        lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()
    lake.expire()
    with pytest.raises(RefusedError, match="was set back behind its commit 1"):
        lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail()


def test_a_commit_that_a_tag_keeps_beside_main_is_in_doubt_until_the_tag_is_dropped(
    lake: IcebergLake, tmp_path: Path
) -> None:
    live = Live(lake.sink(), tmp_path)
    entry = live.commit(rows(0, 2))
    lake.table.manage_snapshots().create_tag(lake.snapshot_of(1), "kept").commit()
    for number in range(2):
        lake.write(100 + number, 1)
    lake.expire()
    committer = lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path))
    with pytest.raises(RefusedError, match=r"has commit 1 in snapshot \d+, and main does not lead there any more"):
        committer.tail()
    lake.table.manage_snapshots().remove_tag("kept").commit()
    lake.expire()
    assert committer.tail() == entry


def test_a_table_that_was_made_anew_has_nothing(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    live.committer.commit(live.stage(rows(0, 2)))  # and is not settled
    live.number += 1
    (committed,) = lake.files()
    entry = live.stage(rows(2, 2))
    lake.catalog.drop_table(NAME)
    lake.create(LONG, TEXT)
    with pytest.raises(CommitUnknownError, match="has commit 0 and the claim of run 0, and run 1 would write commit 2"):
        live.committer.commit(entry)
    assert len(lake.files()) == 2
    assert live.committer.claim(1) is None, "the group of sinks then says that it was set back"
    assert lake.ids() == []
    assert lake.files() == [committed], "who registers the table of before finds its file"
    assert lake.notes() == []


def test_a_claim_removes_nothing_that_may_be_committed(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    for first in (0, 2):  # and dies before they are settled
        live.committer.commit(live.stage(rows(first, 2)))
        live.number += 1
    snapshot = lake.snapshot_of(2)
    assert len(lake.notes()) == 2
    lake.compact()
    before = lake.files()
    Live(lake.sink(), tmp_path, run=2)
    assert lake.files() == before, "older snapshots have them"
    assert lake.table.scan(snapshot_id=snapshot).to_arrow().num_rows == 4
    assert lake.notes() == []


def test_the_audit_names_commits_behind_which_the_table_was_set_back(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(), tmp_path)
    entries = [live.commit(rows(number * 10, 10)) for number in range(3)]
    lake.table.manage_snapshots().rollback_to_snapshot(lake.snapshot_of(1)).commit()
    findings = live.audit(entries)
    assert sorted(finding.partition(":")[0] for finding in findings) == ["commit 2", "commit 3"]


def test_a_claim_forgets_a_note_that_a_store_shows_before_it_is_whole(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(), tmp_path)
    live.commit(rows(0, 2))
    live.stage(rows(2, 2))
    (note,) = lake.notes()
    note.write_bytes(b"")
    with pytest.raises(RefusedError, match="is no note of an attempt"):
        Live(lake.sink(), tmp_path, run=2)
    before = lake.files()
    monkeypatch.setattr(IcebergFiles, "local", lambda *_: None)
    newer = Live(lake.sink(), tmp_path, run=3)
    assert lake.notes() == []
    assert lake.files() == before, "the attempt may have been tried, so that the table may have them"
    newer.commit(rows(2, 2))
    assert lake.ids() == list(range(4))

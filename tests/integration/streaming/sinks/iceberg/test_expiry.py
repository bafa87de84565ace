"""Snapshots that the sink takes out of a table's metadata: which, by whom, and what is known afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_exactlyonce.exceptions import BatchFailedError, FencedError, RefusedError
from airflow_provider_exactlyonce.streaming import IcebergSink
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkContext
from tests.integration.streaming.sinks.iceberg.lake import LONG, TEXT, IcebergLake
from tests.integration.streaming.sinks.iceberg.merge_on_read import delete_first_row
from tests.integration.streaming.sinks.lake import PIPELINE, Live, rows

SHORT = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "3"}


@pytest.fixture
def lake(tmp_path: Path) -> IcebergLake:
    lake = IcebergLake(tmp_path)
    lake.create(LONG, TEXT, properties=SHORT)
    return lake


def expiring(lake: IcebergLake, **more: Any) -> IcebergSink:
    return lake.sink(compact_every=2, expire_snapshots=True, **more)


def expire_all(table: Any) -> Any:
    """Let pyiceberg itself forget all snapshots but the newest."""
    ids = [of.snapshot_id for of in table.snapshots() if of.snapshot_id != table.metadata.current_snapshot_id]
    table.maintenance.expire_snapshots().by_ids(ids).commit()
    return table.metadata


def test_the_metadata_of_many_commits_stays_small_and_nothing_is_lost(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(expiring(lake), tmp_path)
    entries = [live.commit(rows(number * 2, 2)) for number in range(20)]
    assert lake.versions() == 3
    assert lake.ids() == list(range(40))
    assert live.audit(entries) == []
    assert lake.sink().open(SinkContext(pipeline=PIPELINE, home=tmp_path)).tail() == entries[-1]
    again = Live(live.sink, tmp_path, run=2)
    assert again.number == 20
    entries.append(again.commit(rows(40, 2)))
    assert again.audit(entries) == []
    assert lake.ids() == list(range(42))


def test_a_table_whose_files_can_not_be_written_together_forgets_as_others_do(
    lake: IcebergLake, tmp_path: Path
) -> None:
    live = Live(expiring(lake), tmp_path)
    live.commit(rows(0, 2))
    delete_first_row(lake, lake.files()[0])
    for number in range(1, 8):
        with suppress(BatchFailedError):  # it says why no files were written together
            live.commit(rows(number * 2, 2))
    assert lake.versions() <= 4
    assert lake.ids() == list(range(1, 16))


def test_upserts_forget_as_appends_do(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(expiring(lake, mode="upsert", key="id"), tmp_path)
    entries = [live.commit([{"id": number % 3, "k": str(number)}]) for number in range(10)]
    assert lake.versions() == 3
    assert lake.rows() == [{"id": 0, "k": "9"}, {"id": 1, "k": "7"}, {"id": 2, "k": "8"}]
    assert live.audit(entries) == []


def test_it_is_what_pyiceberg_itself_would_do(lake: IcebergLake) -> None:
    """What the sink uses of pyiceberg that is private, but for the requirement."""
    for number in range(4):
        lake.write(number, 1)
    opened = lake.opened
    before = opened.metadata
    opened.expire([of.snapshot_id for of in before.snapshots[:-1]])
    ours = opened.metadata
    assert ours.snapshots == [before.snapshots[-1].model_copy(update={"parent_snapshot_id": None})]
    assert [entry.snapshot_id for entry in ours.snapshot_log] == [opened.version]
    lake.write(10, 1)
    theirs = expire_all(lake.table)
    assert len(theirs.snapshots) == len(theirs.snapshot_log) == len(ours.snapshots)


def test_a_pipeline_that_stood_still_meanwhile_knows_its_newest_commit(lake: IcebergLake, tmp_path: Path) -> None:
    other = Live(lake.sink(), tmp_path, pipeline="other")
    entry = other.commit(rows(100, 1))
    tagged = Live(lake.sink(), tmp_path, pipeline="tagged")
    kept = tagged.commit(rows(200, 1))
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None
    lake.table.manage_snapshots().create_tag(snapshot.snapshot_id, "kept").commit()
    live = Live(expiring(lake), tmp_path)
    for number in range(8):
        live.commit(rows(number, 1))
    assert lake.versions() > 8, "main leads to what is tagged"
    assert other.committer.tail() == entry
    assert tagged.committer.tail() == kept
    lake.table.manage_snapshots().remove_tag("kept").commit()
    live.commit(rows(8, 1))
    live.commit(rows(9, 1))
    assert lake.versions() == 3
    assert tagged.committer.tail() == kept
    assert Live(lake.sink(), tmp_path, run=2, pipeline="other").number == 1


def test_a_run_that_was_superseded_forgets_nothing(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(expiring(lake), tmp_path)
    for number in range(5):
        live.commit(rows(number, 1))
    live.committer.commit(live.stage(rows(5, 1)))
    before = lake.versions()
    Live(lake.sink(), tmp_path, run=2)
    with pytest.raises(FencedError):
        live.committer.settled(6)
    assert lake.versions() == before + 1

    newer = Live(expiring(lake), tmp_path, run=3)
    newer.put(newer.stage(rows(6, 1)))
    newer.committer.settled(7)
    newer.put(newer.stage(rows(7, 1)))
    with pytest.raises(FencedError):
        _settle_while(lake, monkeypatch, newer, lambda: Live(lake.sink(), tmp_path, run=4))


def _settle_while(lake: IcebergLake, monkeypatch: pytest.MonkeyPatch, live: Live, happen: Callable[[], object]) -> None:
    """Let something happen right before the write that forgets, which comes after that of the compaction."""

    def be_faster(write: Callable[[], None]) -> None:
        happen()
        write()

    def compact(write: Callable[[], None]) -> None:
        write()
        lake.at_next_write(monkeypatch, be_faster)

    lake.at_next_write(monkeypatch, compact)
    live.committer.settled(live.number)


@pytest.mark.parametrize("landed", [True, False])
def test_an_answer_that_is_lost_is_no_error_of_a_batch(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, landed: bool
) -> None:
    live = Live(expiring(lake), tmp_path)
    entries = [live.commit(rows(number, 1)) for number in range(3)]
    entries.append(live.stage(rows(3, 1)))
    live.put(entries[-1])

    def lose(write: Callable[[], None]) -> None:
        if landed:
            write()
        raise ConnectionError("no answer")

    def compact(write: Callable[[], None]) -> None:
        write()
        lake.at_next_write(monkeypatch, lose)

    lake.at_next_write(monkeypatch, compact)
    if landed:
        live.committer.settled(4)
    else:
        with pytest.raises(BatchFailedError, match=r"expiry of \d+ snapshots: .* may be written or not"):
            live.committer.settled(4)
    entries += [live.commit(rows(number, 1)) for number in (4, 5)]
    assert lake.versions() == 3
    assert lake.ids() == list(range(6))
    assert live.audit(entries) == []


def test_others_who_write_meanwhile_are_followed(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(expiring(lake), tmp_path)
    for number in range(3):
        live.commit(rows(number, 1))
    live.put(live.stage(rows(3, 1)))
    _settle_while(lake, monkeypatch, live, lambda: lake.write(100, 1))
    assert lake.versions() == 3
    assert lake.ids() == [0, 1, 2, 3, 100]


def test_it_is_done_as_often_as_files_are_written_together() -> None:
    with pytest.raises(RefusedError, match=r"IcebergSink\(expire_snapshots=True\) needs compact_every"):
        IcebergSink("lake.shop.events", name="lake", expire_snapshots=True)

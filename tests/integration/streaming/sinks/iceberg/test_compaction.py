"""What a compaction of an Iceberg table says to readers of its snapshots, and rows that are deleted beside a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.table.snapshots import Operation

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming import IcebergSink
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.iceberg.merge_on_read import delete_first_row
from tests.integration.streaming.sinks.lake import Live, rows


def test_readers_of_snapshots_get_each_row_once(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=3), tmp_path)
    for number in range(3):
        live.commit(rows(5 * number, 5))
    snapshot = lake.table.current_snapshot()
    assert snapshot is not None and snapshot.summary is not None
    assert snapshot.summary.operation == Operation.REPLACE
    totals = {name: value for name, value in snapshot.summary.additional_properties.items() if "total" in name}
    assert (totals["total-data-files"], totals["total-records"]) == ("1", "15")
    assert sorted(lake.table.incremental_append_scan().to_arrow()["id"].to_pylist()) == list(range(15))
    earlier = lake.table.scan(snapshot_id=lake.snapshot_of(2)).to_arrow()
    assert sorted(earlier["id"].to_pylist()) == list(range(10))


def test_rows_that_are_deleted_beside_their_files_do_not_come_back(lake: IcebergLake, tmp_path: Path) -> None:
    live = Live(lake.sink(compact_every=3), tmp_path)
    entries = [live.commit(rows(0, 5)), live.commit(rows(5, 5))]
    delete_first_row(lake, lake.files()[0])
    gone = {row["id"] for row in rows(0, 10)} - set(lake.ids())
    assert len(gone) == 1
    entry = live.stage(rows(10, 5))
    with pytest.raises(
        BatchFailedError, match=r"deleted beside their files \(merge on read\), which must not come back"
    ):
        live.decide(entry)
    entries.append(entry)
    assert set(lake.ids()) == set(range(15)) - gone
    entries.append(live.commit(rows(15, 5)))
    (finding,) = live.audit(entries)
    assert "has deleted 1 rows of" in finding


def test_a_row_that_is_deleted_beside_its_file_while_files_are_written_together_does_not_come_back(
    lake: IcebergLake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = Live(lake.sink(compact_every=2), tmp_path)
    live.commit(rows(0, 5))
    (file,) = lake.files()
    entry = live.stage(rows(5, 5))
    live.committer.commit(entry)

    def be_faster(write: object) -> None:
        delete_first_row(lake, file)
        write()  # type: ignore[operator]

    lake.at_next_write(monkeypatch, be_faster)
    with pytest.raises(BatchFailedError, match="deleted beside their files"):
        live.committer.settled(2)
    assert lake.ids() == list(range(1, 10))


def test_how_often_files_are_written_together_is_checked() -> None:
    with pytest.raises(RefusedError, match=r"IcebergSink\(compact_every=0\): a number of commits, at least 1"):
        IcebergSink("lake.shop.events", name="lake", compact_every=0)

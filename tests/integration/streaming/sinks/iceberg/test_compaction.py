"""What a compaction of an Iceberg table says to readers of its snapshots, and rows that are deleted beside a file."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming import IcebergSink
from tests.integration.streaming.sinks.iceberg.lake import IcebergLake
from tests.integration.streaming.sinks.lake import Live, rows


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot with a file of positions that are deleted, as merge on read writes it; pyiceberg writes none."""

    deletes: DataFile

    def _manifests(self) -> list[ManifestFile]:
        metadata = self._transaction.table_metadata
        output = self.new_manifest_output()
        with _DeleteManifest(
            metadata.spec(), metadata.schema(), output, self._snapshot_id, self._compression
        ) as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=self._snapshot_id, data_file=self.deletes
            )
            writer.add(entry)
        return [writer.to_manifest_file(), *self._existing_manifests()]


def delete_first_row(lake: IcebergLake, file: Path) -> None:
    """Delete the first row of a file, as a user's merge on read."""
    table = lake.table
    path = f"{table.location()}/data/{uuid.uuid4().hex}-deletes.parquet"
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    local = Path(path.removeprefix("file://"))
    pq.write_table(pa.table([[f"file://{file}"], [0]], schema=pa.schema(fields)), local)
    with table.transaction() as transaction:
        delta = _RowDelta(operation=Operation.DELETE, transaction=transaction, io=table.io)
        delta.deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=Record(),
            record_count=1,
            file_size_in_bytes=local.stat().st_size,
            spec_id=0,
        )
        delta.commit()


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
    assert live.audit(entries) == []


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

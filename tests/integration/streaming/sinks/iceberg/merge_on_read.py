"""Rows that a user deletes beside their files, as merge on read does it; pyiceberg reads such and writes none."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import _dataframe_to_data_files
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

from tests.integration.streaming.sinks.iceberg.lake import IcebergLake

_NONE: Final = Record()


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _RowDelta(_FastAppendFiles):
    """A snapshot with a file of rows that are deleted, as merge on read writes it; pyiceberg writes none."""

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
        return [writer.to_manifest_file(), *super()._manifests()]


def delete_first_row(lake: IcebergLake, file: Path) -> None:
    """Delete the first row of a file, as a user's merge on read."""
    delete_positions(lake, {file: [0]})


def delete_positions(lake: IcebergLake, positions: Mapping[Path, Sequence[int]], partition: Record = _NONE) -> Path:
    """Delete rows of files by their positions; returns the file of the deletes."""
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    named = [(f"file://{file}", position) for file, all_of in positions.items() for position in all_of]
    columns = [list(column) for column in zip(*named, strict=True)]
    return _delete(lake, pa.table(columns, schema=pa.schema(fields)), partition)


def delete_by_id(lake: IcebergLake, ids: Sequence[int], partition: Record = _NONE) -> Path:
    """Delete rows by their values of ``id``, as Flink does; returns the file of the deletes."""
    return _delete(lake, _ids(ids), partition, equality_ids=[1])


def replace_by_id(lake: IcebergLake, ids: Sequence[int]) -> Path:
    """Write rows in the place of those with their ``id``, in one snapshot as Flink's upserts; returns their file."""
    table = lake.table
    rows = pa.Table.from_pylist([{"id": number, "k": "new"} for number in ids], table.schema().as_arrow())
    (file,) = _dataframe_to_data_files(table.metadata, rows, table.io)
    _delete(lake, _ids(ids), _NONE, equality_ids=[1], added=file)
    return Path(file.file_path.removeprefix("file://"))


def _ids(ids: Sequence[int]) -> pa.Table:
    return pa.table([ids], schema=pa.schema([pa.field("id", pa.int64(), True, {"PARQUET:field_id": "1"})]))


def _delete(
    lake: IcebergLake,
    rows: pa.Table,
    partition: Record,
    equality_ids: list[int] | None = None,
    added: DataFile | None = None,
) -> Path:
    table = lake.table
    path = f"{table.location()}/data/{uuid.uuid4().hex}-deletes.parquet"
    local = Path(path.removeprefix("file://"))
    pq.write_table(rows, local)
    by_position = equality_ids is None
    with table.transaction() as transaction:
        operation = Operation.DELETE if added is None else Operation.OVERWRITE
        delta = _RowDelta(operation=operation, transaction=transaction, io=table.io)
        if added is not None:
            delta.append_data_file(added)
        delta.deletes = DataFile.from_args(
            content=DataFileContent.POSITION_DELETES if by_position else DataFileContent.EQUALITY_DELETES,
            file_path=path,
            file_format=FileFormat.PARQUET,
            partition=partition,
            record_count=rows.num_rows,
            file_size_in_bytes=local.stat().st_size,
            equality_ids=equality_ids,
            spec_id=0,
        )
        delta.commit()
    return local

"""A compaction of an Iceberg table: a snapshot that replaces files, and says that no row has changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.changes import check_whole_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.file_rows import rows_of
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.manifests import current_files
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import OpenIcebergWriter, data_file
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.compaction import Compaction, OwnFile

if TYPE_CHECKING:
    import pyarrow as pa


class IcebergCompaction(Compaction):
    """Files of the sink's location, by the table as of the last read.

    :param opens: opens a writer of all columns that the table has
    :param run: this one
    """

    def __init__(self, table: IcebergTable, ledger: SinkLedger, opens: OpenIcebergWriter, run: int) -> None:
        super().__init__(opens, opens.format.max_file_bytes)
        self._table: Final = table
        self._ledger: Final = ledger
        self._opens: Final = opens
        self._run: Final = run

    @override
    def commit(self) -> None:
        added = [data_file(file, self._opens.format) for file in self.added]
        removed = [file.entry for file in self.removed]
        # What the snapshot of a claim says is true of this one, too.
        claim = self._ledger.claim_of(self._run, self._ledger.claim.number)
        self._table.append(added, *claim, removed, changes_rows=False)

    @override
    def _own_files(self) -> list[OwnFile]:
        check_whole_files(self._table, "the table")
        return [
            OwnFile(
                name=file.file_path,
                partition=file.partition,
                size=file.file_size_in_bytes,
                rows=file.record_count,
                entry=file,
            )
            for file in current_files(self._table)
            if file.file_path.startswith(f"{self._opens.folder}/") and file.spec_id == self._opens.format.spec.spec_id
        ]

    @override
    def _read(self, file: OwnFile) -> Iterator[pa.RecordBatch]:
        return rows_of(self._table, file.entry, self._opens.format.columns)

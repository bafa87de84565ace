"""A compaction of a Delta table: a version of its log that exchanges files and says that no row has changed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from typing_extensions import override

from airflow_provider_exactlyonce.streaming.sinks.delta.changes import actions
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
from airflow_provider_exactlyonce.streaming.sinks.delta.table_rows import with_columns
from airflow_provider_exactlyonce.streaming.sinks.delta.writer import OpenDeltaWriter
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.compaction import Compaction, OwnFile
from airflow_provider_exactlyonce.tables.parquet_columns import opened_parquet

_ROWS: Final = 2**16  # that are copied at a time


class DeltaCompaction(Compaction):
    """Files of the sink's directory, by the log as of the last read.

    :param opens: opens a writer of all columns that the table has
    :param metadata: what the version says of itself
    """

    def __init__(self, log: DeltaLog, opens: OpenDeltaWriter, metadata: Mapping[str, Any]) -> None:
        super().__init__(opens, opens.format.max_file_bytes)
        self._log: Final = log
        self._opens: Final = opens
        self._files: Final = opens.files()
        self._metadata: Final = metadata

    @override
    def commit(self) -> None:
        file_actions = actions(self.added, [file.entry for file in self.removed], changes_rows=False)
        self._log.append(file_actions, {}, self._metadata, blind=False)

    @override
    def _own_files(self) -> Iterator[OwnFile]:
        for file in self._log.files():
            if file.path.startswith(f"{self._opens.folder}/") and file.rows is not None:
                partition = tuple(file.partition.items())
                yield OwnFile(name=file.path, partition=partition, size=file.size, rows=file.rows, entry=file)

    @override
    def _read(self, file: OwnFile) -> Iterator[pa.RecordBatch]:
        with self._files.open(file.name) as opened:
            for rows in opened_parquet(opened).iter_batches(batch_size=_ROWS):
                yield from with_columns(
                    pa.Table.from_batches([rows]), self._opens.format.columns, file.entry.partition, rows.num_rows
                ).to_batches()

"""The driver's half of the Iceberg sink: claims and commits are snapshots of the table's main branch.

The catalog is asked for the snapshot last read with each write. A claim is a snapshot, too, without files. A
property of the table alone would not fence: Iceberg has no requirement that a property is as it was, so a write of
before the claim would still be taken.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions, properties, retention, schema
from airflow_provider_exactlyonce.streaming.sinks.iceberg.audit import listed_files, read_history
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.changes import RowsOfPartitions
from airflow_provider_exactlyonce.streaming.sinks.iceberg.compaction import IcebergCompaction
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.streaming.sinks.iceberg.upserts import IcebergUpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import OpenIcebergWriter, TableFormat, data_file
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import ListedFile, TableHistory
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import Change
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer import TableCommitter
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkAttempt, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.unanswered import claim_unanswered
from airflow_provider_exactlyonce.tables.positions import ICEBERG

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.declaration import IcebergDeclaration

_LOGGER: Final = logging.getLogger(__name__)
_FOLDER: Final = "exactlyonce"


class IcebergCommitter(TableCommitter):
    """Writes snapshots of one table.

    :param sink: the declaration
    :param pipeline: the pipeline's name
    :param stop_requested: tells that a version for which others are always faster should not be tried any longer
    """

    STORAGE: ClassVar = ICEBERG
    NEEDS_NOTE: ClassVar = False

    _sink: IcebergDeclaration
    _table: IcebergTable
    _ledger: SinkLedger

    def __init__(
        self,
        sink: IcebergDeclaration,
        pipeline: str,
        *,
        stop_requested: Callable[[], bool],
        verifies_checksums: bool,
    ) -> None:
        table = IcebergTable(sink.table, sink.properties)
        ledger = SinkLedger(table, pipeline, sink.name, sink.where)
        super().__init__(
            sink, pipeline, table, ledger, stop_requested=stop_requested, verifies_checksums=verifies_checksums
        )
        self._task_opener: OpenIcebergWriter | None = None  # of the tasks' files

    @override
    def close(self) -> None:
        self._table.close()

    @override
    def open_writer(self) -> OpenWriter:
        # The tasks need the ids that the table has for the columns, and are told before the claim. So a table that is
        # not there, and columns that it lacks, are made now: whoever is not to claim leaves nothing else behind.
        self._task_opener = None
        with self._answering(), claim_unanswered():
            self._open_table()
            self._evolve(lambda: None)
        self._task_opener = self._opens(schema.written_columns(self._table.metadata.schema(), self._row_columns()))
        return self._opens_rows(self._task_opener)

    def _opens(self, columns: Schema | None = None) -> OpenIcebergWriter:
        """Return the opener of writers of some columns of the table, of all columns if none are given."""
        metadata = self._table.metadata
        format_ = TableFormat(
            columns=metadata.schema() if columns is None else columns,
            spec=metadata.spec(),
            properties=properties.of_metrics(metadata),
            compression=self._sink.compression,
            max_file_bytes=self._sink.max_file_bytes,
        )
        return OpenIcebergWriter(io_properties=self._files.properties, folder=self._attempts.data, format=format_)

    @property
    @override
    def _files(self) -> IcebergFiles:
        return self._table.files

    @property
    @override
    def _attempts(self) -> Attempts:
        folder = f"{self._pipeline}/{self._sink.name}"  # some stores take no dot in the name of a folder
        return Attempts(
            self._files,
            # Iceberg's removal of orphan files leaves alone what begins with an underscore.
            notes=f"{self._location}/_{_FOLDER}/{folder}",
            data=f"{self._table.data_location}/{_FOLDER}/{folder}",
            can_be_torn=True,  # in Azure and HDFS
        )

    @property
    @override
    def _location(self) -> str:
        return str(self._table.metadata.location)

    @property
    @override
    def _properties(self) -> Mapping[str, str]:
        return self._table.metadata.properties

    @property
    @override
    def _table_id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @override
    def _create(self) -> None:
        columns = schema.iceberg_schema(self._row_columns(), self._sink.where)
        self._table.create(columns, partitions.new_spec(self._sink.partition_by, columns, self._sink.where))

    @override
    def _write_claim(self) -> None:
        self._table.append([], *self._ledger.claim_of(self._run, self._claim_ids[-1]))

    @override
    def _missing_columns(self) -> list[Any]:
        return self._sink.missing_columns(self._table.metadata, self._row_columns())

    @override
    def _add_columns(self, columns: list[Any]) -> None:
        self._table.add_columns(columns)

    @override
    def _shape(self) -> object:
        metadata = self._table.metadata
        ids = (metadata.current_schema_id, metadata.default_spec_id, metadata.format_version)
        return metadata.table_uuid, ids, sorted(metadata.properties)

    @override
    def _check_shape(self) -> None:
        missing, metadata = self._missing_columns(), self._table.metadata
        if self._task_opener is None:
            return
        columns, format_ = self._row_columns(), self._task_opener.format
        fits = not missing and schema.fits(format_.columns, schema.written_columns(metadata.schema(), columns))
        if not fits or metadata.default_spec_id != format_.spec.spec_id:
            raise RefusedError(
                f"{self._sink.where} has other columns or partitions than at the start, and the tasks write those of "
                "the start: start the pipeline again"
            )

    @override
    def _upsert_target(self, attempt: str) -> IcebergUpsertTarget:
        sink_attempt = SinkAttempt(name=attempt, pipeline=self._pipeline, commit=0, run=self._run)
        return IcebergUpsertTarget(
            self._table, self._known_writer(), self._opens, self._key, attempt=sink_attempt, where=self._sink.where
        )

    @override
    def _rows_of_partitions(self, files: Sequence[Mapping[str, Any]]) -> RowsOfPartitions:
        return RowsOfPartitions(self._table, self._known_writer().format, files, self._sink.where)

    @override
    def _write_commit(self, note: AttemptNote, entry: SinkEntry, change: Change[DataFile]) -> None:
        format_ = self._opens().format
        added = [data_file(file, format_) for file in change.added]
        summary_and_properties = self._ledger.commit_of(note.attempt, entry, change.rows)
        self._table.append(added, *summary_and_properties, change.removed)

    @override
    def _version_of(self, newest: Committed, *, is_new: bool) -> str | None:
        for snapshot in self._table.history():
            if (committed := self._ledger.committed_by(snapshot)) is not None:
                return str(snapshot.snapshot_id) if committed.attempt == newest.attempt else None
        return None

    @override
    def _compaction(self) -> IcebergCompaction:
        return IcebergCompaction(self._table, self._ledger, self._opens(), self._run)

    @override
    def _expire(self) -> None:
        if not self._sink.expire_snapshots:
            return
        self._table.refresh()
        if not (snapshots := self._expired()):
            return

        def plan() -> None:
            nonlocal snapshots
            snapshots = self._expired()

        self._write(
            lambda: self._table.expire(snapshots),
            check=self._check_claim,
            plan=plan,
            landed=lambda: not {snapshot.snapshot_id for snapshot in self._table.metadata.snapshots} & set(snapshots),
            what=f"expiry of {len(snapshots)} snapshots",
        )
        _LOGGER.info("%s: %d snapshots have expired", self._sink.where, len(snapshots))

    def _expired(self) -> list[int]:
        return retention.expired(self._table.metadata, int(time.time() * 1000), self._ledger.named_snapshots())

    @override
    def _history(self) -> TableHistory:
        return read_history(self._table, self._ledger, replaces=self._sink.replaces)

    @override
    def _listed_files(self) -> Iterable[ListedFile]:
        return listed_files(self._table)

    def _row_columns(self) -> StructType:
        return self._sink.stored(self._known_columns())

    def _known_writer(self) -> OpenIcebergWriter:
        return required(self._task_opener, "what opens the tasks' writers is asked for before they write")

"""The driver's half of the Iceberg sink: claims and commits are snapshots of the table's main branch.

The catalog is asked for the snapshot last looked at with each write. A claim is a snapshot, too, without files. A
property of the table alone would not fence: Iceberg has no requirement that a property is as it was, so a write of
before the claim would still be taken.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions, properties, schema
from airflow_provider_exactlyonce.streaming.sinks.iceberg.audit import listed_files, read_history
from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.streaming.sinks.iceberg.compaction import IcebergCompaction
from airflow_provider_exactlyonce.streaming.sinks.iceberg.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.iceberg.storage import IcebergFiles
from airflow_provider_exactlyonce.streaming.sinks.iceberg.writer import OpenIcebergWriter, TableFormat, data_file
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import History, ListedFile
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer import TableCommitter
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkEntry
from airflow_provider_exactlyonce.streaming.sinks.unanswered import claim_unanswered

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.declaration import IcebergDeclaration

_LOGGER: Final = logging.getLogger(__name__)
_FOLDER: Final = "exactlyonce"


class IcebergCommitter(TableCommitter):
    """Writes snapshots of one table.

    :param sink: what was declared
    :param pipeline: the pipeline's name
    """

    VERSION: ClassVar = "snapshot"
    NEEDS_NOTE: ClassVar = False

    _sink: IcebergDeclaration
    _table: IcebergTable
    _ledger: SinkLedger

    def __init__(self, sink: IcebergDeclaration, pipeline: str) -> None:
        table = IcebergTable(sink.table, sink.properties)
        super().__init__(sink, pipeline, table, SinkLedger(table, pipeline, sink.name, sink.where))
        self._format: TableFormat | None = None  # by which the tasks write
        self._staged: Sequence[DataFile] = ()

    @override
    def close(self) -> None:
        self._table.close()

    @override
    def open_writer(self) -> OpenWriter:
        # The tasks need the ids that the table has for the columns, and are told before the claim. So a table that is
        # not there, and columns that it lacks, are made now: whoever is not to claim leaves nothing else behind.
        self._format = None
        with self._answering(), claim_unanswered():
            self._open_table()
            self._evolve(lambda: None)
        opens = self._opens(schema.written_columns(self._table.metadata.schema(), self._known_columns()))
        self._format = opens.format
        return opens

    def _opens(self, columns: Schema) -> OpenIcebergWriter:
        metadata = self._table.metadata
        form = TableFormat(
            columns=columns,
            spec=metadata.spec(),
            properties=properties.of_metrics(metadata),
            compression=self._sink.compression,
            max_file_bytes=self._sink.max_file_bytes,
        )
        return OpenIcebergWriter(io_properties=self._files.properties, folder=self._attempts.data, format=form)

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
        )

    @property
    @override
    def _location(self) -> str:
        return str(self._table.metadata.location)

    @property
    @override
    def _table_id(self) -> str:
        return str(self._table.metadata.table_uuid)

    @override
    def _open_table(self) -> None:
        super()._open_table()
        if forgets := properties.expiring(self._table.metadata):
            _LOGGER.info("%s has %s: the audit compares commits whose snapshots are left", self._sink.where, forgets)

    @override
    def _create(self) -> None:
        columns = schema.iceberg_schema(self._known_columns())
        self._table.create(columns, partitions.new_spec(self._sink.partition_by, columns))

    @override
    def _write_claim(self) -> None:
        self._table.append([], *self._ledger.claim_of(self._run))

    @override
    def _missing_columns(self) -> list[Any]:
        return self._sink.missing_columns(self._table.metadata, self._known_columns())

    @override
    def _add_columns(self, columns: list[Any]) -> None:
        self._table.add_columns(columns)

    @override
    def _shape(self) -> object:
        metadata = self._table.metadata
        kept = (metadata.current_schema_id, metadata.default_spec_id, metadata.format_version)
        return metadata.table_uuid, kept, sorted(metadata.properties)

    @override
    def _check_shape(self) -> None:
        missing, metadata = self._missing_columns(), self._table.metadata
        if self._format is None:
            return
        columns = None if missing else schema.written_columns(metadata.schema(), self._known_columns())
        if columns != self._format.columns or metadata.default_spec_id != self._format.spec.spec_id:
            raise RefusedError(
                f"{self._sink.where} has other columns or partitions than at the start, and the tasks write those of "
                "the start: start the pipeline again"
            )

    @override
    def _stage(self, written: Sequence[Mapping[str, Any]]) -> None:
        files = [file for task in written for file in task["files"]]
        self._staged = [data_file(file, self._format) for file in files if self._format is not None]

    @override
    def _plan(self) -> tuple[str, ...]:
        return tuple(file.file_path for file in self._staged)

    @override
    def _write_commit(self, note: AttemptNote, entry: SinkEntry) -> None:
        self._table.append(self._staged, *self._ledger.commit_of(note.attempt, entry))

    @override
    def _compaction(self) -> IcebergCompaction:
        opens = self._opens(self._table.metadata.schema())
        return IcebergCompaction(self._table, self._ledger, opens, self._run)

    @override
    def _history(self) -> History:
        return read_history(self._table, self._ledger)

    @override
    def _listed_files(self) -> Iterable[ListedFile]:
        return listed_files(self._table)

"""The driver's half of the Delta sink: claims and commits are versions of the table's log.

delta-rs itself would not refuse a run that is superseded: it takes any transaction's version from a handle that is
fresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar, Final

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.streaming.sinks.delta import schema
from airflow_provider_exactlyonce.streaming.sinks.delta.audit import listed_files, read_history
from airflow_provider_exactlyonce.streaming.sinks.delta.changes import RowsOfPartitions, actions
from airflow_provider_exactlyonce.streaming.sinks.delta.compaction import DeltaCompaction
from airflow_provider_exactlyonce.streaming.sinks.delta.ledger import SinkLedger
from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog, LoggedFile
from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles
from airflow_provider_exactlyonce.streaming.sinks.delta.upserts import DeltaUpsertTarget
from airflow_provider_exactlyonce.streaming.sinks.delta.writer import OpenDeltaWriter, TableFormat
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.attempts import AttemptNote, Attempts, Committed
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.audit import ListedFile, TableHistory
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.changes import Change
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer import TableCommitter
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.committer_states import CommitterState
from airflow_provider_exactlyonce.streaming.sinks.spi import OpenWriter, SinkEntry
from airflow_provider_exactlyonce.tables.positions import DELTA

if TYPE_CHECKING:
    import pyarrow as pa

    from airflow_provider_exactlyonce.streaming.sinks.delta.declaration import DeltaDeclaration


class DeltaCommitter(TableCommitter):
    """Writes versions of one table's log.

    :param sink: the declaration
    :param pipeline: the pipeline's name
    :param stop_requested: tells that a version for which others are always faster should not be tried any longer
    :param earlier_rows: those of earlier commits that another format had, and that the first commit takes along
    """

    STORAGE: ClassVar = DELTA
    NEEDS_NOTE: ClassVar = True

    _sink: DeltaDeclaration
    _table: DeltaLog
    _ledger: SinkLedger

    def __init__(
        self,
        sink: DeltaDeclaration,
        pipeline: str,
        *,
        stop_requested: Callable[[], bool],
        verifies_checksums: bool = False,
        earlier_rows: int | None = None,
    ) -> None:
        log, files = DeltaLog(sink.path, sink.options), DeltaFiles(sink.path, sink.options)
        ledger = SinkLedger(log, files, pipeline, sink.name)
        super().__init__(
            sink, pipeline, log, ledger, stop_requested=stop_requested, verifies_checksums=verifies_checksums
        )
        self._directory: Final = files
        self._earlier_rows: Final = earlier_rows
        self._required: Sequence[str] | None = None  # columns whose nulls the tasks refuse
        self._claim: tuple[dict[str, int], dict[str, Any]] | None = None  # the version's transactions and metadata

    @override
    def open_writer(self) -> OpenWriter:
        with self._answering():
            is_there = self._table.open()
        self._required = schema.required_columns(self._table.table.schema()) if is_there else []
        return self._opens_rows(self._opens(self._row_columns(), self._required))

    def _opens(self, columns: pa.Schema, required: Sequence[str] = ()) -> OpenDeltaWriter:
        format_ = TableFormat(
            columns=columns,
            partition_by=tuple(self._sink.partition_by),
            required=tuple(required),
            compression=self._sink.compression,
            max_file_bytes=self._sink.max_file_bytes,
        )
        return OpenDeltaWriter(
            path=self._sink.path, storage_options=self._sink.options, folder=self._attempts.data, format=format_
        )

    @property
    @override
    def _files(self) -> DeltaFiles:
        return self._directory

    @property
    @override
    def _location(self) -> str:
        return self._sink.path

    @property
    @override
    def _properties(self) -> Mapping[str, str]:
        return dict(self._table.table.metadata().configuration)

    @property
    @override
    def _attempts(self) -> Attempts:
        return self._ledger.attempts

    @override
    def _create(self) -> None:
        self._table.create(schema.delta_schema(self._row_columns()), self._sink.partition_by)

    @override
    def _plan_claim(self) -> None:
        self._ledger.keep_note()
        self._claim = self._ledger.claim_of(self._run, self._claim_ids[-1])

    @override
    def _write_claim(self) -> None:
        self._table.append([], *self._planned_claim())

    @override
    def _prepare(self) -> None:
        """Add columns; and flush the newest commit to disk, since its run may have been killed before that."""
        self._evolve(self._check_claim)
        if self._ledger.commit and self._table.is_local:
            version = self._ledger.committed_in()
            with suppress(FileNotFoundError):  # cleaned up, so it was there long ago
                if version is not None:
                    self._table.keep(version)

    @override
    def _missing_columns(self) -> list[Any]:
        return self._sink.missing_columns(self._table.table, self._row_columns())

    @override
    def _add_columns(self, columns: list[Any]) -> None:
        self._table.add_columns(columns, *self._planned_claim())

    def _planned_claim(self) -> tuple[dict[str, int], dict[str, Any]]:
        return required(self._claim, "a claim is planned before it is written")

    @override
    def _shape(self) -> object:
        table = self._table.table
        return str(table.metadata()), str(table.protocol()), table.schema().to_json()

    @override
    def _check_shape(self) -> None:
        missing = self._missing_columns()
        if missing and self._phase.state is not CommitterState.UNCLAIMED:  # else the claim adds them
            names = ", ".join(repr(column.name) for column in missing)
            raise RefusedError(
                f"{self._sink.where} has lost the column {names} since the start, by a RESTORE or an overwritten "
                "schema, and readers would miss its values: start the pipeline again, which adds it"
            )
        for name in schema.required_columns(self._table.table.schema()):
            if self._required is not None and name not in self._required:
                raise RefusedError(
                    f"column {name!r} of {self._sink.where} has become NOT NULL since the start, and the tasks do not "
                    "check it: start the pipeline again"
                )

    @override
    def _upsert_target(self, attempt: str) -> DeltaUpsertTarget:
        opens = self._opens(self._row_columns())
        return DeltaUpsertTarget(self._table, opens, self._key, attempt=attempt, where=self._sink.where)

    @override
    def _rows_of_partitions(self, files: Sequence[Mapping[str, Any]]) -> RowsOfPartitions:
        return RowsOfPartitions(self._table, files, self._sink.where)

    @override
    def _write_commit(self, note: AttemptNote, entry: SinkEntry, change: Change[LoggedFile]) -> None:
        transactions, metadata = self._ledger.commit_of(note, entry, change.rows, self._earlier_rows)
        file_actions = actions(change.added, change.removed)
        self._table.append(file_actions, transactions, metadata, not self._sink.replaces)

    @override
    def _version_of(self, newest: Committed, *, is_new: bool) -> str | None:
        is_known = is_new and self._table.written >= self._table.version  # else the answer was lost
        version = self._table.written if is_known else self._ledger.version_of(newest.attempt)
        return None if version is None else str(version)

    @override
    def _compaction(self) -> DeltaCompaction:
        columns = schema.table_columns(self._table.table.schema())
        return DeltaCompaction(self._table, self._opens(columns), {**self._ledger.of_sink, "compaction": self._run})

    @override
    def _history(self) -> TableHistory:
        return read_history(self._files, self._ledger, self._table.version, replaces=self._sink.replaces)

    @override
    def _listed_files(self) -> Iterable[ListedFile]:
        return listed_files(self._table)

    def _row_columns(self) -> pa.Schema:
        return schema.arrow_columns(self._sink.stored(self._known_columns()))

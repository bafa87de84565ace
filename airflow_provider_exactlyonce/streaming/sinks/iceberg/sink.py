"""The Apache Iceberg sink as a user declares it: each batch is one snapshot of a table, which every reader sees."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_parquet
from airflow_provider_exactlyonce.streaming.sinks.iceberg.declaration import IcebergDeclaration
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.declaration import UPSERT
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext
from airflow_provider_exactlyonce.streaming.sinks.unanswered import answering

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class IcebergSink(IcebergDeclaration):
    """Writes the result to a table of Apache Iceberg: one snapshot for each batch, with the sink's own ledger.

    The table is made from the result if it is not there. Its snapshots have the pipeline's commits in their summaries.

    :param table: ``"catalog.namespace.table"``; the catalog is declared by ``conn_id`` or ``catalog_properties``, or as
        pyiceberg has it: by ``PYICEBERG_CATALOG__…`` in the environment, or in ``.pyiceberg.yaml``
    :param conn_id: the connection to the catalog: one of ``EXACTLYONCE_STORES``, which operators fill
    :param catalog_properties: of the catalog, in pyiceberg's words, credentials too; they win over the connection's;
        never shown
    :param mode: ``"append"``; ``"upsert"``: the last row of each key replaces the key's row;
        ``"overwrite partitions"``: a batch's rows replace all rows of their partitions
    :param key: for upsert, the columns that rows are replaced or deleted by; none of them may be null
    :param order: for upsert, the column whose greatest value tells which of several rows of a key in one batch is the
        last; without it that is the one that came last in its task, and rows of a key in two tasks are refused
    :param deleted: for upsert, a boolean column that is not in the table: where it is true the key's row is deleted
    :param partition_by: the table's partitioning: columns; ``year``, ``month``, ``day`` or ``hour`` of a column, as
        in ``"day(at)"``; ``"bucket(16, id)"`` and ``"truncate(16, name)"``
    :param schema: ``"fixed"``: a column that the table lacks is refused; ``"evolve"``: it is added at the start
    :param compression: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``
    :param max_file_bytes: a file that has reached this size is closed, and another begun
    :param compact_every: after so many commits the driver writes small files of the sink together, up to
        ``max_file_bytes``, before the next batch; None for never
    :param expire_snapshots: whether snapshots that are past the table's retention are then removed from its metadata,
        which is read and written with each commit; files are left to ``remove_orphan_files``
    :raises RefusedError: naming the parameter and the accepted values
    """

    @override
    def check_columns(self, columns: StructType) -> None:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.iceberg import changes, partitions, schema
        from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable

        self.check_key(columns)
        columns = self.stored(columns)
        check_parquet(columns, f"sink {self.name}")
        schema.iceberg_schema(columns, f"sink {self.name}")
        partitions.check_declared(columns, self.partition_by, f"sink {self.name}")
        with closing(IcebergTable(self.table, self.properties)) as table:
            with answering(f"{self.where} can't be read"):
                is_there = table.open()
                if is_there and self.mode == UPSERT:
                    changes.check_whole_files(table, self.where)
            if is_there:
                self.missing_columns(table.metadata, columns)

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.iceberg.committer import IcebergCommitter

        return IcebergCommitter(
            self,
            context.pipeline,
            stop_requested=context.stop_requested,
            verifies_checksums=context.verifies_checksums,
        )

    def _check_usable(self) -> None:
        try:
            import pyiceberg.io.pyarrow  # noqa: F401
        except ImportError as error:
            raise RefusedError(
                f"IcebergSink can't be used here: {error}. pip install 'airflow-provider-exactlyonce[iceberg]'"
            ) from error

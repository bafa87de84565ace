"""The Apache Iceberg sink as a user declares it: each batch is one snapshot of a table, which every reader sees."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_parquet
from airflow_provider_exactlyonce.streaming.sinks.iceberg.declaration import IcebergDeclaration
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class IcebergSink(IcebergDeclaration):
    """Appends the result to a table of Apache Iceberg: one snapshot for each batch, with the sink's own ledger.

    The table is made from the result if it is not there. Its snapshots have the pipeline's commits in their summaries.

    :param table: ``"catalog.namespace.table"``; the catalog is declared by ``conn_id`` or ``catalog_properties``, or as
        pyiceberg has it: by ``PYICEBERG_CATALOG__…`` in the environment, or in ``.pyiceberg.yaml``
    :param conn_id: the connection to the catalog: one of ``EXACTLYONCE_STORES``, which operators fill
    :param catalog_properties: of the catalog, in pyiceberg's words, credentials too; they win over the connection's;
        never shown
    :param partition_by: what the table is partitioned by: columns; ``year``, ``month``, ``day`` or ``hour`` of one, as
        in ``"day(at)"``; ``"bucket(16, id)"`` and ``"truncate(16, name)"``
    :param schema: ``"fixed"``: a column that the table lacks is refused; ``"evolve"``: it is added at the start
    :param compression: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``
    :param max_file_bytes: a file that has reached this size is closed, and another begun
    :param compact_every: after so many commits the driver writes small files of the sink together, up to
        ``max_file_bytes``, before the next batch; None for never
    :raises RefusedError: naming the parameter and what is accepted
    """

    @override
    def check_columns(self, columns: StructType) -> None:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.iceberg import partitions
        from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable

        check_parquet(columns, f"sink {self.name}")
        partitions.check_declared(columns, self.partition_by, f"sink {self.name}")
        with closing(IcebergTable(self.table, self.properties)) as table:
            try:
                is_there = table.open()
            except RefusedError:
                raise
            except Exception as error:  # a catalog has errors of its own
                raise BatchFailedError(f"{self.where} can't be read: {type(error).__name__}: {error}") from error
            if is_there:
                self.missing_columns(table.metadata, columns)

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.iceberg.committer import IcebergCommitter

        return IcebergCommitter(self, context.pipeline)

    def _check_usable(self) -> None:
        try:
            import pyiceberg.io.pyarrow  # noqa: F401
        except ImportError as error:
            raise RefusedError(
                f"IcebergSink can't be used here: {error}. pip install 'airflow-provider-exactlyonce[iceberg]'"
            ) from error

"""The Delta Lake sink as a user declares it: each batch is one version of a table, which every reader of Delta sees."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.delta.declaration import DeltaDeclaration
from airflow_provider_exactlyonce.streaming.sinks.file_checks import check_parquet, check_partitions
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class DeltaSink(DeltaDeclaration):
    """Writes the result to a table of Delta Lake: one version of its log for each batch, with the sink's own ledger.

    The table is made from the result if it is not there. Its versions have the pipeline's commits: the transaction
    ``<pipeline>/<sink>`` has the number of the newest.

    :param path: of the table: an absolute path that driver, tasks and readers share, or a URL of delta-rs, such as
        ``s3://bucket/table``
    :param mode: ``"append"``; ``"upsert"``: the last row of each key replaces the key's row;
        ``"overwrite partitions"``: a batch's rows replace all rows of their partitions
    :param key: for upsert, the columns that rows are replaced or deleted by; none of them may be null
    :param order: for upsert, the column whose greatest value tells which of several rows of a key in one batch is the
        last; without it that is the one that came last in its task, and rows of a key in two tasks are refused
    :param deleted: for upsert, a boolean column that is not in the table: where it is true the key's row is deleted
    :param partition_by: columns that the table is partitioned by
    :param schema: ``"fixed"``: a column that the table lacks is refused; ``"evolve"``: it is added at the start
    :param compression: ``zstd``, ``snappy``, ``gzip``, ``lz4`` or ``none``
    :param max_file_bytes: a file that has reached this size is closed, and another begun
    :param compact_every: after so many commits the driver writes small files of the sink together, up to
        ``max_file_bytes``, before the next batch; None for never
    :param conn_id: the connection to the store: one of ``EXACTLYONCE_STORES``, which operators fill; where that is not
        set, delta-rs' own environment
    :param storage_options: what else delta-rs needs to know of the store, in its words; never shown
    :raises RefusedError: naming the parameter and the accepted values
    """

    @override
    def check_columns(self, columns: StructType) -> None:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.delta import properties, schema
        from airflow_provider_exactlyonce.streaming.sinks.delta.log import DeltaLog
        from airflow_provider_exactlyonce.streaming.sinks.delta.storage import DeltaFiles

        where = f"sink {self.name}"
        self.check_key(columns)
        columns = self.stored(columns)
        check_parquet(columns, where)
        schema.check_names(columns, where)
        check_partitions(columns, self.partition_by, where)
        for name in self.partition_by:
            if columns[name].dataType.typeName() == "decimal":
                kind = columns[name].dataType.simpleString()
                raise RefusedError(
                    f"{where}: column {name!r} of partition_by is {kind}; delta-rs, and readers that are built on it, "
                    "can't read a partition of a negative decimal. Derive a text of it"
                )
        if set(columns.names) <= set(self.partition_by):
            raise RefusedError(f"{where}: all columns are in partition_by, and none is left for the files")
        log = DeltaLog(self.path, self.options)
        try:
            is_there = log.open()
        except Exception as error:  # a store has errors of its own
            properties.check_features(DeltaFiles(self.path, self.options), self.where)
            raise BatchFailedError(f"{self.where} can't be read: {type(error).__name__}: {error}") from error
        rows = schema.arrow_columns(columns)
        if is_there:
            self.missing_columns(log.table, rows)
        else:
            schema.check_new(schema.delta_schema(rows).fields, (), where)

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        self._check_usable()
        from airflow_provider_exactlyonce.streaming.sinks.delta import unconverted
        from airflow_provider_exactlyonce.streaming.sinks.delta.committer import DeltaCommitter

        unconverted.check(self.path, self.options)
        return DeltaCommitter(
            self,
            context.pipeline,
            stop_requested=context.stop_requested,
            verifies_checksums=context.verifies_checksums,
        )

    def _check_usable(self) -> None:
        try:
            import deltalake  # noqa: F401
        except ImportError as error:
            raise RefusedError(
                f"DeltaSink can't be used here: {error}. pip install 'airflow-provider-exactlyonce[delta]'"
            ) from error
        from airflow_provider_exactlyonce.streaming.sinks.delta import properties

        properties.check_options({**os.environ, **self.options}, f"sink {self.name}")

"""The PostgreSQL sink as a user declares it: each batch's rows in a table, exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.postgres.declaration import PostgresDeclaration
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkCommitter, SinkContext

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


class PostgresSink(PostgresDeclaration):
    """Writes each micro-batch into a table in one transaction, with the ledger's entry.

    Tasks copy their rows into an unlogged staging table, in the schema ``exactlyonce`` of the same database; the driver
    moves them. The rows' columns are the table's, by name.

    :param table: ``table`` or ``schema.table``, which must exist
    :param mode: ``"insert"``; ``"upsert"``: the last row of each key is inserted, or replaces the key's row;
        ``"delete"``: the rows with these keys are deleted
    :param key: the columns that rows are replaced or deleted by; for upsert a unique index over them must exist
    :param order: for upsert, the column that tells which of several rows of a key in one batch is the last; without it
        two rows of a key are refused
    :param deleted: for upsert, a boolean column that is not in the table: where it is true the key's row is deleted
    :param commit_column: an integer column of the table that gets the number of the commit
    :param conn_id: the connection: one of ``EXACTLYONCE_POSTGRES``, which operators fill, else libpq's environment
    :raises RefusedError: when the values do not go together
    """

    @override
    def check_columns(self, columns: StructType) -> None:
        _check_installed()
        from airflow_provider_exactlyonce.streaming.sinks.postgres import connection as postgres_connection
        from airflow_provider_exactlyonce.streaming.sinks.postgres import table as postgres_table

        for name in (*self.key, self.order, self.deleted):
            if name is not None and name not in columns.names:
                raise RefusedError(
                    f"sink {self.name} names the column {name}, and the rows have {', '.join(columns.names)}"
                )
        if self.deleted is not None and columns[self.deleted].dataType.typeName() != "boolean":
            raise RefusedError(f"sink {self.name}: deleted={self.deleted!r} must be a boolean column")
        if self.commit_column in columns.names:
            raise RefusedError(f"sink {self.name}: the rows have commit_column={self.commit_column!r} themselves")
        parameters = postgres_connection.parameters_of(self.conn_id)
        with postgres_connection.connect(parameters, "exactlyonce check") as connection:
            table = postgres_table.find(connection, self.table, self.rights)
        table.check_columns(columns, self.deleted)
        if self.commit_column is not None:
            table.check_commit_column(self.commit_column)
        if self.mode == "upsert":
            table.check_key(self.key)
        if self.mode != "delete":
            table.check_complete([*columns.names, *([self.commit_column] if self.commit_column else [])])

    @override
    def open(self, context: SinkContext) -> SinkCommitter:
        _check_installed()
        from airflow_provider_exactlyonce.streaming.sinks.postgres.committer import PostgresCommitter

        return PostgresCommitter(self, context)


def _check_installed() -> None:
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        raise RefusedError(
            f"PostgresSink can't be used here: {error}. pip install 'airflow-provider-exactlyonce[postgres]'"
        ) from error

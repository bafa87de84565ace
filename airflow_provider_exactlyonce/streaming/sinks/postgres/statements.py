"""The statements that move an attempt's staged rows into the target table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psycopg import sql

from airflow_provider_exactlyonce.streaming.sinks.postgres.staging import SCHEMA, WRITER_COLUMN
from airflow_provider_exactlyonce.streaming.sinks.postgres.table import PostgresTable


@dataclass(frozen=True, kw_only=True)
class StagedMove:
    """From a staging table to the target.

    Every statement takes the arguments ``writers``, an array, and ``commit``.

    :param columns: the rows' columns that are stored
    :param key: what rows are updated or deleted by, nothing to insert only
    :param order: the column that orders a key's rows, None when each key has one row
    :param deleted: the boolean column of the rows to delete, None when there are none
    :param commit_column: the column that gets the commit's number
    """

    table: PostgresTable
    stage: str
    columns: Sequence[str]
    key: Sequence[str] = ()
    order: str | None = None
    deleted: str | None = None
    commit_column: str | None = None

    def count(self) -> sql.Composed:
        """Return the statement that counts the staged rows."""
        return sql.SQL("SELECT count(*) FROM ({}) AS staged").format(self._staged)

    def ambiguous(self) -> sql.Composed:
        """Return the statement that finds a key with two last rows."""
        key = self._names(self.key)
        text = "SELECT {}, count(*) FROM ({}) AS last GROUP BY {} HAVING count(*) > 1 LIMIT 1"
        return sql.SQL(text).format(key, self._last(), key)

    def insert(self) -> sql.Composed:
        """Return the statement that inserts all rows."""
        return self._into(self._staged)

    def delete_marked(self) -> sql.Composed:
        """Return the statement that deletes the keys with a last row that is marked as deleted."""
        return self._delete(self._last()) + sql.SQL(" AND staged.{}").format(sql.Identifier(self.deleted or ""))

    def upsert(self) -> sql.Composed:
        """Return the statement that inserts or updates the last row of each key, but for those that are deleted."""
        last = self._last()
        if self.deleted is not None:
            text = "SELECT * FROM ({}) AS last WHERE {} IS NOT TRUE"
            last = sql.SQL(text).format(last, sql.Identifier(self.deleted))
        return self._into(last) + self._on_conflict()

    def delete(self) -> sql.Composed:
        """Return the statement that deletes the rows of the staged keys."""
        return self._delete(self._staged)

    @property
    def _staged(self) -> sql.Composed:
        text = "SELECT * FROM {} WHERE {} = ANY(%(writers)s)"
        return sql.SQL(text).format(sql.Identifier(SCHEMA, self.stage), sql.Identifier(WRITER_COLUMN))

    def _names(self, columns: Sequence[str]) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, columns))

    def _last(self) -> sql.Composed:
        if self.order is None:
            return self._staged
        text = (
            "SELECT * FROM (SELECT *, rank() OVER (PARTITION BY {} ORDER BY {} DESC NULLS LAST) AS exactlyonce_rank "
            "FROM ({}) AS staged) AS ranked WHERE exactlyonce_rank = 1"
        )
        return sql.SQL(text).format(self._names(self.key), sql.Identifier(self.order), self._staged)

    def _into(self, source: sql.Composed) -> sql.Composed:
        targets, values = [*self.columns], self._names(self.columns)
        if self.commit_column is not None:
            targets.append(self.commit_column)
            values = sql.SQL("{}, %(commit)s").format(values)
        text = "INSERT INTO {} ({}) SELECT {} FROM ({}) AS moved"
        return sql.SQL(text).format(self.table.quoted, self._names(targets), values, source)

    def _on_conflict(self) -> sql.Composed:
        updated = [name for name in (*self.columns, self.commit_column) if name is not None and name not in self.key]
        if not updated:
            return sql.SQL(" ON CONFLICT ({}) DO NOTHING").format(self._names(self.key))
        assignments = sql.SQL(", ").join(sql.SQL("{0} = EXCLUDED.{0}").format(sql.Identifier(name)) for name in updated)
        return sql.SQL(" ON CONFLICT ({}) DO UPDATE SET {}").format(self._names(self.key), assignments)

    def _delete(self, source: sql.Composed) -> sql.Composed:
        equal = [sql.SQL("target.{0} = staged.{0}").format(sql.Identifier(name)) for name in self.key]
        text = "DELETE FROM {} AS target USING ({}) AS staged WHERE {}"
        return sql.SQL(text).format(self.table.quoted, source, sql.SQL(" AND ").join(equal))

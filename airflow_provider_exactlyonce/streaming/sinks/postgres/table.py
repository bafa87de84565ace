"""A table of PostgreSQL as its catalog describes it, and whether a stream's columns fit it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.json_text import without_json
from airflow_provider_exactlyonce.streaming.sinks.postgres.connection import translated_errors
from airflow_provider_exactlyonce.streaming.sinks.table_checks import check_complete, check_has, check_key

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

_JSON: Final = ("jsonb", "json")
_TEXT: Final = ("text", "varchar", "bpchar", "citext", "uuid", "xml", "inet", "cidr", "macaddr", *_JSON)
#: The types of PostgreSQL that hold all values of a type of Spark, by the name of its class in Spark.
_ACCEPTED: Final[Mapping[str, Sequence[str]]] = {
    "byte": ("int2", "int4", "int8", "numeric"),
    "short": ("int2", "int4", "int8", "numeric"),
    "integer": ("int4", "int8", "numeric"),
    "long": ("int8", "numeric"),
    "float": ("float4", "float8"),
    "double": ("float8",),
    "decimal": ("numeric",),
    "string": _TEXT,
    "boolean": ("bool",),
    "date": ("date",),
    "time": ("time",),
    "timestamp": ("timestamptz",),
    "timestamp_ntz": ("timestamp",),
    "binary": ("bytea",),
    "struct": _JSON,
    "map": _JSON,
}
#: The server's errors about a text that can't be a table's name; a server that goes away has others.
_NO_NAME: Final = (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.DataError)
_ROUNDED: Final = ("timestamptz", "timestamp", "time")  # to fewer digits than Spark's six, when the column says so

_COLUMNS: Final = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, b.typname), e.oid IS NOT NULL,
       coalesce(e.typtype, b.typtype) = 'e', coalesce(nullif(t.typtypmod, -1), a.atttypmod), a.attnotnull,
       a.attidentity = 'a' OR a.attgenerated <> '', a.atthasdef OR a.attidentity <> '',
       (SELECT ARRAY[n.nspname, o.collname]::text[] FROM pg_collation o JOIN pg_namespace n ON n.oid = o.collnamespace
        WHERE o.oid = a.attcollation AND o.oid <> t.typcollation)
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
JOIN pg_type b ON b.oid = coalesce(nullif(t.typbasetype, 0), t.oid)
LEFT JOIN pg_type e ON e.oid = b.typelem AND b.typcategory = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
#: The columns of each index that ON CONFLICT can go by.
_UNIQUE: Final = """
SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid
AND a.attnum = ANY(i.indkey[0:i.indnkeyatts - 1])
WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate AND i.indpred IS NULL AND i.indexprs IS NULL
GROUP BY i.indexrelid
"""


@dataclass(frozen=True)
class PostgresColumn:
    """A column of a table.

    :param type: as SQL writes it
    :param base: the name of its type, or of its elements' type, without precision; a domain's is that which it is over
    :param modifier: the type's precision as the catalog encodes it, -1 for none
    :param generated: only the server gives its values
    :param filled: it has a default
    :param collation: its schema and name, None for the type's own
    """

    name: str
    type: str
    base: str
    is_array: bool
    is_enum: bool
    modifier: int
    not_null: bool
    generated: bool
    filled: bool
    collation: Sequence[str] | None

    @property
    def is_json(self) -> bool:
        """Whether it holds JSON."""
        return self.base in _JSON and not self.is_array

    def refuses(self, type_: DataType) -> str | None:
        """Return why it can't hold a type of Spark, None when it can."""
        from pyspark.sql.types import ArrayType, MapType, StructType

        if isinstance(type_, ArrayType):
            if self.is_json:
                return _refuses_json(type_)
            if not self.is_array:
                return f"an array of its elements' type, or {' or '.join(_JSON)}"
            if isinstance(type_.elementType, MapType | StructType):
                return " or ".join(_JSON)
            return self._refuses_scalar(type_.elementType)
        return "no array" if self.is_array else self._refuses_scalar(type_)

    def _refuses_scalar(self, type_: DataType) -> str | None:
        from pyspark.sql.types import DecimalType

        accepted = _ACCEPTED.get(type_.typeName().partition("(")[0])
        if accepted is None:
            return "another type of Spark: this one has no counterpart"
        if self.base not in accepted and not (self.is_enum and accepted is _TEXT):
            return " or ".join(accepted)
        if accepted is _JSON:
            return _refuses_json(type_)
        if self.modifier < 0:
            return None
        if isinstance(type_, DecimalType):
            precision, scale = ((self.modifier - 4) >> 16) & 0xFFFF, (self.modifier - 4) & 0x7FF
            if scale < type_.scale or precision - scale < type_.precision - type_.scale:
                return f"numeric({type_.precision},{type_.scale}) or wider: it would round"
        if self.base in _ROUNDED and self.modifier < 6:
            return f"{self.base} with six digits of a second: it would round"
        return None


def _refuses_json(type_: DataType) -> str | None:
    lacking = without_json(type_)
    return None if lacking is None else f"another type than {lacking.simpleString()} in it: that one has no JSON"


@dataclass(frozen=True)
class PostgresTable:
    """A table that exists.

    :param columns: by name, in its order
    :param unique: the sets of columns that a unique index is over
    """

    schema: str
    name: str
    columns: Mapping[str, PostgresColumn]
    unique: Sequence[frozenset[str]]

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def quoted(self) -> sql.Identifier:
        """Its name for a statement."""
        return sql.Identifier(self.schema, self.name)

    def check_columns(self, columns: StructType, apart: str | None) -> None:
        """Check that it takes a stream's columns.

        :param apart: the name of one that is not stored, None for no such
        :raises RefusedError: naming the column
        """
        for field in columns.fields:
            if field.name == apart:
                continue
            check_has(self, self.columns, field.name, field.dataType.simpleString())
            column = self.columns[field.name]
            if column.generated:
                raise RefusedError(
                    f"column {field.name} of table {self} is generated by the server: leave it out of the result"
                )
            if reason := column.refuses(field.dataType):
                raise RefusedError(
                    f"column {field.name} of table {self} is {column.type}, and the rows have it as "
                    f"{field.dataType.simpleString()}, which needs {reason}"
                )

    def check_commit_column(self, name: str) -> None:
        """Check that a column can hold a commit's number.

        :raises RefusedError: when it can't
        """
        column = self.columns.get(name)
        if column is None or column.generated or column.base not in ("int4", "int8"):
            raise RefusedError(
                f"commit_column={name!r} must be a bigint column of table {self}: ALTER TABLE {self} ADD COLUMN {name} "
                "bigint"
            )

    def check_complete(self, given: Iterable[str]) -> None:
        """Check that a row of these columns can be inserted.

        :raises RefusedError: naming the column that lacks
        """
        required = [
            column.name
            for column in self.columns.values()
            if column.not_null and not (column.filled or column.generated)
        ]
        check_complete(self, required, set(given))

    def check_key(self, key: Sequence[str]) -> None:
        """Check that rows can be inserted or updated by a key.

        :raises RefusedError: when no unique index is over it, or it can be null
        """
        check_key(self, key, self.unique)
        for name in key:
            if not self.columns[name].not_null:
                raise RefusedError(
                    f"column {name} of table {self} is part of the key and can be null, and a row with null would be "
                    f"inserted again each time: ALTER TABLE {self} ALTER COLUMN {name} SET NOT NULL"
                )


def find(connection: psycopg.Connection[Any], table: str, rights: Sequence[str]) -> PostgresTable:
    """Read a table from the catalog.

    :param table: as SQL writes it: ``name`` by the search path, or ``schema.name``
    :param rights: the needed rights
    :raises RefusedError: when there is none, it can't be written to here, or a right is missing
    :raises BatchFailedError: when the server does not answer
    """
    with translated_errors(f"looking {table} up", table):
        return _find(connection, table, rights)


def _find(connection: psycopg.Connection[Any], table: str, rights: Sequence[str]) -> PostgresTable:
    try:
        found = connection.execute(
            "SELECT c.oid, n.nspname, c.relname, c.relkind::text, pg_is_in_recovery() FROM pg_class c "
            "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)",
            [table],
        ).fetchone()
    except _NO_NAME as error:
        raise RefusedError(f"table {table!r} can't be looked up: {error}") from error
    if found is None:
        raise RefusedError(
            f"there is no table {table} in database {connection.info.dbname} (for user {connection.info.user}): create "
            "it; this sink does not"
        )
    oid, schema, name, kind, is_standby = found
    if is_standby:
        raise RefusedError(f"PostgreSQL at {connection.info.host} is a standby, which can't be written to")
    if kind not in ("r", "p"):
        raise RefusedError(f"{table} is no table but a {'view' if kind in 'vm' else f'relation of kind {kind}'}")
    for right in rights:
        privilege = connection.execute("SELECT has_table_privilege(%s::oid, %s)", [oid, right]).fetchone()
        if not privilege or not privilege[0]:
            user = connection.info.user
            raise RefusedError(f"user {user} lacks a right: GRANT {', '.join(rights)} ON {schema}.{name} TO {user}")
    columns = [PostgresColumn(*row) for row in connection.execute(_COLUMNS, [oid])]
    unique = [frozenset(row[0]) for row in connection.execute(_UNIQUE, [oid])]
    return PostgresTable(schema, name, {column.name: column for column in columns}, unique)

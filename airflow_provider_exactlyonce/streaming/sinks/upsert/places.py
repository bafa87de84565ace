"""Names in the idempotent sink's own tables, compared exactly, and the tables that it writes to, as the database knows.

MySQL, MariaDB and SQL Server take ``Shop`` and ``shop`` for the same text unless a column says otherwise. New tables
say so; in those of an older release a name that is there in other letters is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects import mssql, mysql

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks import places

_EXACT_IN_MYSQL: Final = mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin")
NAME: Final = (
    sa.String(255)
    .with_variant(_EXACT_IN_MYSQL, "mysql", "mariadb")
    .with_variant(mssql.VARCHAR(255, collation="Latin1_General_100_BIN2"), "mssql")
)
#: The sink's own tables.
METADATA: Final = sa.MetaData()
#: Whose commits a commit_column has.
PLACES: Final = sa.Table(
    "exactlyonce_places",
    METADATA,
    sa.Column("place", NAME, primary_key=True),
    sa.Column("commit_column", NAME, primary_key=True),
    sa.Column("pipeline", NAME, nullable=False),
    sa.Column("sink", NAME, nullable=False),
)


def make_tables(connection: sa.Connection) -> None:
    """Make the sink's own tables where they are missing; another process may make each at the same time."""
    for tries_left in reversed(range(len(METADATA.tables) + 1)):
        try:
            METADATA.create_all(connection)
            connection.commit()
            return
        except sa.exc.DBAPIError:
            connection.rollback()
            if not tries_left:
                raise


def check_exact(row: sa.RowMapping, key: Mapping[str, str], table: sa.Table) -> None:
    """Check that a row that the database takes for a sink's is that sink's.

    :param row: as the database has it
    :param key: the sink's
    :raises RefusedError: when it is of a name in other letters
    """
    found = {name: row[name] for name in key}
    if found == key:
        return
    raise RefusedError(
        f"table {table.name} has {found}, and compares it as the same as {key}: the two would share claim and commits. "
        "Let it compare exactly, in MySQL and MariaDB: ALTER TABLE exactlyonce_claims CONVERT TO CHARACTER SET utf8mb4 "
        "COLLATE utf8mb4_bin, and the same for exactlyonce_commits; or choose another name"
    )


def identity(connection: sa.Connection, table: sa.Table) -> tuple[object, ...]:
    """Return an identity of the table, unique over all servers."""
    url, dialect = connection.engine.url, connection.dialect.name
    name = connection.dialect.identifier_preparer.format_table(table)
    if dialect == "postgresql":
        query = sa.text(places.POSTGRESQL.format(table=":table"))
        # Else the right to ask for the cluster's identifier was revoked.
        with suppress(sa.exc.ProgrammingError), connection.begin_nested():
            return "postgresql", *connection.execute(query, {"table": name}).one()
        query = sa.text(places.POSTGRESQL_UNPRIVILEGED.format(table=":table"))
        return "postgresql", *connection.execute(query, {"table": name}).one()
    if dialect in ("mysql", "mariadb"):
        query = sa.text("SELECT @@hostname, @@port, @@datadir")
        return "mysql", *connection.execute(query).one(), _whole_name(connection, table)
    if dialect == "sqlite":
        schema = table.schema or "main"
        files = {row.name: row.file for row in connection.execute(sa.text("PRAGMA database_list"))}
        return "sqlite", os.path.realpath(files.get(schema) or f":memory:{id(connection)}"), table.name.lower()
    return dialect, url.host, url.port, url.database, _whole_name(connection, table)


def check(connection: sa.Connection, key: Mapping[str, str], table: sa.Table, column: str) -> None:
    """Check that a table's column has the commits of no other sink.

    :raises RefusedError: naming that sink
    """
    if not sa.inspect(connection).has_table(PLACES.name):
        return
    place = {"place": _whole_name(connection, table), "commit_column": column}
    row = connection.execute(sa.select(PLACES).filter_by(**place)).mappings().one_or_none()
    if row is not None and {name: row[name] for name in key} != key:
        owner = (row["pipeline"], row["sink"])
        release = f"DELETE FROM {PLACES.name} WHERE pipeline = '{owner[0]}' AND sink = '{owner[1]}'"
        raise RefusedError(places.taken(str(table), column, owner, release))


def take(connection: sa.Connection, key: Mapping[str, str], table: sa.Table, column: str | None) -> bool:
    """Note that a table's column has this sink's commits, and no other column of any; the caller commits.

    :param column: None for none
    :return: whether it was not noted before
    :raises RefusedError: when it has another sink's
    :raises BatchFailedError: when another sink takes it at the same time
    """
    wanted = [] if column is None else [{"place": _whole_name(connection, table), "commit_column": column}]
    noted = connection.execute(sa.select(PLACES.c.place, PLACES.c.commit_column).filter_by(**key)).mappings()
    if [dict(row) for row in noted] == wanted:
        return False
    if column is not None:
        check(connection, key, table, column)
    connection.execute(PLACES.delete().filter_by(**key))
    try:
        for place in wanted:
            connection.execute(PLACES.insert(), {**key, **place})
    except sa.exc.IntegrityError as error:
        raise BatchFailedError(f"another sink takes column {column} of {table} at this moment") from error
    return True


def highest(connection: sa.Connection, table: sa.Table, column: str) -> int:
    """Return the highest commit that rows of a table have, 0 for none."""
    return connection.execute(sa.select(sa.func.max(table.c[column]))).scalar_one() or 0


def _whole_name(connection: sa.Connection, table: sa.Table) -> str:
    """Return a table's whole name as the database has it."""
    dialect = connection.dialect.name
    schema, name = table.schema, table.name
    if dialect == "postgresql":
        quoted = connection.dialect.identifier_preparer.format_table(table)
        query = sa.text(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
            "WHERE c.oid = coalesce(pg_partition_root(to_regclass(:table)), to_regclass(:table))"
        )
        schema, name = connection.execute(query, {"table": quoted}).one()
    elif dialect in ("mysql", "mariadb"):
        schema = schema or connection.execute(sa.text("SELECT DATABASE()")).scalar_one()
        if connection.execute(sa.text("SELECT @@lower_case_table_names")).scalar_one():
            schema, name = str(schema).lower(), name.lower()
    elif dialect == "sqlite":
        schema, name = (schema or "main").lower(), name.lower()
    else:
        schema = schema or sa.inspect(connection).default_schema_name
    return f"{schema}.{name}" if schema else name

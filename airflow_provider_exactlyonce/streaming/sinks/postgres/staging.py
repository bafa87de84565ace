"""The PostgreSQL sink's own tables beside the target table, in a schema of its own: claims, ledger and staging."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg import sql

from airflow_provider_exactlyonce.exceptions import RefusedError, required
from airflow_provider_exactlyonce.streaming.sinks import places
from airflow_provider_exactlyonce.streaming.sinks.postgres.table import PostgresColumn, PostgresTable
from airflow_provider_exactlyonce.streaming.sinks.spi import SinkAttempt, SinkEntry

SCHEMA: Final = "exactlyonce"
WRITER_COLUMN: Final = "exactlyonce_writer"
_LOCK_SECONDS: Final = 1

_TABLES: Final = (
    f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}",
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.claims (pipeline text, sink text, run bigint NOT NULL, "
    "claimed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink))",
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.commits (pipeline text, sink text, number bigint, entry jsonb NOT NULL, "
    "committed timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink, number))",
    # Whose commits a commit_column has; regclass, so that a restored dump finds its tables.
    f"CREATE TABLE IF NOT EXISTS {SCHEMA}.places (relation regclass, commit_column text, pipeline text NOT NULL, "
    "sink text NOT NULL, PRIMARY KEY (relation, commit_column))",
)

_LACKING: Final = f"""
SELECT 'CREATE ON SCHEMA {SCHEMA}' WHERE NOT has_schema_privilege('{SCHEMA}', 'CREATE') UNION ALL
SELECT held || ' ON {SCHEMA}.' || name FROM unnest(ARRAY['claims', 'commits', 'places']) name,
unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE']) held WHERE NOT has_table_privilege('{SCHEMA}.' || name, held)
"""

#: The table, or the one whose partition it is.
_ROOT: Final = "coalesce(pg_partition_root(to_regclass(%(table)s)), to_regclass(%(table)s))"
_PLACE: Final = f"FROM {SCHEMA}.places WHERE relation = {_ROOT} AND commit_column = %(column)s"

_CLAIM: Final = f"SELECT run, claimed FROM {SCHEMA}.claims WHERE (pipeline, sink) = (%s, %s)"

#: A pipeline's name and a sink's.
Key = tuple[str, str]
#: A run, and the time of its claim.
Claim = tuple[int, datetime]


def identity(key: Key) -> str:
    """Return the common part of names of one sink's staging tables and sessions; at most 16 characters."""
    return hashlib.sha256("\0".join(key).encode()).hexdigest()[:16]


def stage_of(attempt: SinkAttempt, key: Key) -> str:
    """Return the name of an attempt's staging table."""
    return f"stage_{identity(key)}_{attempt.run}_{attempt.name[:12]}"


def make_tables(connection: psycopg.Connection[Any]) -> None:
    """Make schema, claims and ledger, where they are not there.

    :raises RefusedError: when a right is missing
    """
    with _rights_named(connection):
        if not _has_tables(connection, "claims", "commits", "places"):
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [SCHEMA])  # two may be the first
                for statement in _TABLES:
                    connection.execute(statement)
        if lacking := connection.execute(_LACKING).fetchall():
            raise psycopg.errors.InsufficientPrivilege(f"lacking are {', '.join(right for (right,) in lacking)}")


def _has_tables(connection: psycopg.Connection[Any], *tables: str) -> bool:
    """Tell whether all of these tables of ours are there."""
    exists = "SELECT bool_and(to_regclass(name) IS NOT NULL) FROM unnest(%s::text[]) name"
    row = connection.execute(exists, [[f"{SCHEMA}.{name}" for name in tables]]).fetchone()
    return bool(row and row[0])


@contextmanager
def _rights_named(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Name the statement that grants a missing right."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as error:
        user = connection.info.user
        raise RefusedError(
            f"user {user} can't use the sink's own tables: {error}. CREATE SCHEMA {SCHEMA} AUTHORIZATION {user}; or, "
            f"where somebody else has made it, GRANT USAGE, CREATE ON SCHEMA {SCHEMA} TO {user}; and GRANT SELECT, "
            f"INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {SCHEMA} TO {user}"
        ) from error


def newest(connection: psycopg.Connection[Any], key: Key) -> SinkEntry | None:
    """Return the ledger's newest entry, None when there is none.

    :raises RefusedError: when a right is missing
    """
    ordered = f"SELECT entry::text FROM {SCHEMA}.commits WHERE (pipeline, sink) = (%s, %s) ORDER BY number DESC LIMIT 1"
    with _rights_named(connection):
        if not _has_tables(connection, "commits"):
            return None
        row = connection.execute(ordered, key).fetchone()
    return None if row is None else SinkEntry.from_json(row[0])


def entries(connection: psycopg.Connection[Any], key: Key) -> dict[int, SinkEntry]:
    """Return the whole ledger by commit."""
    rows = connection.execute(
        f"SELECT number, entry::text FROM {SCHEMA}.commits WHERE (pipeline, sink) = (%s, %s)", key
    )
    return {number: SinkEntry.from_json(text) for number, text in rows}


def note(connection: psycopg.Connection[Any], key: Key, entry: SinkEntry, *, after: int) -> bool:
    """Add an entry to the ledger, if the newest one is of the commit that is named, 0 for none; tells whether it is."""
    inserted = connection.execute(
        f"INSERT INTO {SCHEMA}.commits (pipeline, sink, number, entry) SELECT %s, %s, %s, %s::jsonb "
        f"WHERE %s = (SELECT coalesce(max(number), 0) FROM {SCHEMA}.commits WHERE (pipeline, sink) = (%s, %s))",
        [*key, entry.commit, entry.to_json(), after, *key],
    )
    return inserted.rowcount == 1


def forget(connection: psycopg.Connection[Any], key: Key, before: int) -> None:
    """Remove the ledger's entries of commits before one, but for the newest."""
    connection.execute(
        f"DELETE FROM {SCHEMA}.commits WHERE (pipeline, sink) = (%s, %s) AND number < least(%s, "
        f"(SELECT max(number) FROM {SCHEMA}.commits WHERE (pipeline, sink) = (%s, %s)))",
        [*key, before, *key],
    )


def place_of(connection: psycopg.Connection[Any], table: PostgresTable) -> object:
    """Return an identity of the table, unique over all clusters."""
    name = {"table": table.quoted.as_string(connection)}
    try:
        row = connection.execute(places.POSTGRESQL.format(table="%(table)s"), name).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        row = connection.execute(places.POSTGRESQL_UNPRIVILEGED.format(table="%(table)s"), name).fetchone()
    return "postgresql", *(row or ())


def check_commit_column(connection: psycopg.Connection[Any], key: Key, table: PostgresTable, column: str) -> None:
    """Check that a table's column has the commits of no other sink.

    :raises RefusedError: naming that sink
    """
    if not _has_tables(connection, "places"):
        return
    owner = connection.execute(
        f"SELECT pipeline, sink {_PLACE}", _place_arguments(connection, table, column)
    ).fetchone()
    if owner is not None and owner != key:
        release = f"DELETE FROM {SCHEMA}.places WHERE (pipeline, sink) = ('{owner[0]}', '{owner[1]}')"
        raise RefusedError(places.taken(str(table), column, owner, release))


def take_commit_column(connection: psycopg.Connection[Any], key: Key, table: PostgresTable, column: str | None) -> None:
    """Note that a table's column has this sink's commits, and no other column of any.

    :param column: None for none
    :raises RefusedError: when it has another sink's
    """
    connection.execute(f"DELETE FROM {SCHEMA}.places WHERE (pipeline, sink) = (%s, %s)", key)
    if column is None:
        return
    arguments = {**_place_arguments(connection, table, column), "pipeline": key[0], "sink": key[1]}
    connection.execute(
        f"INSERT INTO {SCHEMA}.places SELECT {_ROOT}, %(column)s, %(pipeline)s, %(sink)s ON CONFLICT DO NOTHING",
        arguments,
    )
    check_commit_column(connection, key, table, column)


def _place_arguments(connection: psycopg.Connection[Any], table: PostgresTable, column: str) -> dict[str, str]:
    return {"table": table.quoted.as_string(connection), "column": column}


def make_stage(connection: psycopg.Connection[Any], stage: str, table: PostgresTable, flag: str | None) -> None:
    """Make an attempt's staging table: the target's columns without its constraints, and without its safety.

    It compares and orders texts as the target does, so that both have the same keys, and the same last row of each.

    :param flag: a boolean column that only the rows have
    """
    columns = [_column(column) for column in table.columns.values() if not column.generated]
    if flag is not None:
        columns.append(sql.SQL("{} boolean").format(sql.Identifier(flag)))
    statement = sql.SQL("CREATE UNLOGGED TABLE {} ({} integer, {}) WITH (autovacuum_enabled = off)")
    quoted_stage, writer = sql.Identifier(SCHEMA, stage), sql.Identifier(WRITER_COLUMN)
    connection.execute(statement.format(quoted_stage, writer, sql.SQL(", ").join(columns)))


def _column(column: PostgresColumn) -> sql.Composed:
    definition = sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(column.type))
    return (
        definition
        if column.collation is None
        else definition + sql.SQL(" COLLATE ") + sql.Identifier(*column.collation)
    )


def drop_stages(connection: psycopg.Connection[Any], key: Key, run: int) -> tuple[Sequence[str], Sequence[str]]:
    """Drop the staging tables of a run and of earlier runs.

    :return: those that are still written to, and those that belong to another role
    """
    prefix = f"stage_{identity(key)}_"
    rows = connection.execute(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE n.nspname = %s AND c.relkind = 'r' AND starts_with(c.relname, %s)",
        [SCHEMA, prefix],
    ).fetchall()
    still_written, anothers = [], []
    for (name,) in rows:
        stage_run = name.removeprefix(prefix).partition("_")[0]
        if not stage_run.isdecimal() or int(stage_run) > run:  # a name that is none of ours is another's
            continue
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'")
                connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(SCHEMA, name)))
        except psycopg.errors.LockNotAvailable:
            still_written.append(name)
        except psycopg.errors.InsufficientPrivilege:
            anothers.append(name)
    return still_written, anothers


def read_claim(connection: psycopg.Connection[Any], key: Key) -> Claim | None:
    """Return the newest claim, None when there is none."""
    return connection.execute(_CLAIM, key).fetchone()


def lock_claim(connection: psycopg.Connection[Any], key: Key) -> Claim | None:
    """Lock the claim until the transaction's end; returns it, None when there is none.

    A commit holds this lock: with it, no other commit is under way.
    """
    return connection.execute(f"{_CLAIM} FOR UPDATE", key).fetchone()


def write_claim(connection: psycopg.Connection[Any], key: Key, run: int) -> datetime:
    """Give the claim, which is locked, to a run; returns its time, which no other claim of the sink has."""
    later = "greatest(clock_timestamp(), claimed + interval '1 microsecond')"
    row = connection.execute(
        f"UPDATE {SCHEMA}.claims SET run = %s, claimed = {later} WHERE (pipeline, sink) = (%s, %s) RETURNING claimed",
        [run, *key],
    ).fetchone()
    claimed: datetime = required(row, "the claim is locked")[0]
    return claimed


def end_idle(connection: psycopg.Connection[Any], application: str) -> int:
    """End our role's sessions that hold the lock and do nothing: of a driver that is gone, or stopped.

    A session in which a commit is under way is active, and is let alone. Returns how many were ended.

    :param application: the name that the sessions of this sink's drivers go by
    """
    ended = connection.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s AND usename = current_user "
        "AND datname = current_database() AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%%'",
        [application],
    ).fetchall()
    return len(ended)

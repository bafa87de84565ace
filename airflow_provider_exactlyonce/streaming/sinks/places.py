"""Where a sink writes, as its database knows it: names of a table differ with case, quotes and search path."""

from __future__ import annotations

from typing import Final

_POSTGRESQL: Final = """
SELECT {server}::text,
       (SELECT oid::bigint FROM pg_database WHERE datname = current_database()),
       coalesce(pg_partition_root(to_regclass({{table}})), to_regclass({{table}}))::oid::bigint
"""
#: Of PostgreSQL, for one table by its quoted name: what no other table has, wherever a connection comes from. The
#: partitions of a table are one place.
POSTGRESQL: Final = _POSTGRESQL.format(server="(SELECT system_identifier FROM pg_control_system())")
#: The same as long as the server runs, for whom the right to ask for its identifier was revoked.
POSTGRESQL_UNPRIVILEGED: Final = _POSTGRESQL.format(server="pg_postmaster_start_time()")


def taken(table: str, column: str, owner: tuple[str, str], release: str) -> str:
    """Return the text of a refusal: another sink notes its commits there.

    :param owner: that sink's pipeline, and its name
    :param release: the statement that forgets it
    """
    return (
        f"commit_column={column!r} of table {table} has the commits of sink {owner[1]} of pipeline {owner[0]}, and two "
        "pipelines' numbers can't be told apart: rows would be taken for the other's, or for newer than they are. Give "
        f"this sink a column of its own: ALTER TABLE {table} ADD COLUMN ...; or, if that sink is gone for good: UPDATE "
        f"{table} SET {column} = NULL; {release}"
    )


def left_over(table: str, column: str, highest: int, newest: int) -> str:
    """Return the text of a refusal: rows have commits that the sink has not made.

    :param highest: of the rows' commits
    :param newest: the sink's newest commit, 0 for none
    """
    return (
        f"commit_column={column!r} of table {table} has commit {highest}, and the sink has made {newest or 'none'}: "
        "the rows are of a pipeline that was deleted, of another sink, or of a dump, and no update would reach them "
        f"before that commit. If nothing else writes to the column: UPDATE {table} SET {column} = NULL; else give this "
        f"sink a column of its own: ALTER TABLE {table} ADD COLUMN ..."
    )


def one_place(pipeline: str, sink: str, other: str) -> str:
    """Return the text of a refusal: two sinks write to one table."""
    return (
        f"sinks {sink} and {other} of pipeline {pipeline} write to one table, and the transaction of one would wait "
        "for the other's for ever: declare one sink for all of its rows"
    )

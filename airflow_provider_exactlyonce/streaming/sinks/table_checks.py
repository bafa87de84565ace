"""Checks of a database's table for the sinks that write into it, whichever of them has read its catalog.

PostgresSink reads PostgreSQL's own catalog: its refusals (an index that is partial, deferred or not valid, a domain
that rounds, a missing right) are not in SQLAlchemy's reflection, which UpsertSink uses for any database.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from airflow_provider_exactlyonce.exceptions import RefusedError


def check_has(table: object, columns: Iterable[str], name: str, kind: str | None = None) -> None:
    """Check that a table has a column.

    :param columns: all that it has
    :param kind: the type in which the rows have it, None for one that the sink gives
    :raises RefusedError: when it has not
    """
    column_names = list(columns)
    if name not in column_names:
        advice = f", which the rows have as {kind}: add it, or leave it out of the result" if kind else ": add it"
        raise RefusedError(f"table {table} has no column {name}{advice}. The table has {', '.join(column_names)}")


def check_complete(table: object, required: Iterable[str], given: Collection[str]) -> None:
    """Check that a row can be inserted.

    :param required: the columns that are NOT NULL and get no value by themselves
    :param given: the rows' columns
    :raises RefusedError: naming the column that lacks
    """
    for name in required:
        if name not in given:
            raise RefusedError(
                f"column {name} of table {table} is NOT NULL and has no default, and the rows lack it: add it to the "
                "result, or give it a default"
            )


def check_key(table: object, key: Sequence[str], unique: Iterable[Iterable[str]]) -> None:
    """Check that rows can be written over those with their key.

    :param unique: the sets of columns that are unique together
    :raises RefusedError: when the key is none of them
    """
    if set(key) not in [set(names) for names in unique]:
        quoted = ", ".join(key)
        raise RefusedError(
            f"table {table} has no primary key or unique constraint over ({quoted}), by which rows are replaced: ALTER "
            f"TABLE {table} ADD PRIMARY KEY ({quoted})"
        )

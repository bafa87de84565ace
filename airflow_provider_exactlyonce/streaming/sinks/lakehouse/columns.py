"""Checks the columns of the rows against their table's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from airflow_provider_exactlyonce.exceptions import RefusedError


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    """One column of a table.

    :param type: as text, whether or not its values and their parts may be null
    :param required: whether it must not be null
    :param has_required_part: whether a part of its values must not be null
    """

    type: str
    required: bool
    has_required_part: bool


def find_missing(
    table: Mapping[str, TableColumn], rows: Mapping[str, str], where: str, *, evolves: bool, sink: str
) -> list[str]:
    """Return the columns that a table lacks, once the others fit.

    :param table: the table's columns, by their names
    :param rows: the types of the rows' columns
    :param where: sink and table, for messages
    :param evolves: whether columns may be added
    :param sink: the sink's class, for messages
    :raises RefusedError: naming the column, its types and the way out
    """
    by_letters = {name.lower(): name for name in table}
    missing = []
    for name, kind in rows.items():
        if name in table:
            _check_same(name, kind, table[name], where)
        elif name.lower() in by_letters:
            raise RefusedError(f"{where} has the column {by_letters[name.lower()]!r}, and the rows {name!r}: rename it")
        elif evolves:
            missing.append(name)
        else:
            raise RefusedError(
                f"{where} has no column {name!r}, which the rows have as {kind}. Add it, declare "
                f"{sink}(schema='evolve'), or leave it out of the result. The table has {', '.join(table)}"
            )
    for name, column in table.items():
        if column.required and name not in rows:
            raise RefusedError(f"column {name!r} of {where} is NOT NULL, and the rows lack it: add it to the result")
    return missing


def _check_same(name: str, kind: str, column: TableColumn, where: str) -> None:
    if kind != column.type:
        raise RefusedError(
            f"column {name!r} of {where} is {column.type}, and the rows have it as {kind}: cast it in the result, or "
            "write to another table"
        )
    if column.has_required_part:
        raise RefusedError(
            f"column {name!r} of {where} has a part that is NOT NULL, which this sink does not check: {column.type}"
        )

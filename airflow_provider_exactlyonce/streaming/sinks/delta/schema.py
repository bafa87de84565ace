"""Columns of the rows and of the table: as Spark, Arrow and Delta have them, and whether they fit."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from deltalake import Schema
    from pyspark.sql.types import StructType

#: Characters that Delta refuses in a column's name as long as columns are not mapped.
_NO_NAME: Final = re.compile(r"[ ,;{}()\n\t=]")
#: Metadata of a field with which a writer would have to compute or to check values.
_RULES: Final = {
    "delta.generationExpression": "is a generated column",
    "delta.identity.start": "is an identity column",
    "delta.invariants": "has an invariant",
    "__CHAR_VARCHAR_TYPE_STRING": "is a CHAR or VARCHAR",
}


def arrow_columns(columns: StructType) -> pa.Schema:
    """Return the columns of the rows as Arrow has them, all of them nullable."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(columns, timezone="UTC")])


def delta_schema(columns: pa.Schema) -> Schema:
    """Return the columns of a new table, all of them and of their parts nullable."""
    from deltalake import Schema

    return Schema.from_json(json.dumps(_nullable(json.loads(Schema.from_arrow(columns).to_json()))))


def check_names(columns: Sequence[str], where: str) -> None:
    """Check that Delta takes names of columns.

    :param where: the sink, for messages
    :raises RefusedError: naming the column
    """
    for name in columns:
        if match := _NO_NAME.search(name):
            raise RefusedError(
                f"{where}: column {name!r} has {match[0]!r} in its name, which Delta does not take: give it an alias"
            )


def missing_columns(table: Schema, columns: pa.Schema, where: str, *, evolves: bool) -> list[Any]:
    """Return the fields that the table lacks, once the others fit.

    :param table: the table's columns
    :param columns: the rows'
    :param where: sink and table, for messages
    :param evolves: whether columns may be added
    :raises RefusedError: naming the column, its types and the way out
    """
    table_columns = {field["name"]: field for field in json.loads(table.to_json())["fields"]}
    by_letters = {name.lower(): name for name in table_columns}
    row_columns = delta_schema(columns)
    missing = []
    for name, column in table_columns.items():
        _check_rules(name, column, where)
    for field, described in zip(row_columns.fields, json.loads(row_columns.to_json())["fields"], strict=True):
        name = described["name"]
        if name in table_columns:
            _check_same(name, described, table_columns[name], where)
        elif name.lower() in by_letters:
            raise RefusedError(f"{where} has the column {by_letters[name.lower()]!r}, and the rows {name!r}: rename it")
        elif evolves:
            missing.append(field)
        else:
            raise RefusedError(
                f"{where} has no column {name!r}, which the rows have as {_shown(described['type'])}. Add it, declare "
                f"DeltaSink(schema='evolve'), or leave it out of the result. The table has {', '.join(table_columns)}"
            )
    for name, field in table_columns.items():
        if not field["nullable"] and name not in columns.names:
            raise RefusedError(f"column {name!r} of {where} is NOT NULL, and the rows lack it: add it to the result")
    return missing


def required_columns(table: Schema) -> list[str]:
    """Return the columns of a table that must not be null."""
    return [field["name"] for field in json.loads(table.to_json())["fields"] if not field["nullable"]]


def _check_rules(name: str, column: Mapping[str, Any], where: str) -> None:
    """Check that a column has no rules, also if the rows lack it: its values would not be null then."""
    for key, what in _RULES.items():
        if key in column.get("metadata", {}):
            raise RefusedError(
                f"column {name!r} of {where} {what} ({key}), which this sink can't keep: write to another table"
            )


def _check_same(name: str, row_column: Mapping[str, Any], table_column: Mapping[str, Any], where: str) -> None:
    if _nullable(row_column["type"]) != _nullable(table_column["type"]):
        raise RefusedError(
            f"column {name!r} of {where} is {_shown(table_column['type'])}, and the rows have it as "
            f"{_shown(row_column['type'])}: cast it in the result, or write to another table"
        )
    if any(not allowed for allowed in _nullabilities(table_column["type"])):
        raise RefusedError(
            f"column {name!r} of {where} has a part that is NOT NULL, which this sink does not check: "
            f"{_shown(table_column['type'])}"
        )


def _nullable(described: Any) -> Any:
    """Return a type or field with every part nullable, and without what describes it further."""
    if isinstance(described, list):
        return [_nullable(part) for part in described]
    if not isinstance(described, dict):
        return described
    changed = {key: True for key in ("nullable", "containsNull", "valueContainsNull") if key in described}
    parts = {key: _nullable(value) for key, value in described.items() if key != "metadata"}
    return {**parts, **changed, **({"metadata": {}} if "metadata" in described else {})}


def _nullabilities(kind: Any) -> Iterator[bool]:
    if not isinstance(kind, dict):
        return
    for key in ("nullable", "containsNull", "valueContainsNull"):
        if key in kind:
            yield kind[key]
    for part in ("elementType", "keyType", "valueType", "type"):
        yield from _nullabilities(kind.get(part))
    for field in kind.get("fields", ()):
        yield from _nullabilities(field)


def _shown(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind, separators=(",", ":"))

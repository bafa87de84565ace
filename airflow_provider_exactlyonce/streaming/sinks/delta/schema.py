"""Columns of the rows and of the table: as Spark, Arrow and Delta have them, and whether they fit."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.columns import TableColumn, find_missing

if TYPE_CHECKING:
    from deltalake import Field, Schema
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
_ZONELESS_FEATURE: Final = "timestampNtz"


def arrow_columns(columns: StructType) -> pa.Schema:
    """Return the columns of the rows as Arrow has them, all of them nullable."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return pa.schema([field.with_nullable(True) for field in to_arrow_schema(columns, timezone="UTC")])


def table_columns(table: Schema) -> pa.Schema:
    """Return the columns of a table as its files have them, all of them nullable."""
    return pa.schema([field.with_nullable(True).remove_metadata() for field in pa.schema(table)])


def delta_schema(columns: pa.Schema) -> Schema:
    """Return the columns of a new table, all of them and of their parts nullable."""
    from deltalake import Schema

    return Schema.from_json(json.dumps(_nullable(json.loads(Schema.from_arrow(columns).to_json()))))


def check_names(columns: StructType, where: str) -> None:
    """Check that Delta takes the names of columns, and of the fields in them.

    :param where: the sink, for messages
    :raises RefusedError: naming the column
    """
    for name in _names(columns):
        if match := _NO_NAME.search(name):
            raise RefusedError(
                f"{where}: column {name!r} has {match[0]!r} in its name, which Delta does not take: give it an alias"
            )


def _names(kind: Any) -> Iterator[str]:
    yield from getattr(kind, "names", ())
    parts = [getattr(kind, part) for part in ("elementType", "keyType", "valueType") if hasattr(kind, part)]
    for part in (*parts, *(field.dataType for field in getattr(kind, "fields", ()))):
        yield from _names(part)


def missing_columns(table: Schema, columns: pa.Schema, where: str, *, evolves: bool) -> list[Any]:
    """Return the fields that the table lacks, once the others fit.

    :param table: the table's columns
    :param columns: the rows'
    :param where: sink and table, for messages
    :param evolves: whether columns may be added
    :raises RefusedError: naming the column, its types and the way out
    """
    table_fields = {field["name"]: field for field in json.loads(table.to_json())["fields"]}
    for name, field in table_fields.items():
        _check_rules(name, field, where)
    table_columns = {
        name: TableColumn(
            type=_shown(field["type"]),
            required=not field["nullable"],
            has_required_part=not all(_nullabilities(field["type"])),
        )
        for name, field in table_fields.items()
    }
    row_columns = delta_schema(columns)
    row_types = {field["name"]: _shown(field["type"]) for field in json.loads(row_columns.to_json())["fields"]}
    missing = find_missing(table_columns, row_types, where, evolves=evolves, sink="DeltaSink")
    return [field for field in row_columns.fields if field.name in missing]


def check_new(fields: Iterable[Field], features: Collection[str], where: str) -> None:
    """Check that delta-rs can add columns: it overlooks a time without a zone within a map, and then fails.

    :param features: that the table has
    :param where: sink and table, for messages
    :raises RefusedError: naming the column
    """
    zoneless = {field.name: list(_zoneless(json.loads(field.to_json())["type"])) for field in fields}
    if _ZONELESS_FEATURE in features or any(not in_map for times in zoneless.values() for in_map in times):
        return
    for name, times in zoneless.items():
        if times:
            raise RefusedError(
                f"{where}: column {name!r} has TIMESTAMP_NTZ within a map, and delta-rs does not give the table the "
                f"feature {_ZONELESS_FEATURE} for it. Cast it to TIMESTAMP, or make the table with the feature first: "
                f"TBLPROPERTIES ('delta.feature.{_ZONELESS_FEATURE}'='supported')"
            )


def _zoneless(kind: Any, *, in_map: bool = False) -> Iterator[bool]:
    """Yield of each time without a zone in a type whether it is within a map."""
    if kind == "timestamp_ntz":
        yield in_map
    if isinstance(kind, dict):
        for part in ("elementType", "keyType", "valueType"):
            yield from _zoneless(kind.get(part), in_map=in_map or kind["type"] == "map")
        for field in kind.get("fields", ()):
            yield from _zoneless(field["type"], in_map=in_map)


def required_columns(table: Schema) -> list[str]:
    """Return the columns of a table that must not be null."""
    return [field["name"] for field in json.loads(table.to_json())["fields"] if not field["nullable"]]


def _check_rules(name: str, column: Mapping[str, Any], where: str) -> None:
    """Check that a column and its parts have no rules, also if the rows lack the column: it would not be null then."""
    for key, rule in _RULES.items():
        if key in column.get("metadata", {}):
            raise RefusedError(
                f"column {name!r} of {where} {rule} ({key}), which this sink can't keep: write to another table"
            )
    for field in _fields(column["type"]):
        _check_rules(f"{name}.{field['name']}", field, where)


def _fields(kind: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the fields of the structs in a type, but not those in the fields."""
    if isinstance(kind, dict):
        yield from kind.get("fields", ())
        for part in ("elementType", "keyType", "valueType"):
            yield from _fields(kind.get(part))


def _nullable(described: Any) -> Any:
    """Return a type or field with every part nullable, and without metadata."""
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
    """Return a type as text, with every part nullable."""
    return kind if isinstance(kind, str) else json.dumps(_nullable(kind), separators=(",", ":"), sort_keys=True)

"""Columns of the rows and of the table: as Spark and Iceberg have them, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import types as spark

_PRIMITIVES: Final[dict[str, IcebergType]] = {
    "tinyint": IntegerType(),
    "smallint": IntegerType(),
    "int": IntegerType(),
    "bigint": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "boolean": BooleanType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}


@dataclass(frozen=True)
class NewColumn:
    """A column that a table lacks."""

    name: str
    type: IcebergType


def iceberg_schema(columns: spark.StructType) -> Schema:
    """Return the columns of a new table, all of them and of their parts optional; the catalog gives them their ids."""
    return Schema(*_fields(columns, count(1)))


def missing_columns(table: Schema, columns: spark.StructType, where: str, *, evolves: bool) -> list[NewColumn]:
    """Return the columns that the table lacks, once the others fit.

    :param table: the table's columns
    :param columns: the rows'
    :param where: sink and table, for messages
    :param evolves: whether columns may be added
    :raises RefusedError: naming the column, its types and the way out
    """
    table_fields = {field.name: field for field in table.fields}
    by_letters = {name.lower(): name for name in table_fields}
    missing = []
    for field in iceberg_schema(columns).fields:
        name = field.name
        if name in table_fields:
            _check_same(field, table_fields[name], where)
        elif name.lower() in by_letters:
            raise RefusedError(f"{where} has the column {by_letters[name.lower()]!r}, and the rows {name!r}: rename it")
        elif evolves:
            missing.append(NewColumn(name, field.field_type))
        else:
            raise RefusedError(
                f"{where} has no column {name!r}, which the rows have as {_shown(field.field_type)}. Add it, declare "
                f"IcebergSink(schema='evolve'), or leave it out of the result. The table has {', '.join(table_fields)}"
            )
    for name, field in table_fields.items():
        if field.required and name not in columns.names:
            raise RefusedError(f"column {name!r} of {where} is required, and the rows lack it: add it to the result")
    return missing


def written_columns(table: Schema, columns: spark.StructType) -> Schema:
    """Return the table's columns that the rows have, in their order, with the table's ids."""
    table_fields = {field.name: field for field in table.fields}
    return Schema(*(table_fields[name] for name in columns.names))


def _fields(columns: spark.StructType, ids: Iterator[int]) -> list[NestedField]:
    return [NestedField(next(ids), field.name, _type(field.dataType, ids), required=False) for field in columns.fields]


def _type(kind: Any, ids: Iterator[int]) -> IcebergType:
    name = kind.typeName()
    if name == "array":
        return ListType(next(ids), _type(kind.elementType, ids), element_required=False)
    if name == "map":
        key, value = next(ids), next(ids)
        return MapType(key, _type(kind.keyType, ids), value, _type(kind.valueType, ids), value_required=False)
    if name == "struct":
        return StructType(*_fields(kind, ids))
    if name == "decimal":
        return DecimalType(kind.precision, kind.scale)
    return _PRIMITIVES["string" if name in ("string", "char", "varchar") else kind.simpleString()]


def _check_same(row_field: NestedField, table_field: NestedField, where: str) -> None:
    if _shown(row_field.field_type) != _shown(table_field.field_type):
        raise RefusedError(
            f"column {table_field.name!r} of {where} is {_shown(table_field.field_type)}, and the rows have it as "
            f"{_shown(row_field.field_type)}: cast it in the result, or write to another table"
        )
    if _has_required_part(table_field.field_type):
        raise RefusedError(
            f"column {table_field.name!r} of {where} has a part that is required, which this sink does not check: "
            f"{table_field.field_type}"
        )


def _has_required_part(kind: IcebergType) -> bool:
    if isinstance(kind, StructType):
        return any(field.required or _has_required_part(field.field_type) for field in kind.fields)
    if isinstance(kind, ListType):
        return kind.element_required or _has_required_part(kind.element_type)
    if isinstance(kind, MapType):
        parts = (kind.key_type, kind.value_type)
        return kind.value_required or any(_has_required_part(part) for part in parts)
    return False


def _shown(kind: IcebergType) -> str:
    """Return a type without ids, and without what is required of its parts."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{field.name}: {_shown(field.field_type)}' for field in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{_shown(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_shown(kind.key_type)}, {_shown(kind.value_type)}>"
    return str(kind)

"""Columns of the rows and of the table: as Spark and Iceberg have them, and whether they fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any, Final

from pyiceberg.schema import Schema, index_by_id
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
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.columns import TableColumn, find_missing

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


def iceberg_schema(columns: spark.StructType, where: str) -> Schema:
    """Return the columns of a new table, all of them and of their parts optional; the catalog gives them their ids.

    :param where: the sink, for messages
    :raises RefusedError: when Iceberg can't tell some of them apart
    """
    fields = _fields(columns, count(1))
    check_paths(((field.name, field.field_type) for field in fields), where)
    return Schema(*fields)


def missing_columns(table: Schema, columns: spark.StructType, where: str, *, evolves: bool) -> list[NewColumn]:
    """Return the columns that the table lacks, once the others fit.

    :param table: the table's columns
    :param columns: the rows'
    :param where: sink and table, for messages
    :param evolves: whether columns may be added
    :raises RefusedError: naming the column, its types and the way out
    """
    table_columns = {
        field.name: TableColumn(
            type=_shown(field.field_type),
            required=field.required,
            has_required_part=_has_required_part(field.field_type),
        )
        for field in table.fields
    }
    row_types = {field.name: field.field_type for field in iceberg_schema(columns, where).fields}
    shown = {name: _shown(kind) for name, kind in row_types.items()}
    missing = find_missing(table_columns, shown, where, evolves=evolves, sink="IcebergSink")
    new_columns = [NewColumn(name, row_types[name]) for name in missing]
    check_paths(
        [
            *((field.name, field.field_type) for field in table.fields),
            *((column.name, column.type) for column in new_columns),
        ],
        where,
    )
    return new_columns


def check_paths(columns: Iterable[tuple[str, IcebergType]], where: str) -> None:
    """Check that columns and their parts have unique paths, as Iceberg requires.

    :param columns: names and types
    :param where: the sink, and the table if there is one, for messages
    :raises RefusedError: naming the path
    """
    columns_by_path: dict[str, str] = {}
    for path, column in ((path, name) for name, kind in columns for path in paths(name, kind)):
        if path in columns_by_path:
            column_names = " and ".join(dict.fromkeys(map(repr, (columns_by_path[path], column))))
            raise RefusedError(
                f"{where}: Iceberg puts a dot between a column and its part, and would call two things {path!r} in "
                f"{column_names}: rename one"
            )
        columns_by_path[path] = column


def paths(name: str, kind: IcebergType) -> Iterator[str]:
    """Yield the paths of a column and of its parts, as Iceberg has them."""
    yield name
    parts: Mapping[str, IcebergType] = {}
    if isinstance(kind, StructType):
        parts = {field.name: field.field_type for field in kind.fields}
    elif isinstance(kind, ListType):
        parts = {"element": kind.element_type}
    elif isinstance(kind, MapType):
        parts = {"key": kind.key_type, "value": kind.value_type}
    for part, part_kind in parts.items():
        yield from paths(f"{name}.{part}", part_kind)


def written_columns(table: Schema, columns: spark.StructType) -> Schema:
    """Return the table's columns that the rows have, in their order, with the table's ids."""
    table_fields = {field.name: field for field in table.fields}
    return Schema(*(table_fields[name] for name in columns.names))


def fits(written: Schema, table: Schema) -> bool:
    """Tell whether files written with some columns fit a table that others may have changed since.

    Comments don't matter to files, nor does a column that has become nullable.
    """
    became_required = {field.field_id for field in table.fields if field.required}
    became_required -= {field.field_id for field in written.fields if field.required}
    return _by_id(written) == _by_id(table) and not became_required


def _by_id(columns: Schema) -> dict[int, tuple[str | None, str | None]]:
    """Return name and type of all columns and of their parts."""
    return {
        key: (columns.find_column_name(key), str(field.field_type) if field.field_type.is_primitive else None)
        for key, field in index_by_id(columns).items()
    }


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
    """Return a type as text without ids, and without which of its parts are required."""
    if isinstance(kind, StructType):
        return f"struct<{', '.join(f'{field.name}: {_shown(field.field_type)}' for field in kind.fields)}>"
    if isinstance(kind, ListType):
        return f"list<{_shown(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_shown(kind.key_type)}, {_shown(kind.value_type)}>"
    return str(kind)

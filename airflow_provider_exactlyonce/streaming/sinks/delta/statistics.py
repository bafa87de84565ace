"""Statistics of a Parquet file for Delta's log, so that readers can skip it: rows, nulls, least and greatest values."""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

#: Columns in the order of the file that have statistics, as Delta does it by default.
_COLUMNS: Final = 32
_TEXT_CHARACTERS: Final = 32
_LAST: Final = "\U0010ffff"
#: Names from the outside in, and the type.
_Leaf = tuple[tuple[str, ...], pa.DataType]
_ENCODER: Final = msgspec.json.Encoder(decimal_format="number")


def describe(metadata: pq.FileMetaData, schema: pa.Schema, without_bounds: Collection[str]) -> str:
    """Return the statistics of a file, as JSON.

    :param metadata: the file's footer
    :param schema: the columns of the file
    :param without_bounds: columns with a value that has no place in their order, such as NaN
    """
    nulls: dict[str, Any] = {}
    least: dict[str, Any] = {}
    greatest: dict[str, Any] = {}
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    for position, leaf in enumerate(_leaves(schema)):
        if position == _COLUMNS or not groups:
            break
        parts = [group.column(position).statistics for group in groups]
        if leaf is None or any(part is None or not part.has_null_count for part in parts):
            continue
        path, kind = leaf
        _put(nulls, path, sum(part.null_count for part in parts))
        if path[0] not in without_bounds and (bounds := _bounds(parts, path, kind)) is not None:
            # Both or none: readers take a single bound for more than it says.
            lower, upper = _lower(bounds[0]), _upper(bounds[1])
            if upper is not None:
                _put(least, path, lower)
                _put(greatest, path, upper)
    statistics = {"numRecords": metadata.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}
    return _ENCODER.encode(statistics).decode()


def _leaves(fields: Iterable[pa.Field], parent_path: tuple[str, ...] | None = ()) -> Iterator[_Leaf | None]:
    """Yield path and type of each of Parquet's columns, in its order; None for a part of a list or a map.

    :param parent_path: names of the structs around the fields, None within a list or a map
    """
    for field in fields:
        path = None if parent_path is None else (*parent_path, field.name)
        if pa.types.is_struct(field.type):
            yield from _leaves(field.type, path)
        elif pa.types.is_map(field.type):
            yield from _leaves((field.type.key_field, field.type.item_field), None)
        elif pa.types.is_nested(field.type):
            yield from _leaves((field.type.value_field,), None)
        else:
            yield None if path is None else (path, field.type)


def _bounds(parts: Sequence[Any], path: tuple[str, ...], kind: pa.DataType) -> tuple[Any, Any] | None:
    """Return the least and the greatest value of all row groups, None when they are not known or have no order."""
    if pa.types.is_boolean(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return None
    if pa.types.is_floating(kind) and len(path) > 1:
        return None  # NaN was not looked for in there
    valued = [part for part in parts if part.num_values]
    if not valued or any(not part.has_min_max for part in valued):
        return None
    try:
        return min(part.min for part in valued), max(part.max for part in valued)
    except (OverflowError, ValueError):  # a year that Python has no date for
        return None


def _lower(value: Any) -> Any:
    return value[:_TEXT_CHARACTERS] if isinstance(value, str) else _plain(value)


def _upper(value: Any) -> Any:
    """Return a value that is not less; None when a text is cut and nothing is greater."""
    if not isinstance(value, str):
        return _plain(value)
    if len(value) <= _TEXT_CHARACTERS:
        return value
    return None if value[_TEXT_CHARACTERS] == _LAST else value[:_TEXT_CHARACTERS] + _LAST


def _plain(value: Any) -> Any:
    """Return how Delta's JSON has it."""
    if isinstance(value, datetime.datetime):
        text = value.replace(tzinfo=None).isoformat(timespec="microseconds")
        return f"{text}Z" if value.tzinfo is not None else text
    if isinstance(value, datetime.date):
        return value.isoformat()
    if isinstance(value, float) and math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"  # JSON has no such number, and Spark writes these texts
    if isinstance(value, float | int | Decimal):
        return value
    return str(value)


def _put(nested: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for name in path[:-1]:
        nested = nested.setdefault(name, {})
    nested[path[-1]] = value

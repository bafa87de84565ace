"""Arrow batches as the CSV that PostgreSQL's COPY reads, by columns; only nested values are written row by row.

Arrow quotes every text, and writes null as nothing: what COPY takes for text and for null.
"""

from __future__ import annotations

import datetime
import io
from collections.abc import Callable, Collection
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from airflow_provider_exactlyonce.streaming.sinks.json_text import to_json

_OPTIONS: Final = csv.WriteOptions(include_header=False, quoting_style="needed")


def encode(writer: int, rows: pa.RecordBatch, json_columns: Collection[str]) -> bytes:
    """Return rows as CSV.

    :param writer: a number that each row begins with
    :param json_columns: the columns whose values become JSON, when they are nested; other arrays become arrays
    :raises RecordRefusedError: for a value that has no JSON
    """
    columns = [pa.repeat(pa.scalar(writer, pa.int32()), rows.num_rows)]
    columns += [_column(rows[name], name in json_columns) for name in rows.schema.names]
    buffer = io.BytesIO()
    csv.write_csv(pa.RecordBatch.from_arrays(columns, names=["", *rows.schema.names]), buffer, _OPTIONS)
    return buffer.getvalue()


def _column(values: pa.Array, as_json: bool) -> pa.Array:
    kind = values.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return values.cast(pa.timestamp(kind.unit, "UTC"))  # the offsets of old times have seconds, which CSV drops
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hexadecimal(values)
    if pa.types.is_nested(kind):
        to_text = to_json if as_json else _array
        return pa.array(
            [None if value is None else to_text(value) for value in values.to_pylist(maps_as_pydicts="strict")],
            pa.string(),
        )
    return values


def _hexadecimal(values: pa.Array) -> pa.Array:
    """Return bytes as PostgreSQL writes them: all of the column's at once."""
    packed = pa.concat_arrays([values.cast(pa.large_binary())])
    _, offsets, data = packed.buffers()
    first = packed.offset
    ends = pa.Array.from_buffers(pa.int64(), len(packed) + 1, [None, offsets], offset=first)
    doubled = pc.multiply(ends, 2).buffers()[1]
    digits = pa.py_buffer(data.hex() if data is not None else b"")
    text = pa.Array.from_buffers(pa.large_string(), len(packed), [None, doubled, digits])
    text = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), text, pa.scalar("", pa.large_string()))
    return pc.if_else(packed.is_valid(), text, pa.scalar(None, pa.large_string()))


def _array(values: list[Any]) -> str:
    return "{" + ",".join("NULL" if value is None else _element(value) for value in values) + "}"


def _element(value: Any) -> str:
    text = _TEXTS.get(type(value), str)(value)
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    bytes: lambda value: f"\\x{value.hex()}",
    float: repr,
    Decimal: lambda value: format(value, "f"),
    datetime.datetime: datetime.datetime.isoformat,
}

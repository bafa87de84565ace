"""Rows of a file of the table, in the table's columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

_INT96: Final = "INT96"
_INSTANT: Final = pa.timestamp("us", "UTC")
_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def opened_parquet(opened: BinaryIO) -> pq.ParquetFile:
    """Return the Parquet file that was opened; its times are as Delta has them."""
    # Spark writes times in a form of its own, which has nanoseconds; Delta's have microseconds.
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def copied_columns(parquet: pq.ParquetFile) -> pa.Schema:
    """Return the columns of a file as its copy has them.

    Texts and bytes are such: delta-rs writes views of them, which Arrow can't filter. Spark's own form of times is of
    instants, and does not say so.
    """
    leaves = (column.physical_type for column in map(parquet.schema.column, range(len(parquet.schema))))
    return pa.schema([field.with_type(_copied(field.type, leaves)) for field in parquet.schema_arrow])


def _copied(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return a type as a copy has it.

    :param leaves: Parquet's types of what it is made of, and of all that follow it
    """
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_copied(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_copied(kind.key_type, leaves), kind.item_field.with_type(_copied(kind.item_type, leaves)))
    if pa.types.is_nested(kind):
        return pa.list_(kind.value_field.with_type(_copied(kind.value_type, leaves)))
    return _INSTANT if next(leaves) == _INT96 else _VIEWS.get(kind, kind)


def with_columns(rows: pa.Table | None, schema: pa.Schema, partition: Mapping[str, str | None], count: int) -> pa.Table:
    """Return some columns of a file's rows, those of its partition included; null where the file lacks one.

    :param rows: what the file has of them, None for nothing
    :param partition: the values of the columns that the table is partitioned by, as texts
    :param count: of the rows
    """

    def column(field: pa.Field) -> pa.Array | pa.ChunkedArray:
        if rows is not None and field.name in rows.column_names:
            return rows[field.name].cast(field.type)
        if (text := partition.get(field.name)) is None:
            return pa.nulls(count, field.type)  # no text is cast to a nested type, not even null
        return pa.repeat(text, count).cast(field.type)

    return pa.table(list(map(column, schema)), schema=schema)

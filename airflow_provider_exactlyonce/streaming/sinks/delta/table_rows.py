"""Rows of a file of the table, in the table's columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import BinaryIO, Final

import pyarrow as pa
import pyarrow.parquet as pq

_VIEWS: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


def opened_parquet(opened: BinaryIO) -> pq.ParquetFile:
    """Return the Parquet file that was opened; its times are as Delta has them."""
    # Spark writes times in a form of its own, which has nanoseconds; Delta's have microseconds.
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def without_views(schema: pa.Schema) -> pa.Schema:
    """Return a schema in which texts and bytes are such: delta-rs writes views of them, which Arrow can't filter."""
    return pa.schema([field.with_type(_without_views(field.type)) for field in schema])


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind in _VIEWS:
        return _VIEWS[kind]
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_without_views(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_without_views(kind.key_type), kind.item_field.with_type(_without_views(kind.item_type)))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    return kind


def with_columns(rows: pa.Table | None, schema: pa.Schema, partition: Mapping[str, str | None], count: int) -> pa.Table:
    """Return some columns of a file's rows, those of its partition included; null where the file lacks one.

    :param rows: what the file has of them, None for nothing
    :param partition: the values of the columns that the table is partitioned by, as texts
    :param count: of the rows
    """
    there = () if rows is None else rows.column_names
    columns = [
        rows[field.name].cast(field.type)
        if rows is not None and field.name in there
        else pa.repeat(pa.scalar(partition.get(field.name), pa.string()), count).cast(field.type)
        for field in schema
    ]
    return pa.table(columns, schema=schema)

"""The columns of a table's Parquet files, by the types that their values have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_INT96: Final = "INT96"


def opened_parquet(opened: BinaryIO) -> pq.ParquetFile:
    """Return the Parquet file that was opened; its times are as tables have them."""
    import pyarrow.parquet as pq

    # Spark writes times in a form of its own, which has nanoseconds; tables have microseconds.
    return pq.ParquetFile(opened, coerce_int96_timestamp_unit="us")


def columns_of(parquet: pq.ParquetFile) -> pa.Schema:
    """Return a file's columns with plain types; columns that are read from it can be cast to them.

    Texts and bytes are plain: delta-rs writes views of them, which Arrow can't filter, and pandas categories. Spark's
    own form of times is of instants, without a mark.
    """
    import pyarrow as pa

    leaves = (column.physical_type for column in map(parquet.schema.column, range(len(parquet.schema))))
    return pa.schema([field.with_type(_plain_type(field.type, leaves)) for field in parquet.schema_arrow])


def _plain_type(kind: pa.DataType, leaves: Iterator[str]) -> pa.DataType:
    """Return a type as values of it are.

    :param leaves: Parquet's types of its parts, and of all columns after it
    """
    import pyarrow as pa

    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_plain_type(field.type, leaves)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(
            _plain_type(kind.key_type, leaves), kind.item_field.with_type(_plain_type(kind.item_type, leaves))
        )
    if pa.types.is_nested(kind):
        return pa.list_(kind.value_field.with_type(_plain_type(kind.value_type, leaves)))
    if next(leaves) == _INT96:
        return pa.timestamp("us", "UTC")
    if pa.types.is_dictionary(kind):  # each part of its rows has all of its values, whatever is written of it
        kind = kind.value_type
    return {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}.get(kind, kind)

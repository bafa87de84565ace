"""The rows of one file as the table has them now: columns and their parts are found by their ids.

Pyiceberg's own reader makes a null array or map of structs an empty one, and a copy must not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, StructType

from airflow_provider_exactlyonce.streaming.sinks.iceberg.catalog import IcebergTable
from airflow_provider_exactlyonce.tables.parquet_columns import opened_parquet

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.schema import Schema


def rows_of(table: IcebergTable, file: DataFile, columns: Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a file of Parquet.

    :param columns: of the table as of the last read
    """
    metadata, kind = table.metadata, columns.as_struct()
    partition = {
        field.source_id: file.partition[position]
        for position, field in enumerate(metadata.specs()[file.spec_id].fields)
        if isinstance(field.transform, IdentityTransform)
    }
    with table.io.new_input(file.file_path).open() as opened, opened_parquet(cast("BinaryIO", opened)) as parquet:
        schema = pyarrow_to_schema(parquet.schema_arrow, metadata.name_mapping(), downcast_ns_timestamp_to_us=True)
        by_id = {field.field_id: field for field in schema.fields}
        file_columns = [by_id[field.field_id].name for field in kind.fields if field.field_id in by_id]
        for batch in parquet.iter_batches(columns=file_columns):
            values = [
                as_now(batch.column(by_id[field.field_id].name), field.field_type, by_id[field.field_id].field_type)
                if field.field_id in by_id
                else _repeated(partition.get(field.field_id), field.field_type, batch.num_rows)
                for field in kind.fields
            ]
            yield pa.RecordBatch.from_arrays(values, names=[field.name for field in kind.fields])


def as_now(values: pa.Array, kind: IcebergType, was: IcebergType) -> pa.Array:
    """Return values of a file in the type that the table has for them now.

    :param was: the type in the file
    """
    if isinstance(kind, StructType) and isinstance(was, StructType):
        positions = {field.field_id: position for position, field in enumerate(was.fields)}
        parts = [
            as_now(values.field(position), field.field_type, was.fields[position].field_type)
            if (position := positions.get(field.field_id)) is not None
            else _repeated(None, field.field_type, len(values))
            for field in kind.fields
        ]
        names = [field.name for field in kind.fields]
        return pa.StructArray.from_arrays(parts, names=names, mask=values.is_null())
    if isinstance(kind, ListType) and isinstance(was, ListType):
        values = _by_offsets(values)
        elements = as_now(values.values, kind.element_type, was.element_type)
        list_type = pa.large_list if pa.types.is_large_list(values.type) else pa.list_
        return _with_parts(elements, values, list_type(elements.type))
    if isinstance(kind, MapType) and isinstance(was, MapType):
        keys, items = (
            as_now(values.keys, kind.key_type, was.key_type),
            as_now(values.items, kind.value_type, was.value_type),
        )
        fields = [pa.field("key", keys.type, nullable=False), pa.field("value", items.type)]
        return _with_parts(pa.StructArray.from_arrays([keys, items], fields=fields), values, pa.map_(*fields))
    return values.cast(schema_to_pyarrow(kind, include_field_ids=False))


def _by_offsets(values: pa.Array) -> pa.Array:
    """Return arrays of one length, or views, as lists: Arrow reads them back as the types that it wrote."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return values
    ends = pc.cumulative_sum(pc.fill_null(values.value_lengths(), 0))
    array_class = pa.LargeListArray if pa.types.is_large_list_view(values.type) else pa.ListArray
    offsets = pa.concat_arrays([pa.array([0], ends.type), ends])
    return array_class.from_arrays(offsets, values.flatten(), mask=values.is_null())  # a cast of views is not valid


def _with_parts(parts: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return arrays or maps with other parts: the same of them are null, and the same are empty."""
    return pa.Array.from_buffers(kind, len(values), values.buffers()[:2], offset=values.offset, children=[parts])


def _repeated(value: Any, kind: IcebergType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, schema_to_pyarrow(kind, include_field_ids=False)), count)

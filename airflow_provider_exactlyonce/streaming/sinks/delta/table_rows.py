"""Rows of a file of the table, in the table's columns."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa


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

"""The rows of a table's files, as Spark takes them; a conversion that would change values is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from airflow_provider_exactlyonce.exceptions import BadRecordError, DataLostError, TableChangedError
from airflow_provider_exactlyonce.tables.parquet_columns import columns_of, opened_parquet
from airflow_provider_exactlyonce.tables.table_log import TableFile, TableStore

_BATCH_ROWS: Final = 10_000
_FIELD_ID: Final = b"PARQUET:field_id"
_OF_PARTS: Final = (dict, list, tuple)  # a type with others in it
#: What a field of an Iceberg table may become, in Spark's words and in Arrow's; decimals get more digits.
_WIDENED: Final = {("integer", "long"), ("float", "double"), (pa.int32(), pa.int64()), (pa.float32(), pa.float64())}
_DECIMAL: Final = re.compile(r"decimal\w*\((\d+), ?(\d+)\)")


@dataclass(frozen=True)
class FilePart:
    """A part of a file's row groups: number ``part`` of ``parts``."""

    file: TableFile
    part: int
    parts: int


def mismatch(columns: StructType, table: str, *, needs_all: bool, may_widen: bool = False) -> str | None:
    """Return why columns can't be read from a table, None when they can.

    :param columns: that are read
    :param table: the table's columns, as Spark writes a schema
    :param needs_all: the table has to have all of them; else those that it lacks are null
    :param may_widen: the table's may be of before they were widened to what is read
    """
    table_columns: dict[str, Any] = {field["name"]: field["type"] for field in json.loads(table)["fields"]}
    for column in columns:
        if column.name not in table_columns:
            if needs_all or not column.nullable:
                return f"it has no column {column.name!r}, its columns are {', '.join(table_columns)}"
            continue
        kind, wanted = _plain(table_columns[column.name]), _plain(json.loads(column.dataType.json()))
        if kind != wanted and not (may_widen and _is_widened(kind, wanted)):
            return f"its column {column.name!r} is {_text(kind)}, and {_text(wanted)} is declared"
    return None


def rows(
    table: str, part: FilePart, store: TableStore, columns: StructType, field_ids: Mapping[str, int]
) -> Iterator[pa.RecordBatch]:
    """Yield a part's rows.

    :param table: its name, for messages
    :param columns: that are read
    :param field_ids: of columns and their parts, where files have them
    :raises DataLostError: when the file is gone, or is another one
    :raises TableChangedError: when a column has another type
    :raises BadRecordError: when a required column has nulls
    """
    file, schema = part.file, to_arrow_schema(columns, timezone="UTC")
    label = f"file {file.path} of table {table}"
    try:
        opened = store.open(file.path)
    except FileNotFoundError as error:
        raise DataLostError(
            f"{label} is gone: it was compacted and vacuumed before it was read, or deleted. Put it back, or begin a "
            "new pipeline behind it; keep the table's old files longer than a pipeline may stand still"
        ) from error
    with opened, opened_parquet(opened) as parquet:
        if file.rows is not None and parquet.metadata.num_rows != file.rows:
            raise DataLostError(f"{label} has {parquet.metadata.num_rows:,} rows, and the table says {file.rows:,}")
        groups = parquet.metadata.num_row_groups
        row_groups = list(range(groups * part.part // part.parts, groups * (part.part + 1) // part.parts))
        names = _names(parquet, schema, field_ids, label)
        file_schema = columns_of(parquet)
        for batch in parquet.iter_batches(
            batch_size=_BATCH_ROWS, row_groups=row_groups, columns=sorted({name for name in names.values() if name})
        ):
            arrays = []
            for wanted in schema:
                name = names[wanted.name]
                if name is not None:
                    values = _as_read(
                        batch.column(name), file_schema.field(name).type, wanted, label, may_widen=bool(field_ids)
                    )
                else:
                    text = file.partition.get(wanted.name)
                    values = _repeated(text, wanted, batch.num_rows, label)
                if not wanted.nullable and values.null_count:
                    raise BadRecordError(f"{label}: the required column {wanted.name!r} has nulls")
                arrays.append(values)
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _names(
    parquet: pq.ParquetFile, schema: pa.Schema, field_ids: Mapping[str, int], label: str
) -> dict[str, str | None]:
    """Return which of the file's columns is which, None for one that it lacks."""
    file_schema = parquet.schema_arrow
    if not field_ids:
        return {name: name if name in file_schema.names else None for name in schema.names}
    by_id = {_id(field): field.name for field in file_schema}
    if set(by_id) == {-1}:
        raise TableChangedError(f"{label} has no ids of its columns, as files that others have added: it can't be read")
    names = {name: by_id.get(field_ids.get(name, -2)) for name in schema.names}
    for wanted, name in names.items():
        for path, part in _parts(file_schema.field(name), wanted) if name is not None else ():
            if path in field_ids and _id(part) not in (field_ids[path], -1):
                raise TableChangedError(
                    f"{label} has another field with the name {path!r} than the table has now, which was dropped or "
                    f"renamed since: leave column {wanted!r} out, or begin a new pipeline behind the file, with "
                    "starting_version"
                )
    return names


def _id(field: pa.Field) -> int:
    return int((field.metadata or {}).get(_FIELD_ID, -1))


def _parts(field: pa.Field, path: str) -> Iterator[tuple[str, pa.Field]]:
    """Yield the parts of a column's values, by their names in Iceberg."""
    kind, parts = field.type, dict[str, pa.Field]()
    if pa.types.is_struct(kind):
        parts = {part.name: part for part in kind}
    elif pa.types.is_map(kind):
        parts = {"key": kind.key_field, "value": kind.item_field}
    elif pa.types.is_nested(kind):
        parts = {"element": kind.value_field}
    for name, part in parts.items():
        yield f"{path}.{name}", part
        yield from _parts(part, f"{path}.{name}")


def _as_read(values: pa.Array, kind: pa.DataType, wanted: pa.Field, label: str, *, may_widen: bool) -> pa.Array:
    """Return values in Spark's type for them, if that fits.

    :param kind: their type
    :param may_widen: they may be older than a widening of their field, which the table knows by its id
    """
    if values.type == wanted.type:
        return values
    found, expected = _normal(kind), _normal(wanted.type)
    if found != expected and not (may_widen and _is_widened(found, expected)):
        raise TableChangedError(f"{label}: column {wanted.name!r} is {kind}, and {wanted.type} is declared")
    try:
        return values.cast(wanted.type)
    except pa.ArrowInvalid as error:
        raise BadRecordError(f"{label}: column {wanted.name!r} does not fit {wanted.type}: {error}") from error


def _repeated(text: str | None, wanted: pa.Field, count: int, label: str) -> pa.Array:
    """Return the value that all rows of a file have in a column of the partition, or nulls."""
    if text is None:
        return pa.nulls(count, wanted.type)
    if pa.types.is_timestamp(wanted.type) and wanted.type.tz is not None and not text.endswith("Z"):
        raise TableChangedError(
            f"{label} is of partition {wanted.name}={text!r}, a time without a zone, which writers mean otherwise: "
            "leave the column out"
        )
    if pa.types.is_binary(wanted.type):
        raise TableChangedError(
            f"{label} is of partition {wanted.name}={text!r}, bytes, which writers mean otherwise: leave the column out"
        )
    try:
        return pa.repeat(pa.scalar(text).cast(wanted.type), count)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise TableChangedError(f"{label} is of partition {wanted.name}={text!r}, no {wanted.type}: {error}") from error


def _normal(kind: pa.DataType) -> Any:
    """Return a type without the distinctions that make no difference to its values."""
    types = pa.types
    if types.is_dictionary(kind):
        return _normal(kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind):
        return pa.string()
    if types.is_large_binary(kind) or types.is_binary_view(kind) or types.is_fixed_size_binary(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return "instant" if kind.tz is not None else "local time"
    if types.is_map(kind):
        return "map", _normal(kind.key_type), _normal(kind.item_type)
    if types.is_list(kind) or types.is_large_list(kind):
        return "list", _normal(kind.value_type)
    if types.is_struct(kind):
        return "struct", *((field.name, _normal(field.type)) for field in kind)
    return kind


def _is_widened(kind: Any, wanted: Any) -> bool:
    """Tell whether a type, with its parts, is the wanted one or may have become it without a change of values.

    :param kind: as :func:`_normal` or :func:`_plain` return it
    """
    if isinstance(kind, dict) and isinstance(wanted, dict):
        kind, wanted = list(kind.items()), list(wanted.items())
    if isinstance(kind, tuple) and isinstance(wanted, tuple):  # the first is a name, and no type
        return kind[0] == wanted[0] and _is_widened(list(kind[1:]), list(wanted[1:]))
    if isinstance(kind, list) and isinstance(wanted, list):
        return len(kind) == len(wanted) and all(map(_is_widened, kind, wanted))
    if kind == wanted:
        return True
    if isinstance(kind, _OF_PARTS) or isinstance(wanted, _OF_PARTS):
        return False
    if (kind, wanted) in _WIDENED:
        return True
    old, new = _DECIMAL.fullmatch(str(kind)), _DECIMAL.fullmatch(str(wanted))
    return old is not None and new is not None and old[2] == new[2] and int(old[1]) <= int(new[1])


def _plain(kind: Any) -> Any:
    """Return a type as Spark writes it, without metadata and nullability."""
    if not isinstance(kind, dict):
        return kind
    parts = {name: _plain(kind[name]) for name in ("elementType", "keyType", "valueType") if name in kind}
    if "fields" in kind:
        parts["fields"] = [(field["name"], _plain(field["type"])) for field in kind["fields"]]
    return {"type": kind["type"], **parts}


def _text(kind: Any) -> str:
    return kind if isinstance(kind, str) else json.dumps(kind)

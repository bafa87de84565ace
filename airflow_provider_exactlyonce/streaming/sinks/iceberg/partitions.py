"""The partitioning of a table: as it is declared, as Iceberg has it, and each row's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.transforms import BucketTransform, Transform, TruncateTransform, VoidTransform, parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DecimalType, StringType

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import paths
from airflow_provider_exactlyonce.streaming.sinks.lakehouse.keys import plain

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType
    from pyspark.sql.types import StructType

    from airflow_provider_exactlyonce.streaming.sinks.iceberg.schema import NewColumn

_IDENTITY: Final = "identity"
_BUCKET: Final = "bucket"
_TRUNCATE: Final = "truncate"
_TRANSFORMED_COLUMN: Final = re.compile(r"(\w+)\((?:(\d+) *, *)?(.+)\)")
_NUMBERS: Final = ("tinyint", "smallint", "int", "bigint", "decimal")
_BY_VALUE: Final = ("string", "char", "varchar", "tinyint", "smallint", "int", "bigint", "boolean", "date", "decimal")
_MONTHS: Final = 12
_EPOCH_YEAR: Final = 1970


def _hours(values: pa.Array) -> pa.Array:
    return pc.hours_between(pa.scalar(0, values.type), values)


def _days(values: pa.Array) -> pa.Array:
    return pc.days_between(pa.scalar(0, values.type), values)


def _months(values: pa.Array) -> pa.Array:
    return pc.add(pc.multiply(_years(values), _MONTHS), pc.subtract(pc.month(values), 1))


def _years(values: pa.Array) -> pa.Array:
    return pc.subtract(pc.year(values), _EPOCH_YEAR)


_TRANSFORMS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    _IDENTITY: plain,
    "year": _years,
    "month": _months,
    "day": _days,
    "hour": _hours,
}
_TIMES: Final = ("timestamp", "timestamp_ntz")
#: The types of columns that each transform takes.
_ACCEPTED: Final[Mapping[str, tuple[str, ...]]] = {
    _IDENTITY: _BY_VALUE,
    **dict.fromkeys(("year", "month", "day"), ("date", *_TIMES)),
    "hour": _TIMES,
    _BUCKET: (*_NUMBERS, "string", "date", *_TIMES),
    _TRUNCATE: (*_NUMBERS, "string"),
}
#: How the fields of a new table end that are not called as their transform, as every other writer of Iceberg has it.
_SUFFIXES: Final = {_TRUNCATE: "trunc"}


@dataclass(frozen=True)
class _Declared:
    """One thing that a table is partitioned by.

    :param kind: of the transform
    :param width: its number, None for one that has none
    """

    kind: str
    width: int | None
    column: str

    @classmethod
    def parsed(cls, text: str) -> _Declared:
        """Read a user's declaration."""
        match = _TRANSFORMED_COLUMN.fullmatch(text)
        if match is None:
            return cls(_IDENTITY, None, text)
        kind, width, column = match.groups()
        return cls(kind, int(width) if width else None, column)

    @classmethod
    def of(cls, field: PartitionField, schema: Schema) -> _Declared:
        """Return the declaration of a table's part."""
        kind, _, width = str(field.transform).removesuffix("]").partition("[")
        return cls(kind, int(width) if width else None, str(schema.find_column_name(field.source_id)))

    @property
    def transform(self) -> str:
        """The transform, as pyiceberg writes it."""
        return self.kind if self.width is None else f"{self.kind}[{self.width}]"

    def __str__(self) -> str:
        """Return the text of the declaration."""
        if self.kind == _IDENTITY:
            return self.column
        return f"{self.kind}({self.column})" if self.width is None else f"{self.kind}({self.width}, {self.column})"


def check_declared(columns: StructType, partition_by: Sequence[str], where: str) -> None:
    """Check that rows have the columns of the declared partitioning.

    :param where: the sink, for messages
    :raises RefusedError: naming the declaration, and the column's type
    """
    kinds = {field.name: field.dataType.simpleString() for field in columns.fields}
    for declared in partition_by:
        field = _Declared.parsed(declared)
        kind, column = field.kind, field.column
        if kind not in _ACCEPTED or (field.width is not None) != (kind in (_BUCKET, _TRUNCATE)) or field.width == 0:
            raise RefusedError(
                f"{where}: partition_by={declared!r}: a column; year, month, day or hour of one; bucket(16, column) or "
                "truncate(16, column), with any number from 1"
            )
        if column not in kinds:
            raise RefusedError(f"{where}: partition_by names {column!r}; the columns are {', '.join(kinds)}")
        accepted = _ACCEPTED[kind]
        if kinds[column].partition("(")[0] not in accepted:
            raise RefusedError(
                f"{where}: partition_by={declared!r}: column {column!r} is {kinds[column]}; accepted are "
                f"{', '.join(accepted)}"
            )


def new_spec(partition_by: Sequence[str], schema: Schema, where: str) -> PartitionSpec:
    """Return the spec of a new table.

    :param where: sink and table, for messages
    :raises RefusedError: when a part of it would have the name of a column, or of another part
    """
    fields: list[PartitionField] = []
    for number, declared in enumerate(partition_by):
        field = _Declared.parsed(declared)
        suffix = "" if field.kind == _IDENTITY else f"_{_SUFFIXES.get(field.kind, field.kind)}"
        name = f"{_plain_name(field.column)}{suffix}"
        if name in [other.name for other in fields] or (name != field.column and name in schema.column_names):
            raise RefusedError(
                f"{where}: partition_by={declared!r} would have the name {name!r} in the table, which a column or "
                "another part of partition_by has: rename the column, or leave one out"
            )
        fields.append(
            PartitionField(
                source_id=schema.find_field(field.column).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parse_transform(field.transform),
                name=name,
            )
        )
    return PartitionSpec(*fields)


def _plain_name(column: str) -> str:
    """Return a column's name for a field of Avro's, in ASCII: not all readers of manifests take other letters."""
    return "".join(letter if letter.isascii() else f"_x{ord(letter):X}" for letter in column)


def live_fields(spec: PartitionSpec) -> list[PartitionField]:
    """Return the parts of a table's partitioning, without the dropped parts that a table of version 1 still lists.

    Each partition has a null for a dropped part.
    """
    return [field for field in spec.fields if not _is_dropped(field)]


def _is_dropped(field: PartitionField) -> bool:
    return isinstance(field.transform, VoidTransform)


def first_dropped(spec: PartitionSpec, schema: Schema) -> PartitionField | None:
    """Return a part without a column in the table, if there is one: pyiceberg can't write manifests then."""
    return next((field for field in spec.fields if schema.find_column_name(field.source_id) is None), None)


def check_spec(spec: PartitionSpec, schema: Schema, partition_by: Sequence[str], where: str) -> None:
    """Check that a table is partitioned as the sink declares.

    :param where: sink and table, for messages
    :raises RefusedError: naming both, or a part that has no column any more
    """
    if (dropped := first_dropped(spec, schema)) is not None:
        raise RefusedError(
            f"{where} still has {dropped.name!r} in its partitioning, a part whose column was dropped, and this sink "
            f"can't write its type: ALTER TABLE … DROP PARTITION FIELD {dropped.name}"
        )
    actual = [_Declared.of(field, schema) for field in live_fields(spec)]
    if actual != list(map(_Declared.parsed, partition_by)):
        raise RefusedError(
            f"{where} is partitioned by {list(map(str, actual))}, and the sink declares partition_by="
            f"{list(partition_by)}: declare the table's"
        )


def check_new_columns(table: TableMetadata, columns: Sequence[NewColumn], where: str) -> None:
    """Check that no column that a table is to get has the name of a part of its partitioning, of before either.

    :param where: sink and table, for messages
    :raises RefusedError: naming both
    """
    parts = {field.name: field for spec in table.specs().values() for field in spec.fields}
    for column in columns:
        for path in filter(parts.__contains__, paths(column.name, column.type)):
            part = _Declared.of(parts[path], table.schema())
            shown = "a part" if table.schema().find_column_name(parts[path].source_id) is None else str(part)
            raise RefusedError(
                f"{where} lacks the column {column.name!r}, and it can't be added: {path!r} is the name of {shown} in "
                "what the table is or was partitioned by. Rename the column"
            )


class Partitioning:
    """How rows of a table are partitioned.

    :param spec: the table's
    :param columns: those of the table that the rows have
    """

    def __init__(self, spec: PartitionSpec, columns: Schema) -> None:
        self._spec: Final = spec
        self._columns: Final = columns
        self._fields: Final = live_fields(spec)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the partition's values."""
        return tuple(field.name for field in self._fields)

    def values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the values of each row, a column each.

        :raises RecordRefusedError: when a number's part is one that its type has no room for
        """
        columns = [self._columns.find_column_name(field.source_id) for field in self._fields]
        arrays = [
            _transformed(rows[column], field.transform, self._columns.find_type(field.source_id), column)
            for field, column in zip(self._fields, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.names))

    def records(self, rows: pa.RecordBatch) -> set[Record]:
        """Return the partitions of rows, as Iceberg has them."""
        texts = {name: pc.cast(values, pa.string()) for name, values in zip(self.names, self.values(rows), strict=True)}
        if not texts:
            return {self.record({})}
        distinct = pa.table(texts).group_by(list(self.names)).aggregate([])
        return {self.record(partition) for partition in distinct.to_pylist()}

    def record(self, texts: Mapping[str, str | None]) -> Record:
        """Return a partition as Iceberg has it.

        :param texts: its values, as Arrow writes them
        """
        return Record(*(None if _is_dropped(field) else self._value(field, texts) for field in self._spec.fields))

    def _value(self, field: PartitionField, texts: Mapping[str, str | None]) -> Any:
        return _value(texts[field.name], field.transform.result_type(self._columns.find_type(field.source_id)))


def _transformed(values: pa.Array, transform: Transform[Any, Any], source: IcebergType, column: str | None) -> pa.Array:
    if not isinstance(transform, BucketTransform | TruncateTransform):
        return _TRANSFORMS[str(transform)](values)
    # Pyiceberg knows each value's bucket; each different value is asked for once.
    encoded = plain(values).dictionary_encode()
    compute, kind = transform.transform(source), schema_to_pyarrow(transform.result_type(source))
    given = encoded.dictionary.to_pylist()
    results = [compute(value) for value in given]
    try:
        return pa.array(results, kind).take(encoded.indices)
    except (pa.ArrowInvalid, OverflowError):
        beyond = min(value for value in given if value is not None)
        raise RecordRefusedError(
            f"column {column} is {beyond}, which {transform} cuts to a number that its type has no room for: partition "
            "by another column, or replace the value"
        ) from None


def _value(text: str | None, kind: Any) -> Any:
    if text is None or isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        return text == "true"
    return Decimal(text) if isinstance(kind, DecimalType) else int(text)

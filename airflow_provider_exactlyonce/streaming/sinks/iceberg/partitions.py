"""What a table is partitioned by: as it is declared, as Iceberg has it, and each row's values."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import BooleanType, DecimalType, StringType

from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyiceberg.schema import Schema
    from pyspark.sql.types import StructType

_IDENTITY: Final = "identity"
_OF_COLUMN: Final = re.compile(r"(\w+)\((.+)\)")
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


def _same(values: pa.Array) -> pa.Array:
    return values.cast(pa.int32()) if pa.types.is_date32(values.type) else values


_TRANSFORMS: Final[Mapping[str, Callable[[pa.Array], pa.Array]]] = {
    _IDENTITY: _same,
    "year": _years,
    "month": _months,
    "day": _days,
    "hour": _hours,
}
_OF_TIME: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("year", "month", "day"), ("date", "timestamp", "timestamp_ntz")),
    "hour": ("timestamp", "timestamp_ntz"),
}


def check_declared(columns: StructType, partition_by: Sequence[str], where: str) -> None:
    """Check that rows have what they are to be partitioned by.

    :param where: the sink, for messages
    :raises RefusedError: naming what is declared, and the column's type
    """
    kinds = {field.name: field.dataType.simpleString() for field in columns.fields}
    for declared in partition_by:
        transform, column = _parsed(declared)
        if column not in kinds:
            raise RefusedError(f"{where}: partition_by names {column!r}; the columns are {', '.join(kinds)}")
        if transform not in _TRANSFORMS:
            raise RefusedError(
                f"{where}: partition_by={declared!r}: a column, or year, month, day or hour of one; {transform} is not "
                "computed by this sink"
            )
        accepted = _OF_TIME.get(transform, _BY_VALUE)
        if kinds[column].partition("(")[0] not in accepted:
            raise RefusedError(
                f"{where}: partition_by={declared!r}: column {column!r} is {kinds[column]}; accepted are "
                f"{', '.join(accepted)}"
            )


def new_spec(partition_by: Sequence[str], schema: Schema) -> PartitionSpec:
    """Return the spec of a new table."""
    fields = []
    for number, declared in enumerate(partition_by):
        transform, column = _parsed(declared)
        fields.append(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=PARTITION_FIELD_ID_START + number,
                transform=parse_transform(transform),
                name=column if transform == _IDENTITY else f"{column}_{transform}",
            )
        )
    return PartitionSpec(*fields)


def check_spec(spec: PartitionSpec, schema: Schema, partition_by: Sequence[str], where: str) -> None:
    """Check that a table is partitioned by what the sink declares.

    :param where: sink and table, for messages
    :raises RefusedError: naming both
    """
    has = [
        name if str(field.transform) == _IDENTITY else f"{field.transform}({name})"
        for field in spec.fields
        for name in [schema.find_column_name(field.source_id)]
    ]
    if has != list(partition_by):
        raise RefusedError(
            f"{where} is partitioned by {has}, and the sink declares partition_by={list(partition_by)}: declare the "
            "table's, in which this sink computes columns, and year, month, day and hour of one"
        )


class Partitioning:
    """How rows of a table are partitioned.

    :param columns: those of the table that the rows have
    """

    def __init__(self, spec: PartitionSpec, columns: Schema) -> None:
        self._fields: Final = spec.fields
        self._columns: Final = columns

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the partition's values."""
        return tuple(field.name for field in self._fields)

    def values(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the values of each row, a column each."""
        columns = [self._columns.find_column_name(field.source_id) for field in self._fields]
        arrays = [
            _TRANSFORMS[str(field.transform)](rows[column]) for field, column in zip(self._fields, columns, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, names=list(self.names))

    def record(self, texts: Mapping[str, str | None]) -> Record:
        """Return a partition as Iceberg has it.

        :param texts: its values, as Arrow writes them
        """
        values = []
        for field in self._fields:
            source = self._columns.find_type(field.source_id)
            values.append(_value(texts[field.name], field.transform.result_type(source)))
        return Record(*values)


def _parsed(declared: str) -> tuple[str, str]:
    """Return transform and column."""
    match = _OF_COLUMN.fullmatch(declared)
    return (match[1], match[2]) if match else (_IDENTITY, declared)


def _value(text: str | None, kind: Any) -> Any:
    if text is None or isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        return text == "true"
    return Decimal(text) if isinstance(kind, DecimalType) else int(text)

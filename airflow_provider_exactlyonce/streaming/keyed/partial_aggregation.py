"""Aggregates a task's rows in Python before they are shuffled, so that as many rows are shuffled as it has keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from airflow_provider_exactlyonce.exceptions import StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.aggregation import Aggregation
from airflow_provider_exactlyonce.state.record import record_maker
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Keys that a task holds; when there are more, they are passed on and it begins again.
_KEYS_HELD: Final = 100_000
_PREFIX: Final = "_exactlyonce_"


def combined(frame: DataFrame, key: Sequence[str], aggregation: Aggregation) -> DataFrame:
    """Return a row for each key and task: the key and an accumulator.

    :param frame: the stream
    :param key: the key's columns
    :param aggregation: with a ``merge``
    """
    fields = _fields(StateType(aggregation.accumulator))
    schema = StructType([frame.schema[name] for name in key] + fields)
    types = list(to_arrow_schema(StructType(fields), timezone="UTC"))
    return frame.mapInArrow(_Combining(tuple(frame.columns), tuple(key), aggregation, types), schema)


def accumulator_of(aggregation: Aggregation, key: Sequence[str]) -> Callable[[Any], Any]:
    """Return a getter of the accumulator in such a row."""
    state_type, key_length = StateType(aggregation.accumulator), len(key)
    return lambda row: state_type.unpack(row[key_length:])


def _fields(state_type: StateType) -> list[StructField]:
    """Return the columns that hold an accumulator; their names are no column's of the key."""
    parsed = cast("StructType", StructType.fromDDL(state_type.ddl))
    return [StructField(f"{_PREFIX}{number}", field.dataType) for number, field in enumerate(parsed.fields)]


class _Combining:
    """A task's function over its Arrow batches."""

    def __init__(
        self, columns: Sequence[str], key: Sequence[str], aggregation: Aggregation, types: Sequence[pa.Field]
    ) -> None:
        self._columns = columns
        self._key = key
        self._aggregation = aggregation
        self._types = types

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        record, key_indexes = record_maker(tuple(self._columns)), [self._columns.index(name) for name in self._key]
        create, add = self._aggregation.create, self._aggregation.add
        accumulators: dict[tuple[Any, ...], Any] = {}
        schema = None
        for batch in batches:
            schema = batch.schema
            for row in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                key = tuple([row[index] for index in key_indexes])
                accumulators[key] = add(accumulators[key] if key in accumulators else create(), record(row))
            if len(accumulators) > _KEYS_HELD:
                yield self._batch(schema, accumulators)
                accumulators = {}
        if schema is not None and accumulators:
            yield self._batch(schema, accumulators)

    def _batch(self, schema: pa.Schema, accumulators: Mapping[tuple[Any, ...], Any]) -> pa.RecordBatch:
        state_type = StateType(self._aggregation.accumulator)
        try:
            rows = [state_type.pack(state_type.coerce(accumulator)) for accumulator in accumulators.values()]
        except values.TypeMismatchError as error:
            raise StateValueError(mark(StateValueError, f"accumulator: {error}")) from None
        kinds = [field.type for field in state_type.type.fields] if state_type.is_row else [state_type.type]
        fields = [*(schema.field(name) for name in self._key), *self._types]
        columns = [*zip(*accumulators, strict=True)]
        for kind, column in zip(kinds, zip(*rows, strict=True), strict=True):
            convert = values.to_arrow(kind)
            columns.append(column if convert is None else [convert(value) for value in column])  # type: ignore[arg-type]
        arrays = [pa.array(column, field.type) for column, field in zip(columns, fields, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, names=[field.name for field in fields])

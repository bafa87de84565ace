"""Reads the rows of state into plain values, with Spark's own reader."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce import moments
from airflow_provider_exactlyonce.checkpoint.state import StatefulOperator
from airflow_provider_exactlyonce.checkpoint.state_reader import cause, read_view, views
from airflow_provider_exactlyonce.exceptions import RefusedError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_time: Final = partial(moments.text, timespec="milliseconds")
_KEY: Final = "key"
_PARTITION: Final = "partition_id"
_EXPIRES: Final = "ttlExpirationMs"
#: Spark's columns besides the key, and what is before their fields' names here.
_VALUES: Final[Mapping[str, str]] = {
    "value": "",
    "list_element": "",
    "user_map_key": "map key",
    "user_map_value": "map value",
}

Plain = Callable[[Any], Any]


@dataclass(frozen=True, kw_only=True)
class StateRequest:
    """Which rows of a checkpoint's state.

    :param operator: its number, or a part of its name; None for all operators
    :param store: a state variable, ``timers``, or a store of Spark's; None for all
    :param key: {column of the key: its value as text}; a part of a struct as ``window.start``
    :param limit: how many rows of each store at most
    """

    operator: str | None = None
    store: str | None = None
    key: Mapping[str, str]
    limit: int


@dataclass(frozen=True, kw_only=True)
class StoreRows:
    """The rows of one store.

    :param kind: of a state variable, such as ``ListState``; None for a store of Spark's own operators
    :param rows: one a key; of a ``ListState`` one an element, of a ``MapState`` one an entry
    :param more: there are more than were asked for
    """

    operator: StatefulOperator
    store: str
    kind: str | None
    rows: Sequence[Mapping[str, Any]]
    more: bool


def read_rows(
    spark: SparkSession,
    checkpoint: Path,
    batch: int,
    operators: Sequence[StatefulOperator],
    request: StateRequest,
    *,
    state_format: int,
) -> Iterator[StoreRows]:
    """Yield the rows of each store that is asked for, as of a batch.

    :param checkpoint: the paths in its state's metadata must be its own
    :param state_format: Spark's checkpoint format of the state, 1 or 2
    :raises RefusedError: when there is no such operator, store or key, or Spark can't read it
    """
    from pyspark.errors import PySparkException

    spark.conf.set("spark.sql.session.timeZone", "UTC")
    chosen = [
        (operator, store, kind, options)
        for operator in _operators(operators, request.operator)
        for store, kind, options in views(operator)
    ]
    if not chosen:
        raise RefusedError("the pipeline keeps no state")
    requested = [view for view in chosen if request.store in (None, view[1])]
    if not requested:
        known = ", ".join(dict.fromkeys(store for _, store, *_ in chosen))
        raise RefusedError(f"there is no store {request.store!r}; there are: {known}")
    for operator, store, kind, options in requested:
        try:
            frame = read_view(spark, checkpoint, batch, operator, options, state_format=state_format)
            spark_rows = _rows_with_key(frame, request.key).limit(request.limit + 1).collect()
        except PySparkException as error:
            raise RefusedError(
                f"operator {operator.id} ({operator.name}), {store}, as of batch {batch} in {checkpoint}: Spark can't "
                f"read it: {cause(error)}"
            ) from error
        columns = _columns(frame.schema)
        rows = [{name: value_of(row) for name, value_of in columns.items()} for row in spark_rows[: request.limit]]
        more = len(spark_rows) > request.limit
        yield StoreRows(operator=operator, store=store, kind=kind, rows=rows, more=more)


def _operators(operators: Sequence[StatefulOperator], wanted: str | None) -> Sequence[StatefulOperator]:
    if wanted is None:
        return operators
    named = [
        operator
        for operator in operators
        if wanted == str(operator.id) or (not wanted.isdecimal() and wanted in operator.name)
    ]
    if not named:
        known = ", ".join(f"{operator.id} ({operator.name})" for operator in operators) or "none"
        raise RefusedError(f"there is no operator {wanted!r} with state; there are: {known}")
    return named


def _rows_with_key(frame: DataFrame, key: Mapping[str, str]) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as F

    for name, value in key.items():
        path = ".".join(f"`{part}`" for part in (_KEY, *name.split(".")))
        try:
            frame = frame.where(F.col(path).cast("string") == value)
        except AnalysisException as error:
            known = ", ".join(frame.schema[_KEY].dataType.fieldNames())  # type: ignore[attr-defined]
            raise RefusedError(f"{name!r} is no column of the key; there are: {known}") from error
    return frame


def _columns(schema: StructType) -> dict[str, Plain]:
    """Return a getter for each column of a table of the reader's rows: the key first, the state partition last."""
    from pyspark.sql.types import StructType

    named_columns: list[tuple[str, Plain]] = []
    for position, field in enumerate(schema.fields):
        kind, getter = field.dataType, _field_at(position)
        if field.name == _PARTITION:
            named_columns.append(("partition", getter))
        elif not isinstance(kind, StructType):  # a timer's time
            named_columns.append(("timer", _then(getter, _time)))
        elif field.name == _KEY:
            named_columns += _fields(kind, getter, "")
        else:
            named_columns += _fields(kind, getter, _VALUES.get(field.name, field.name))
    counts: Counter[str] = Counter()
    columns: dict[str, Plain] = {}
    for name, value_of in named_columns:  # Spark gives two sums the same name
        counts[name] += 1
        columns[name if counts[name] == 1 else f"{name} {counts[name]}"] = value_of
    return columns


def _fields(kind: StructType, getter: Plain, name: str) -> Iterator[tuple[str, Plain]]:
    """Yield a column for each field of a struct.

    :param name: of the struct; a state of one value has one field, which is called ``value``
    """
    from pyspark.sql.types import StructType

    for position, field in enumerate(kind.fields):
        field_getter = _then(getter, _field_at(position))
        if field.name == _EXPIRES:
            yield "expires", _then(field_getter, _time)
        elif field.name == "value" and isinstance(field.dataType, StructType) and _EXPIRES in kind.names:
            yield from _fields(field.dataType, field_getter, name)
        elif field.name != "__dummy__":  # dropDuplicates keeps nothing but keys
            column = name if name and kind.names[0] == "value" else f"{name} {field.name}".lstrip()
            yield column, _then(field_getter, plain(field.dataType))


def plain(kind: DataType) -> Plain:
    """Return a converter from a type to JSON's values; decimals become text, as they have more digits."""
    from pyspark.sql.types import ArrayType, MapType, StructType, TimestampType

    if isinstance(kind, TimestampType):  # Spark gives them in the process's own time zone, without saying so
        return lambda value: None if value is None else value.astimezone(UTC).isoformat()
    if isinstance(kind, ArrayType):
        plain_element = plain(kind.elementType)
        return lambda value: None if value is None else [plain_element(part) for part in value]
    if isinstance(kind, MapType):
        plain_key, plain_value = plain(kind.keyType), plain(kind.valueType)
        return lambda value: (
            None
            if value is None
            else {str(plain_key(map_key)): plain_value(map_value) for map_key, map_value in value.items()}
        )
    if isinstance(kind, StructType):
        fields = [(field.name, plain(field.dataType)) for field in kind.fields]
        return lambda value: (
            None
            if value is None
            else {name: convert(part) for (name, convert), part in zip(fields, value, strict=True)}
        )
    return _simple


def _simple(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes | bytearray):
        return value.hex()
    return value.isoformat() if isinstance(value, date) else str(value)


def _field_at(position: int) -> Plain:
    return lambda row: None if row is None else row[position]


def _then(first: Plain, second: Plain) -> Plain:
    return lambda row: None if (value := first(row)) is None else second(value)

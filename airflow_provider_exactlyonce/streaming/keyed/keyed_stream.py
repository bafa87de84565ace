"""Runs a keyed function on Spark's transformWithState."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from itertools import starmap
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import ArrayType, MapType, Row, StructType, TimestampType

from airflow_provider_exactlyonce.exceptions import ExactlyOnceError, RefusedError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.aggregation import Aggregation, function_of
from airflow_provider_exactlyonce.state.broadcast import COPY
from airflow_provider_exactlyonce.state.function import (
    KeyedProcessFunction,
    TimeMode,
    output_of,
    states_of,
    time_mode_of,
)
from airflow_provider_exactlyonce.state.operator import KeyedOperator
from airflow_provider_exactlyonce.state.record import record_maker
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.streaming.keyed import partial_aggregation
from airflow_provider_exactlyonce.streaming.spark import state_sockets
from airflow_provider_exactlyonce.streaming.spark.typed_errors import marking

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.stateful_processor import (
        ExpiredTimerInfo,
        StatefulProcessorHandle,
        TimerValues,
        ValueState,
    )

    from airflow_provider_exactlyonce.state.stores import ListStore, MapStore

#: By default; a copy is a key of its own, and keys are spread over the state partitions by chance.
COPIES: Final = 4
#: Where Spark notes that a column has a watermark.
_WATERMARK: Final = "spark.watermarkDelayMs"


def key_by(frame: DataFrame, *columns: str) -> KeyedStream:
    """Key a stream: the next step gets the rows of one key together.

    :param frame: the stream, or a batch in a test
    :param columns: of the key
    :raises RefusedError: when there is none, or it is no column of the frame
    """
    unknown = [name for name in columns if name not in frame.columns]
    if unknown or not columns:
        wrong = ", ".join(unknown) or "none given"
        raise RefusedError(f"key_by(): {wrong}; the frame's columns are {', '.join(frame.columns)}")
    for name in columns:
        if isinstance(kind := frame.schema[name].dataType, ArrayType | MapType):
            raise RefusedError(f"key_by(): {name} is {kind.simpleString()}; Python can't look up such a key")
    return KeyedStream(frame, columns)


def spread(frame: DataFrame, *, copies: int = COPIES) -> KeyedStream:
    """Spread a stream without a key over copies of a function, each with state of its own: Flink's operator state.

    When the number of state partitions changes, copies move with their state. A row goes to the copy that its values
    tell, so that it goes to the same one when its batch is run again.

    :param frame: the stream, or a batch in a test
    :param copies: at least as many as cores are to work on it; it must never change
    :raises RefusedError: when there is no copy
    """
    return KeyedStream(frame.withColumn(COPY, copy_of(frame, copies)), (COPY,))


def copy_of(frame: DataFrame, copies: int) -> Column:
    """Return the number of the copy that a row goes to.

    :raises RefusedError: when there is no copy
    """
    if copies < 1:
        raise RefusedError(f"copies={copies}: at least 1")
    return F.pmod(F.xxhash64(*(frame[name] for name in frame.columns)), F.lit(copies)).cast("int")


class KeyedStream:
    """A stream with a key; made by :func:`key_by` and :func:`spread`."""

    def __init__(self, frame: DataFrame, columns: Sequence[str]) -> None:
        self._frame = frame
        self._columns = tuple(columns)

    def process(self, function: KeyedProcessFunction[Any, Any]) -> DataFrame:
        """Return a function's output for the stream's rows and its timers.

        :param function: an instance; a copy of it runs for each state partition of each batch
        :raises RefusedError: when the function's declarations are invalid
        """
        for column in (function.event_time, *function.order_by):
            if column is not None and column not in self._frame.columns:
                raise RefusedError(
                    f"{type(function).__name__}: {column} is no column of the stream, which has "
                    f"{', '.join(self._frame.columns)}"
                )
        by_event_time = time_mode_of(function) is TimeMode.EVENT_TIME
        if by_event_time and _WATERMARK not in self._frame.schema[str(function.event_time)].metadata:
            raise RefusedError(
                f"{type(function).__name__} runs by event time, and {function.event_time} has no watermark; say "
                f'.withWatermark("{function.event_time}", "…") before key_by()'
            )
        return _transformed(self._frame, self._columns, function)

    def aggregate(self, *what: str | Aggregation) -> DataFrame:
        """Return each key with the aggregate of its rows, once for each batch that has rows of the key.

        Needs ``output_mode="update"``, as any aggregation without a window.

        :param what: expressions of Spark's SQL with names, such as ``"sum(price) AS paid"``, which Spark aggregates by
            itself; or one aggregation in Python
        :raises RefusedError: when it is neither; when the aggregation has a ``merge``, and the key a struct
        """
        if len(what) == 1 and isinstance(what[0], Aggregation):
            return self._aggregated(what[0])
        expressions = [expression for expression in what if isinstance(expression, str)]
        if not what or len(expressions) < len(what):
            raise RefusedError("aggregate(): one or more expressions of Spark's SQL, or one Aggregation")
        return self._frame.groupBy(*self._columns).agg(*[F.expr(expression) for expression in expressions])

    def _aggregated(self, aggregation: Aggregation) -> DataFrame:
        key = StructType([self._frame.schema[name] for name in self._columns])
        ddl = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in key.fields)
        frame, combined = self._frame, None
        if aggregation.merge is not None:
            _check_looked_up(key)
            frame = partial_aggregation.combined(frame, self._columns, aggregation)
            combined = partial_aggregation.accumulator_of(aggregation, self._columns)
        return _transformed(frame, self._columns, function_of(aggregation, ddl, combined))


def _check_looked_up(key: StructType) -> None:
    """Check that Python can look up a key as Arrow has it, where a struct is a dictionary."""
    for field in key.fields:
        if isinstance(field.dataType, StructType):
            first = field.dataType.fields[0].name if field.dataType.fields else "field"
            raise RefusedError(
                f"aggregate(): {field.name} is {field.dataType.simpleString()}; an Aggregation with merge= can't look "
                f"up such a key. Take its fields for the key, as columns such as {field.name}.{first} AS {first}"
            )


def _transformed(frame: DataFrame, key: Sequence[str], function: KeyedProcessFunction[Any, Any]) -> DataFrame:
    timestamps = {name: isinstance(frame.schema[name].dataType, TimestampType) for name in key}
    processor = _Processor(function, tuple(frame.columns), timestamps, _schemas(function))
    mode = time_mode_of(function)
    # What a function gives out is given out once, whatever the query's own mode.
    return frame.groupBy(*key).transformWithState(processor, _struct(function.output), "append", mode.value)


def _schemas(function: KeyedProcessFunction[Any, Any]) -> Mapping[str, StructType]:
    """Return Spark's type of every declaration; made here, because a Python worker would ask the JVM for it."""
    texts = {state_type.ddl for state in states_of(function).values() for state_type in state.state_types}
    return {text: _struct(text) for text in texts}


def _struct(text: str) -> StructType:
    return cast("StructType", StructType.fromDDL(text))


class _Processor(StatefulProcessor):
    """Spark's interface to a function."""

    def __init__(
        self,
        function: KeyedProcessFunction[Any, Any],
        columns: tuple[str, ...],
        key: Mapping[str, bool],
        schemas: Mapping[str, StructType],
    ) -> None:
        self._function = function
        self._key = key
        self._columns = columns
        self._schemas = schemas

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Open the states; Spark calls it on the driver too, to learn of them."""
        output = output_of(self._function)
        self._row = Row(*(field.name for field in output.fields))
        self._to_arrow = [values.to_arrow(field.type) for field in output.fields]
        # Spark's rows look each attribute up by its name.
        self._record = record_maker(self._columns)
        self._handle = handle
        self._operator = KeyedOperator(self._function, tuple(self._key), _SparkHandle(handle, self._schemas))

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: TimerValues) -> Iterator[Row]:  # noqa: N802, N803
        self._set_clocks(timerValues)
        return self._output_rows(self._operator.rows(key, map(self._record, rows)))

    def handleExpiredTimer(  # noqa: N802
        self,
        key: Any,
        timerValues: TimerValues,  # noqa: N803
        expiredTimerInfo: ExpiredTimerInfo,  # noqa: N803
    ) -> Iterator[Row]:
        """Process all timers of a key at the first of them."""
        self._set_clocks(timerValues)
        # Spark's store gives a timestamp without its zone, in the worker's own; in a row it has one.
        zoned = (
            part.astimezone(dt.UTC) if part is not None and is_timestamp else part
            for part, is_timestamp in zip(key, self._key.values(), strict=True)
        )
        return self._output_rows(self._operator.timers(tuple(zoned)))

    def close(self) -> None:
        self._operator.close()
        state_sockets.leave_open(self._handle)

    def _output_rows(self, rows: Iterator[Any]) -> Iterator[Row]:
        marked = _marked(rows)
        if any(self._to_arrow):
            marked = (
                tuple(
                    [
                        value if convert is None else convert(value)
                        for convert, value in zip(self._to_arrow, row, strict=True)
                    ]
                )
                for row in marked
            )
        return starmap(self._row, marked)

    def _set_clocks(self, times: TimerValues) -> None:
        self._operator.set_clocks(times.getCurrentProcessingTimeInMs(), times.getCurrentWatermarkInMs())


def _marked(rows: Iterator[Any]) -> Iterator[Any]:
    with marking(ExactlyOnceError):
        yield from rows


class _SparkHandle:
    """Spark's stores and timers."""

    def __init__(self, handle: StatefulProcessorHandle, schemas: Mapping[str, StructType]) -> None:
        self._handle = handle
        self._schemas = schemas
        self.list_timers = handle.listTimers
        self.register_timer = handle.registerTimer
        self.delete_timer = handle.deleteTimer

    def value_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> ValueState:
        return self._handle.getValueState(name, self._schemas[state_type.ddl], ttl_milliseconds)

    def list_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> ListStore:
        state = self._handle.getListState(name, self._schemas[state_type.ddl], ttl_milliseconds)
        store = SimpleNamespace(get=state.get, put=state.put, append=state.appendList, clear=state.clear)
        return cast("ListStore", store)

    def map_store(
        self, name: str, key_type: StateType, state_type: StateType, ttl_milliseconds: int | None
    ) -> MapStore:
        schemas = self._schemas[key_type.ddl], self._schemas[state_type.ddl]
        state = self._handle.getMapState(name, *schemas, ttl_milliseconds)
        store = SimpleNamespace(
            get=state.getValue, put=state.updateValue, remove=state.removeKey, items=state.iterator, clear=state.clear
        )
        return cast("MapStore", store)

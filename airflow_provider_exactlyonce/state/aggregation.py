"""An aggregation of a keyed stream in Python: each batch gives a row for every key that it touches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.ddl import parse
from airflow_provider_exactlyonce.state.function import Context, KeyedProcessFunction
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.value_states import AggregatingState


@dataclass(frozen=True, kw_only=True)
class Aggregation:
    """An aggregation of rows, in Python.

    :param accumulator: its type, in Spark's DDL: a type, or fields, whose values are tuples
    :param create: returns an accumulator to which nothing was added
    :param add: returns the accumulator with one row more
    :param merge: makes one accumulator of two. It must not matter in which order and in which groups rows are added and
        accumulators merged: rows are then aggregated before they are shuffled. None if it would
    :param get: returns the accumulator's result: a tuple, or a value if ``output`` is one column
    :param output: the columns of the result, in Spark's DDL
    """

    accumulator: str
    create: Callable[[], Any]
    add: Callable[[Any, Any], Any]
    get: Callable[[Any], Any]
    output: str
    merge: Callable[[Any, Any], Any] | None = None

    def __post_init__(self) -> None:
        StateType(self.accumulator)
        if parse(self.output).name != "STRUCT":
            raise RefusedError(f'Aggregation(output={self.output!r}): name its columns, as in "average DECIMAL(12,2)"')

    @classmethod
    def reducing(cls, column: str, type: str, reduce: Callable[[Any, Any], Any]) -> Self:
        """Return the aggregation that reduces a column's values to one of the same type; nulls are left out.

        :param column: in the stream and in the result
        :param type: of both, in Spark's DDL
        :param reduce: makes one value of two; it must not matter in which order and in which groups it is called
        """

        def merge(first: tuple[Any], other: tuple[Any]) -> tuple[Any]:
            if first[0] is None or other[0] is None:
                return other if first[0] is None else first
            return (reduce(first[0], other[0]),)

        fields = f"`{column}` {type}"
        return cls(
            accumulator=fields,
            create=lambda: (None,),
            add=lambda accumulator, row: merge(accumulator, (row[column],)),
            get=lambda value: value,
            merge=merge,
            output=fields,
        )


def function_of(
    aggregation: Aggregation, key_output: str, combined: Callable[[Any], Any] | None
) -> KeyedProcessFunction[Any, Any]:
    """Return the keyed function that runs an aggregation.

    :param key_output: the key's columns, in Spark's DDL
    :param combined: returns the accumulator that a row holds; None when the rows are the stream's own
    """
    one_column = len(parse(aggregation.output).fields) == 1

    class Aggregating(KeyedProcessFunction[Any, Any]):
        output: ClassVar[str] = f"{key_output}, {aggregation.output}"
        accumulator: AggregatingState[Any, Any, Any] = AggregatingState(
            aggregation.accumulator,
            create=aggregation.create,
            add=aggregation.add,
            get=aggregation.get,
            merge=aggregation.merge,
        )

        def process_element(self, value: Any, context: Context) -> None:
            if combined is None:
                self.accumulator.add(value)
            else:
                self.accumulator.merge(combined(value))

        def finish_batch(self, context: Context) -> Iterator[Any]:
            result: Any = self.accumulator.get()
            if one_column and not isinstance(result, tuple):
                result = (result,)
            yield (*context.key, *result)

    return Aggregating()

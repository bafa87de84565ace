"""Three versions of a keyed function, whose states differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql import DataFrame

from airflow_provider_exactlyonce.state import Context, KeyedProcessFunction, ListState, MapState, ValueState
from airflow_provider_exactlyonce.streaming import key_by


class Totals(KeyedProcessFunction[Any, Any]):
    """Keeps of each key how many events it had, their ids, and how many of each last digit."""

    output = "k STRING, id BIGINT, n BIGINT, largest BIGINT, ids ARRAY<BIGINT>, digits MAP<BIGINT, INT>"
    order_by = ("id",)

    total: ValueState[Any] = ValueState("n INT")
    ids: ListState[Any] = ListState("id BIGINT")
    digits: MapState[int, Any] = MapState("BIGINT", "n INT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        self.ids.add((value.id, *self.more(value)))
        (digit, *_) = self.digits.get(value.id % 10) or (0,)
        self.digits.put(value.id % 10, (digit + 1, *self.more(value)))
        count, largest = self.add(value)
        digits = {key: n for key, (n, *_) in self.digits.items()}
        yield context.key.k, value.id, count, largest, [row[0] for row in self.ids.get()], digits

    def more(self, value: Any) -> Sequence[Any]:
        return ()

    def add(self, value: Any) -> tuple[int, int | None]:
        (count,) = self.total.value() or (0,)
        self.total.update((count + 1,))
        return count + 1, None


class Wider(Totals):
    """Adds a field to each state, and widens the count."""

    total: ValueState[Any] = ValueState("n BIGINT, largest BIGINT")
    ids: ListState[Any] = ListState("id BIGINT, t BIGINT")
    digits: MapState[int, Any] = MapState("BIGINT", "n INT, t BIGINT")

    def more(self, value: Any) -> Sequence[Any]:
        return (value.t,)

    def add(self, value: Any) -> tuple[int, int | None]:
        count, largest = self.total.value() or (0, None)
        largest = max(value.id, largest if largest is not None else -1)
        self.total.update((count + 1, largest))
        return count + 1, largest


class Narrower(Totals):
    total: ValueState[Any] = ValueState("n SMALLINT")


def totals(events: DataFrame) -> DataFrame:
    return key_by(events, "k").process(Totals())


def wider(events: DataFrame) -> DataFrame:
    return key_by(events, "k").process(Wider())


def narrower(events: DataFrame) -> DataFrame:
    return key_by(events, "k").process(Narrower())

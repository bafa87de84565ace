"""Functions for the tests, and a handle that counts what they ask of the stores."""

from __future__ import annotations

import datetime as dt
import operator
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from airflow_provider_exactlyonce.state import (
    AggregatingState,
    Context,
    KeyedProcessFunction,
    ListState,
    MapState,
    ReducingState,
    ValueState,
)
from airflow_provider_exactlyonce.state.memory import Memory


def at(seconds: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(seconds, dt.UTC)


class Everything(KeyedProcessFunction[Any, Any]):
    """Uses every kind of state for every row."""

    output = "k STRING, n BIGINT, total DECIMAL(12,2), average DECIMAL(12,4), seen ARRAY<BIGINT>, distinct BIGINT"

    count: ValueState[int] = ValueState("BIGINT")
    total: ReducingState[Decimal] = ReducingState("DECIMAL(12,2)", reduce=operator.add)
    average: AggregatingState[Decimal, tuple[Decimal, int], Decimal] = AggregatingState(
        "total DECIMAL(18,2), n BIGINT",
        create=lambda: (Decimal(0), 0),
        add=lambda before, value: (before[0] + value, before[1] + 1),
        get=lambda both: (both[0] / both[1]).quantize(Decimal("0.0001")),
        merge=lambda left, right: (left[0] + right[0], left[1] + right[1]),
    )
    seen: ListState[int] = ListState("BIGINT")
    by_value: MapState[Decimal, int] = MapState("DECIMAL(12,2)", "BIGINT")

    def process_element(self, value: Any, context: Context) -> Iterator[Any]:
        if value.v is None:
            for state in (self.count, self.total, self.average, self.seen, self.by_value):
                state.clear()
            return
        self.count.update((self.count.value() or 0) + 1)
        self.total.add(value.v)
        self.average.add(value.v)
        self.seen.add(value.i)
        self.by_value.put(value.v, (self.by_value.get(value.v) or 0) + 1)
        yield (
            context.key.k,
            self.count.value(),
            self.total.get(),
            self.average.get(),
            self.seen.get(),
            len(list(self.by_value.keys())),
        )


class Counting:
    """Passes calls on to stores in memory and counts them."""

    def __init__(self) -> None:
        self.memory = Memory(key=("a",))
        self.calls: Counter[str] = Counter()

    def __getattr__(self, name: str) -> Any:
        opened = getattr(self.memory, name)
        if not name.endswith("_store"):
            return opened
        return lambda state, *of: _Counted(opened(state, *of), self.calls, state)


class _Counted:
    def __init__(self, store: Any, calls: Counter[str], name: str) -> None:
        self._store, self._calls, self._name = store, calls, name

    def __getattr__(self, name: str) -> Any:
        self._calls[f"{self._name}.{name}"] += 1
        return getattr(self._store, name)

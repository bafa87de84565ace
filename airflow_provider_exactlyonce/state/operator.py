"""Runs a function for one key at a time, for Spark and for the harness."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from airflow_provider_exactlyonce.exceptions import StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.ddl import DataType
from airflow_provider_exactlyonce.state.function import (
    Context,
    KeyedProcessFunction,
    TimerService,
    output_of,
    states_of,
    time_mode_of,
)
from airflow_provider_exactlyonce.state.stores import Handle, Row


class KeyedOperator:
    """A function that is open over the stores of one state partition, for one batch.

    :param function: an instance of its own, whose declared states are replaced by open ones
    :param key_names: the columns of the key
    """

    def __init__(self, function: KeyedProcessFunction[Any, Any], key_names: Sequence[str], handle: Handle) -> None:
        self._function = function
        self._handle = handle
        self._states = []
        for attribute, declared in states_of(function).items():
            state = declared.bound(handle)
            setattr(function, attribute, state)
            self._states.append(state)
        self._timers = TimerService(time_mode_of(function))
        self._context = Context(key_names, self._timers)
        self._row = row_maker(type(function).__name__, output_of(function))
        self._is_open = False
        self._fired: set[tuple[Any, ...]] = set()

    def set_clocks(self, processing_time: int, watermark: int) -> None:
        """Set the batch's clocks, in milliseconds."""
        self._timers.set_clocks(processing_time, watermark)

    def rows(self, key: tuple[Any, ...], rows: Iterable[Any]) -> Iterator[Row]:
        """Process a key's rows of a batch; its states are written when all of them were taken from the result.

        :raises StateValueError: when a value does not fit the type that was declared for it
        """
        self._begin(key)
        process, context, row = self._function.process_element, self._context, self._row
        for element in self._sorted(rows):
            produced = process(element, context)
            if produced is not None:
                for output in produced:
                    yield row(output)
        for output in self._function.finish_batch(context) or ():
            yield row(output)
        self._flush()

    def timers(self, key: tuple[Any, ...]) -> Iterator[Row]:
        """Process all timers of a key that are due, in the order of their times, as :meth:`rows`.

        Spark calls this for each timer that was due when it began. But a timer may register or delete other due timers.
        So a key's first call processes all that are due, and later calls process nothing.
        """
        if key in self._fired:
            return
        self._fired.add(key)
        self._begin(key)
        due = [timestamp for timestamp in self._handle.list_timers() if self._timers.is_due(timestamp)]
        heapq.heapify(due)
        scheduled, deleted = set(due), set[int]()
        while due:
            timestamp = heapq.heappop(due)
            if timestamp in deleted:
                deleted.remove(timestamp)
                scheduled.remove(timestamp)
                continue
            for output in self._function.on_timer(timestamp, self._context) or ():
                yield self._row(output)
            for changed_timestamp, registered in self._timers.take_due_changes().items():
                if not registered:
                    deleted.add(changed_timestamp)
                    continue
                deleted.discard(changed_timestamp)
                if changed_timestamp not in scheduled:  # each time fires once, so that this ends
                    scheduled.add(changed_timestamp)
                    heapq.heappush(due, changed_timestamp)
        self._flush()

    def close(self) -> None:
        """Close the function, if it was opened."""
        if self._is_open:
            self._function.close()

    def _sorted(self, rows: Iterable[Any]) -> Iterable[Any]:
        names = self._function.order_by
        if not names:
            return rows
        return sorted(rows, key=lambda row: [(row[name] is not None, row[name]) for name in names])

    def _begin(self, key: tuple[Any, ...]) -> None:
        if not self._is_open:  # not where Spark only asks which states there are
            self._is_open = True
            self._function.open()
            states_of(self._function)  # one that open() makes has no store
        self._context.set_key(key)
        for state in self._states:
            state.begin()

    def _flush(self) -> None:
        for state in self._states:
            state.flush()
        for timestamp, registered in self._timers.take_changes().items():
            if registered:
                self._handle.register_timer(timestamp)
            else:
                self._handle.delete_timer(timestamp)


def row_maker(whose: str, kind: DataType) -> Callable[[Any], Row]:
    """Return a converter from a function's output to a row.

    :param whose: begins the message of an error
    """
    coerce = values.coerce(kind)

    def row(output: Any) -> Row:
        if output is None:
            raise StateValueError(f"output of {whose}: None is no row; let it give out nothing instead")
        try:
            coerced: Row = coerce(output)
        except values.TypeMismatchError as error:
            raise StateValueError(f"output of {whose}: {error}") from None
        return coerced

    return row

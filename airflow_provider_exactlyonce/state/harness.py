"""Runs a function as Spark does, batch by batch, in memory: for tests of a function, and to look into its state."""

from __future__ import annotations

import copy
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.broadcast import (
    COPY,
    IS_DATA,
    BroadcastProcessFunction,
    BroadcastState,
    as_keyed,
    columns_of,
)
from airflow_provider_exactlyonce.state.collection_states import ListState, MapState
from airflow_provider_exactlyonce.state.function import (
    KeyedProcessFunction,
    TimeMode,
    output_of,
    states_of,
    time_mode_of,
)
from airflow_provider_exactlyonce.state.memory import Key, Memory
from airflow_provider_exactlyonce.state.operator import KeyedOperator
from airflow_provider_exactlyonce.state.record import Record, record_maker
from airflow_provider_exactlyonce.state.value_states import AggregatingState, ReducingState, ValueState

_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class KeyedHarness:
    """A keyed stream in memory.

    Each call of :meth:`process` is a micro-batch: a copy of the function is opened, sees the rows key by key, then the
    timers that are due, and is closed. As in Spark, a batch that raises changes nothing, a row counts as late that is
    not above the watermark of the batch *before*, and the watermark that a batch leaves is the next batch's.

    :param function: the function to run; it stays as it is
    :param key: the columns of the key, one name or several
    :param watermark_delay: moves the watermark as ``withWatermark`` does: after each batch to the latest event time so
        far, less this; None leaves it where :meth:`process` puts it
    """

    def __init__(
        self,
        function: KeyedProcessFunction[Any, Any],
        key: str | Sequence[str],
        *,
        watermark_delay: dt.timedelta | None = None,
    ) -> None:
        self._function = function
        self._mode = time_mode_of(function)
        self._names = (key,) if isinstance(key, str) else tuple(key)
        self._output = record_maker(tuple(field.name for field in output_of(function).fields))
        if watermark_delay is not None and self._mode is not TimeMode.EVENT_TIME:
            raise RefusedError(f"watermark_delay={watermark_delay}: {type(function).__name__} has no event_time")
        self._delay = watermark_delay
        self._memory = Memory()
        self._states = states_of(function)
        #: The next batch's watermark and the last one's, in milliseconds.
        self.watermark = self._late = 0

    @property
    def processing_time(self) -> int:
        """When the last batch began, in milliseconds."""
        return self._memory.processing_time

    def process(
        self,
        rows: Iterable[Any] = (),
        *,
        processing_time: int | None = None,
        watermark: int | None = None,
    ) -> list[Record]:
        """Run a micro-batch and return the function's output.

        :param rows: mappings, or anything with the columns as attributes; none for a batch that only fires timers
        :param processing_time: when it begins, in milliseconds; by default as the batch before
        :param watermark: the batch's watermark, in milliseconds; by default as the batch before
        :raises RefusedError: when a clock would go back
        """
        records = [Record.of(row) if isinstance(row, Mapping) else row for row in rows]
        snapshot = self._memory.copy(), self.watermark, self._late
        try:
            self._set_clocks(processing_time, watermark)
            produced = [self._output(row) for row in self._batch([row for row in records if not self._is_late(row)])]
            self._late = self.watermark
            if self._delay is not None:
                latest = max((self._event_time(row) for row in records if self._has_event_time(row)), default=_EPOCH)
                milliseconds = dt.timedelta(milliseconds=1)
                self.watermark = max(self.watermark, (latest - _EPOCH) // milliseconds - self._delay // milliseconds)
        except BaseException:
            self._memory, self.watermark, self._late = snapshot
            raise
        return produced

    def state(self, name: str, key: Any) -> Any:
        """Return a key's state: a value, a result, a list, or a map as a dictionary.

        :param name: the attribute of the function's class
        :param key: the key's value, a tuple if it has several columns
        """
        if name not in self._states:
            raise RefusedError(f"state {name!r}: {type(self._function).__name__} has {', '.join(self._states)}")
        self._memory.key = self._key(key)
        state = self._states[name].bound(self._memory)
        if isinstance(state, ValueState):
            return state.value()
        if isinstance(state, ReducingState | AggregatingState | ListState):
            return state.get()
        assert isinstance(state, MapState | BroadcastState)
        return dict(state.items())

    def timers(self, key: Any) -> list[int]:
        """Return the times for which a key has timers, in milliseconds, in order."""
        return sorted(self._memory.timers.get(self._key(key), ()))

    def keys(self) -> set[Key]:
        """Return the keys that have state or timers."""
        with_timers = {key for key, times in self._memory.timers.items() if times}
        with_state = {key for by_key in self._memory.states.values() for key, entries in by_key.items() if entries}
        return with_timers | with_state

    def _batch(self, rows: Sequence[Any]) -> Iterator[tuple[Any, ...]]:
        memory = self._memory
        operator = KeyedOperator(copy.deepcopy(self._function), self._names, memory)
        operator.set_clocks(memory.processing_time, self.watermark)
        by_key: dict[Key, list[Any]] = {}
        for row in rows:
            by_key.setdefault(tuple([getattr(row, name) for name in self._names]), []).append(row)
        for key, key_rows in by_key.items():
            memory.key = key
            yield from operator.rows(key, iter(key_rows))
        for timestamp, key in memory.due(self._due_until()):
            memory.key = key
            yield from operator.timers(key)
            memory.delete_timer(timestamp)
        operator.close()

    def _due_until(self) -> int:
        if self._mode is TimeMode.NONE:
            return -1
        return self.watermark if self._mode is TimeMode.EVENT_TIME else self._memory.processing_time

    def _set_clocks(self, processing_time: int | None, watermark: int | None) -> None:
        if processing_time is not None:
            if processing_time < self._memory.processing_time:
                raise RefusedError(f"processing_time={processing_time} is before {self._memory.processing_time}")
            self._memory.processing_time = processing_time
        if watermark is not None:
            if self._mode is not TimeMode.EVENT_TIME:
                raise RefusedError(f"watermark={watermark}: {type(self._function).__name__} has no event_time")
            if watermark < self.watermark:
                raise RefusedError(f"watermark={watermark} is before {self.watermark}")
            self.watermark = watermark

    def _has_event_time(self, row: Any) -> bool:
        column = self._function.event_time
        return column is not None and getattr(row, column) is not None

    def _event_time(self, row: Any) -> dt.datetime:
        column = self._function.event_time
        assert column is not None
        value: dt.datetime = getattr(row, column)
        if value.tzinfo is None:
            raise RefusedError(f"{column}={value!r} has no time zone; say tzinfo=datetime.UTC")
        return value

    def _is_late(self, row: Any) -> bool:
        return self._has_event_time(row) and self._event_time(row) - _EPOCH <= dt.timedelta(milliseconds=self._late)

    @staticmethod
    def _key(key: Any) -> Key:
        return key if type(key) is tuple else (key,)


class BroadcastHarness:
    """A stream and its control stream in memory, with one copy of the rules.

    :param function: the function to run; it stays as it is
    :param columns: of the data
    :param control_columns: of the control stream
    """

    def __init__(
        self,
        function: BroadcastProcessFunction[Any, Any, Any],
        columns: Sequence[str],
        control_columns: Sequence[str],
    ) -> None:
        self._columns, self._control_columns = tuple(columns), tuple(control_columns)
        data_names, control_names = columns_of(columns, control_columns)
        self._row = record_maker((COPY, IS_DATA, *data_names, *control_names))
        self._keyed = KeyedHarness(as_keyed(function, columns, control_columns), COPY)

    def process(
        self, rows: Iterable[Mapping[str, Any]] = (), control: Iterable[Mapping[str, Any]] = ()
    ) -> list[Record]:
        """Run a micro-batch and return the function's output.

        :param rows: of the data
        :param control: control records, which are processed first
        """
        no_datum, no_rule = [None] * len(self._columns), [None] * len(self._control_columns)
        data = [self._row((0, True, *(row[name] for name in self._columns), *no_rule)) for row in rows]
        rules = [self._row((0, False, *no_datum, *(row[name] for name in self._control_columns))) for row in control]
        return self._keyed.process([*data, *rules])

    def state(self, name: str) -> dict[Any, Any]:
        """Return a state's entries.

        :param name: the attribute of the function's class
        """
        entries: dict[Any, Any] = self._keyed.state(name, 0)
        return entries

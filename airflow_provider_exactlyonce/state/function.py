"""The base class of users' functions: a function gets the rows of one key after the other, with state and timers."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from operator import index
from typing import Any, ClassVar, Final, Generic, TypeVar

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.base import State
from airflow_provider_exactlyonce.state.ddl import DataType, parse
from airflow_provider_exactlyonce.state.record import Record, record_maker

IN = TypeVar("IN")
OUT = TypeVar("OUT")


class TimeMode(Enum):
    """Which timers a function has, in Spark's words."""

    NONE = "None"
    PROCESSING_TIME = "ProcessingTime"
    EVENT_TIME = "EventTime"


class TimerService:
    """The two clocks of a batch, and the current key's timers. Times are milliseconds since 1970, UTC."""

    def __init__(self, mode: TimeMode) -> None:
        self._mode = mode
        self._processing_time = self._watermark = -1
        self._changes: dict[int, bool] = {}

    def current_processing_time(self) -> int:
        """Return when this batch began: the same for all its rows, and the same when it is run again.

        :raises RefusedError: when the function declares neither time
        """
        if self._mode is TimeMode.NONE:
            raise RefusedError(
                "current_processing_time(): the function declares neither event_time nor processing_time = True"
            )
        return self._processing_time

    def current_watermark(self) -> int:
        """Return the batch's watermark; 0 before the first.

        :raises RefusedError: when the function does not declare its event time
        """
        self._check(TimeMode.EVENT_TIME, "current_watermark()")
        return self._watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        """Have :meth:`KeyedProcessFunction.on_timer` called for this key once the watermark is at a time.

        :raises RefusedError: when the function does not declare its event time
        """
        self._check(TimeMode.EVENT_TIME, "register_event_time_timer()")
        self._changes[index(timestamp)] = True

    def delete_event_time_timer(self, timestamp: int) -> None:
        """Take a registration back; without one nothing happens.

        :raises RefusedError: when the function does not declare its event time
        """
        self._check(TimeMode.EVENT_TIME, "delete_event_time_timer()")
        self._changes[index(timestamp)] = False

    def register_processing_time_timer(self, timestamp: int) -> None:
        """Have :meth:`KeyedProcessFunction.on_timer` called for this key by the first batch at or after a time.

        :raises RefusedError: when the function does not declare processing time
        """
        self._check(TimeMode.PROCESSING_TIME, "register_processing_time_timer()")
        self._changes[index(timestamp)] = True

    def delete_processing_time_timer(self, timestamp: int) -> None:
        """Take a registration back; without one nothing happens.

        :raises RefusedError: when the function does not declare processing time
        """
        self._check(TimeMode.PROCESSING_TIME, "delete_processing_time_timer()")
        self._changes[index(timestamp)] = False

    def set_clocks(self, processing_time: int, watermark: int) -> None:
        """Set the two clocks; only the function's runner calls it."""
        self._processing_time, self._watermark = processing_time, watermark

    def take_changes(self) -> Mapping[int, bool]:
        """Return the registrations (True) and deletions (False) since the last call, the last word for each time."""
        changes, self._changes = self._changes, {}
        return changes

    def is_due(self, timestamp: int) -> bool:
        """Tell whether the batch's clock is at a time."""
        return timestamp <= (self._watermark if self._mode is TimeMode.EVENT_TIME else self._processing_time)

    def take_due_changes(self) -> Mapping[int, bool]:
        """Return the changes of :meth:`take_changes` that are due."""
        changes = self.take_changes()
        self._changes = {
            timestamp: registered for timestamp, registered in changes.items() if not self.is_due(timestamp)
        }
        return {timestamp: registered for timestamp, registered in changes.items() if self.is_due(timestamp)}

    def _check(self, needed: TimeMode, call: str) -> None:
        if self._mode is not needed:
            declaration = 'event_time = "<column>"' if needed is TimeMode.EVENT_TIME else "processing_time = True"
            raise RefusedError(f"{call}: the function's time is {self._mode.value}; let its class say {declaration}")


class Context:
    """A function's access to the key, the clocks and the timers.

    :param key_names: the columns of the key
    """

    def __init__(self, key_names: Sequence[str], timer_service: TimerService) -> None:
        self.timer_service: Final = timer_service
        self._key_record = record_maker(tuple(key_names))
        self._key: tuple[Any, ...] = ()

    @property
    def key(self) -> Record:
        """The current key: ``context.key.uuid`` or ``context.key[0]``."""
        return self._key_record(self._key)

    def set_key(self, key: tuple[Any, ...]) -> None:
        """Set the current key; only the function's runner calls it."""
        self._key = key


class KeyedProcessFunction(ABC, Generic[IN, OUT]):
    """A function of a keyed stream, with state.

    States are class attributes. An instance is opened for each state partition of each batch: values that it keeps
    elsewhere than in a state are gone with the next batch.
    """

    #: The function's output: columns in Spark's DDL.
    output: ClassVar[str]
    #: The column with the watermark, for timers of event time; rows behind the watermark don't reach the function.
    event_time: ClassVar[str | None] = None
    #: For timers of processing time. A state with a ``ttl`` needs no more than itself.
    processing_time: ClassVar[bool] = False
    #: The columns that sort a key's rows within a batch, nulls first. Spark does not keep their order.
    order_by: ClassVar[Sequence[str]] = ()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(inspect.getattr_static(type(self), name, None), State) and not isinstance(value, State):
            kind = type(self)
            raise RefusedError(f"{kind.__name__}.{name} is a state: call its methods to change it, don't assign to it")
        super().__setattr__(name, value)

    def open(self) -> None:
        """Prepare resources of the calls, such as a connection; states can't be used yet."""

    @abstractmethod
    def process_element(self, value: IN, context: Context) -> Iterable[OUT] | None:
        """Process a row.

        :param value: a row; its columns are attributes
        :return: rows of ``output``: tuples in its order, or mappings by its names. A generator as a rule
        """

    def finish_batch(self, context: Context) -> Iterable[OUT] | None:
        """Return a key's result after its last row of a batch; a row per key costs less than one per row.

        :return: as :meth:`process_element`; by default nothing
        """
        return None

    def on_timer(self, timestamp: int, context: Context) -> Iterable[OUT] | None:
        """Process a timer of the current key.

        :param timestamp: for which it was registered
        :return: as :meth:`process_element`
        """
        raise NotImplementedError(f"{type(self).__name__} registers timers and has no on_timer")

    def close(self) -> None:
        """Release the resources of :meth:`open`."""


def states_of(function: KeyedProcessFunction[Any, Any]) -> dict[str, State]:
    """Return the states that a function's class declares, by attribute.

    :raises RefusedError: when two have one name in the checkpoint, the class does not declare one, or it is no function
    """
    if not isinstance(function, KeyedProcessFunction):
        raise RefusedError(f"{function!r} is no KeyedProcessFunction; give an instance of a class that is one")
    states = {name: state for name, state in inspect.getmembers_static(type(function)) if isinstance(state, State)}
    for attribute, value in vars(function).items():
        if isinstance(value, State) and attribute not in states:
            raise RefusedError(
                f"{type(function).__name__}: the state {attribute} is made by the instance. States are declared in the "
                f"class: {attribute} = {type(value).__name__}(…)"
            )
    by_name: dict[str, str] = {}
    for attribute, state in states.items():
        if (other := by_name.setdefault(state.name, attribute)) != attribute:
            raise RefusedError(
                f"{type(function).__name__}: the states {other} and {attribute} have one name, {state.name!r}"
            )
    return states


def output_of(function: KeyedProcessFunction[Any, Any]) -> DataType:
    """Return the type of a function's rows.

    :raises RefusedError: when it declares none, or one that has no columns
    """
    text = getattr(function, "output", None)
    if text is None:
        raise RefusedError(f'{type(function).__name__} declares no output; say output = "uuid STRING, …" in its class')
    kind = parse(text)
    if kind.name != "STRUCT":
        raise RefusedError(f"{type(function).__name__}: output = {text!r} names no columns")
    return kind


def time_mode_of(function: KeyedProcessFunction[Any, Any]) -> TimeMode:
    """Return which time a function runs by.

    :raises RefusedError: when it asks for both
    """
    name = type(function).__name__
    with_ttl = sorted(attribute for attribute, state in states_of(function).items() if state.ttl is not None)
    if function.event_time is None:
        return TimeMode.PROCESSING_TIME if function.processing_time or with_ttl else TimeMode.NONE
    if function.processing_time:
        raise RefusedError(f"{name} declares event_time and processing_time; Spark runs an operator by one of them")
    if with_ttl:
        raise RefusedError(
            f"{name} declares event_time and a ttl for {', '.join(with_ttl)}; Spark has time to live by processing "
            "time only. Clear the state in on_timer instead"
        )
    return TimeMode.EVENT_TIME

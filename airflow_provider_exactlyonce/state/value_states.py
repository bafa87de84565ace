"""The states with one value a key: ValueState, ReducingState, AggregatingState."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.base import State
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.stores import Handle, ValueStore

T = TypeVar("T")
IN = TypeVar("IN")
ACC = TypeVar("ACC")
OUT = TypeVar("OUT")

_UNREAD: Final = object()


class _Single(State):
    """One value a key."""

    _store: ValueStore
    _value: Any
    _changed: bool
    _was_absent: bool

    def __init__(self, type: str, name: str | None, ttl: timedelta | None) -> None:
        self.state_type = StateType(type)
        super().__init__(name, ttl, self.state_type)

    def _open(self, handle: Handle) -> None:
        self._store = handle.value_store(self.name, self.state_type, self.ttl_milliseconds)

    def begin(self) -> None:
        self._value = _UNREAD
        self._changed = False
        self._was_absent = False

    def flush(self) -> None:
        """Write what has changed."""
        if not self._changed:
            return
        if self._value is not None:
            self._store.update(self.state_type.pack(self._coerced(self.state_type, self._value)))
        elif not self._was_absent:
            self._store.clear()

    def clear(self) -> None:
        self._value = None
        self._changed = True

    def _read(self) -> Any:
        row = self._store.get()
        self._was_absent = row is None
        self._value = None if row is None else self.state_type.unpack(row)
        return self._value


class ValueState(_Single, Generic[T]):
    """One value a key.

    :param type: in Spark's DDL: a type, or fields as of a table, whose values are tuples
    :param name: in the checkpoint; by default the attribute's
    :param ttl: how long the value stays after it was last written, by processing time; None for ever
    """

    def __init__(self, type: str, *, name: str | None = None, ttl: timedelta | None = None) -> None:
        super().__init__(type, name, ttl)

    def value(self) -> T | None:
        """Return the key's value, None when there is none."""
        value = self._read() if self._value is _UNREAD else self._value
        return cast("T | None", self.state_type.copied(value))

    def update(self, value: T | None) -> None:
        """Set the key's value; None removes it.

        :raises StateValueError: when it does not fit the declared type
        """
        self._value = self._coerced(self.state_type, value)
        self._changed = True

    def flush(self) -> None:
        """Write the value if it was set or removed."""
        if self._changed and self._value is not None:
            self._store.update(self.state_type.pack(self._value))  # coerced already
        else:
            super().flush()


class ReducingState(_Single, Generic[T]):
    """One value a key: all that were added, reduced.

    :param type: of the values and of the result, in Spark's DDL
    :param reduce: makes one value of two
    :param name: in the checkpoint; by default the attribute's
    :param ttl: how long the value stays after something was last added, by processing time; None for ever
    """

    def __init__(
        self, type: str, *, reduce: Callable[[T, T], T], name: str | None = None, ttl: timedelta | None = None
    ) -> None:
        super().__init__(type, name, ttl)
        self._reduce = reduce

    def get(self) -> T | None:
        """Return the aggregate of the added values, None when there are none.

        :raises StateValueError: when it does not fit the declared type
        """
        value = self._read() if self._value is _UNREAD else self._value
        return cast("T | None", self._coerced(self.state_type, value))

    def add(self, value: T) -> None:
        """Add a value."""
        current = self._read() if self._value is _UNREAD else self._value
        self._value = value if current is None else self._reduce(current, value)
        self._changed = True


class AggregatingState(_Single, Generic[IN, ACC, OUT]):
    """One accumulator a key, to which values are added, and a result of it.

    :param type: of the accumulator, in Spark's DDL
    :param create: returns an accumulator to which nothing was added
    :param add: returns the accumulator with one value more
    :param get: returns the accumulator's result
    :param merge: makes one accumulator of two; only :meth:`merge` needs it
    :param name: in the checkpoint; by default the attribute's
    :param ttl: how long the accumulator stays after something was last added, by processing time; None for ever
    """

    def __init__(
        self,
        type: str,
        *,
        create: Callable[[], ACC],
        add: Callable[[ACC, IN], ACC],
        get: Callable[[ACC], OUT],
        merge: Callable[[ACC, ACC], ACC] | None = None,
        name: str | None = None,
        ttl: timedelta | None = None,
    ) -> None:
        super().__init__(type, name, ttl)
        self._create, self._add, self._get, self._merge = create, add, get, merge

    def get(self) -> OUT | None:
        """Return the accumulator's result, None when nothing was added.

        :raises StateValueError: when the accumulator does not fit the declared type
        """
        value = self._read() if self._value is _UNREAD else self._value
        return None if value is None else self._get(self._coerced(self.state_type, value))

    def add(self, value: IN) -> None:
        """Add a value."""
        current = self._read() if self._value is _UNREAD else self._value
        self._value = self._add(self._create() if current is None else current, value)
        self._changed = True

    def merge(self, accumulator: ACC) -> None:
        """Add an accumulator that was made elsewhere.

        :raises RefusedError: when the state was declared without ``merge``
        """
        if self._merge is None:
            raise RefusedError(f"state {self.name}: its AggregatingState was declared without merge=")
        current = self._read() if self._value is _UNREAD else self._value
        self._value = accumulator if current is None else self._merge(current, accumulator)
        self._changed = True

"""What a state is declared with, and what the five kinds have in common."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Self, cast

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.ddl import DataType, parse
from airflow_provider_exactlyonce.state.stores import Handle


class Shape:
    """How values of a type lie in the store: as rows, whose one field is called ``value`` unless fields were declared.

    :param text: the type, in Spark's DDL
    """

    def __init__(self, text: str) -> None:
        self.type: DataType = parse(text)
        self.is_row = self.type.name == "STRUCT"
        #: What the store is declared with.
        self.ddl = text if self.is_row else f"value {text}"
        self.fit = values.fit(self.type)
        self.copies = values.is_mutable(self.type)
        self._load = values.load(self.type)

    def pack(self, value: Any) -> tuple[Any, ...]:
        """Return a fitted value as a row."""
        return cast("tuple[Any, ...]", value) if self.is_row else (value,)

    def unpack(self, row: Any) -> Any:
        """Return the value of a row."""
        value = row if self.is_row else row[0]
        return value if self._load is None else self._load(value)


class State(ABC):
    """What the five have in common.

    :param name: in the checkpoint; by default the attribute's. Another name is another state, which begins empty
    :param ttl: how long an entry stays after it was last written, by processing time; None for ever
    """

    def __init__(self, name: str | None, ttl: timedelta | None) -> None:
        if ttl is not None and not (isinstance(ttl, timedelta) and ttl >= timedelta(milliseconds=1)):
            raise RefusedError(
                f"{type(self).__name__}(ttl={ttl!r}): a timedelta of at least one millisecond, or None for ever"
            )
        self.name = name or ""
        self.ttl = ttl

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def bound(self, handle: Handle) -> Self:
        """Return this state over a store.

        :param handle: opens stores
        """
        one = copy.copy(self)
        one._open(handle)
        one.begin()
        return one

    @property
    def ttl_milliseconds(self) -> int | None:
        """The time to live, as stores are opened with."""
        return None if self.ttl is None else self.ttl // timedelta(milliseconds=1)

    @property
    @abstractmethod
    def shapes(self) -> tuple[Shape, ...]:
        """What its stores are declared with."""

    @abstractmethod
    def _open(self, handle: Handle) -> None: ...

    @abstractmethod
    def begin(self) -> None:
        """Forget what was read, before the call for another key."""

    @abstractmethod
    def flush(self) -> None:
        """Write what has changed, at the end of a key's call."""

    @abstractmethod
    def clear(self) -> None:
        """Remove the key's state."""

    def _fitted(self, shape: Shape, value: Any) -> Any:
        try:
            return shape.fit(value)
        except values.MisfitError as error:
            raise StateValueError(f"state {self.name}: {error}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

"""The base of the five kinds of state."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import Any, Self

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.stores import Handle


class State(ABC):
    """The base of the five kinds.

    :param name: in the checkpoint; by default the attribute's. Another name is another state, which begins empty
    :param ttl: how long an entry stays after it was last written, by processing time; None for ever
    :param state_types: what its stores are declared with
    """

    def __init__(self, name: str | None, ttl: timedelta | None, *state_types: StateType) -> None:
        if ttl is not None and not (isinstance(ttl, timedelta) and ttl >= timedelta(milliseconds=1)):
            raise RefusedError(
                f"{type(self).__name__}(ttl={ttl!r}): a timedelta of at least one millisecond, or None for ever"
            )
        self.name = name or ""
        self.ttl = ttl
        self.state_types = state_types

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = self.name or name

    def bound(self, handle: Handle) -> Self:
        """Return this state over a store.

        :param handle: opens stores
        """
        bound = copy.copy(self)
        bound._open(handle)
        bound.begin()
        return bound

    @property
    def ttl_milliseconds(self) -> int | None:
        """The time to live, as stores are opened with."""
        return None if self.ttl is None else self.ttl // timedelta(milliseconds=1)

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

    def _coerced(self, state_type: StateType, value: Any) -> Any:
        try:
            return state_type.coerce(value)
        except values.TypeMismatchError as error:
            raise StateValueError(f"state {self.name}: {error}") from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

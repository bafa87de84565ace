"""The stores of keyed states: each state has one, for the key that is being processed, in Spark and in the harness.

Rows are tuples in the order of the declared fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from airflow_provider_exactlyonce.state.state_type import StateType

Row = tuple[Any, ...]


class ValueStore(Protocol):
    """A row a key."""

    def get(self) -> Sequence[Any] | None:
        """Return the key's row, None when there is none."""

    def update(self, row: Row) -> None:
        """Set the key's row."""

    def clear(self) -> None:
        """Remove it."""


class ListStore(Protocol):
    """A list of rows a key."""

    def get(self) -> Iterable[Sequence[Any]]:
        """Return the key's rows."""

    def put(self, rows: list[Row]) -> None:
        """Replace them, by at least one."""

    def append(self, rows: list[Row]) -> None:
        """Add rows; those that are there keep their age."""

    def clear(self) -> None:
        """Remove them."""


class MapStore(Protocol):
    """A map of rows a key."""

    def get(self, key: Row) -> Sequence[Any] | None:
        """Return an entry's row, None when there is none."""

    def put(self, key: Row, row: Row) -> None:
        """Set an entry."""

    def remove(self, key: Row) -> None:
        """Remove an entry, if there is one."""

    def items(self) -> Iterable[tuple[Sequence[Any], Sequence[Any]]]:
        """Return all entries."""

    def clear(self) -> None:
        """Remove all entries."""


class Handle(Protocol):
    """Opens stores, and keeps timers, for whichever key is being processed."""

    def value_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> ValueStore:
        """Open a store of one row a key."""

    def list_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> ListStore:
        """Open a store of a list a key."""

    def map_store(
        self, name: str, key_type: StateType, state_type: StateType, ttl_milliseconds: int | None
    ) -> MapStore:
        """Open a store of a map a key."""

    def list_timers(self) -> Iterable[int]:
        """Return the key's timers."""

    def register_timer(self, timestamp_milliseconds: int) -> None:
        """Make the key's function be called at a time; a second registration of it changes nothing."""

    def delete_timer(self, timestamp_milliseconds: int) -> None:
        """Take a registration back, if there is one."""

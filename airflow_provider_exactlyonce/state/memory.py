"""Stores in memory, which behave as Spark's: their time to live, their timers, and nothing shared with the caller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.stores import Row

Key = tuple[Any, ...]


@dataclass(frozen=True)
class _Entry:
    row: Row
    #: In milliseconds; None for never.
    expires: int | None


@dataclass
class Memory:
    """The state of all keys.

    :param processing_time: the batch's, in milliseconds
    :param key: the one that is being processed
    :param states: by name, then by key: an entry, a list of entries, or entries by the map's own keys
    :param timers: by key
    """

    processing_time: int = 0
    key: Key = ()
    states: dict[str, dict[Key, Any]] = field(default_factory=dict)
    timers: dict[Key, set[int]] = field(default_factory=dict)

    def copy(self) -> Memory:
        """Return the same state, to go back to."""
        states = {
            name: {key: stored if isinstance(stored, _Entry) else stored.copy() for key, stored in by_key.items()}
            for name, by_key in self.states.items()
        }
        timers = {key: times.copy() for key, times in self.timers.items()}
        return Memory(self.processing_time, self.key, states, timers)

    def value_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> _ValueStore:
        """Open a store of one row a key."""
        return _ValueStore(self, name, ttl_milliseconds)

    def list_store(self, name: str, state_type: StateType, ttl_milliseconds: int | None) -> _ListStore:
        """Open a store of a list a key."""
        return _ListStore(self, name, ttl_milliseconds)

    def map_store(
        self, name: str, key_type: StateType, state_type: StateType, ttl_milliseconds: int | None
    ) -> _MapStore:
        """Open a store of a map a key."""
        return _MapStore(self, name, ttl_milliseconds)

    def list_timers(self) -> list[int]:
        """Return the timers of the current key."""
        return list(self.timers.get(self.key, ()))

    def register_timer(self, timestamp_milliseconds: int) -> None:
        """Register a timer of the current key."""
        self.timers.setdefault(self.key, set()).add(timestamp_milliseconds)

    def delete_timer(self, timestamp_milliseconds: int) -> None:
        """Delete a timer of the current key."""
        self.timers.get(self.key, set()).discard(timestamp_milliseconds)

    def due(self, until_milliseconds: int) -> list[tuple[int, Key]]:
        """Return the timers that are due, in the order of their times."""
        due = [
            (timestamp, key)
            for key, times in self.timers.items()
            for timestamp in times
            if timestamp <= until_milliseconds
        ]
        return sorted(due, key=lambda timer: timer[0])


class _MemoryStore:
    def __init__(self, memory: Memory, name: str, ttl_milliseconds: int | None) -> None:
        self._memory = memory
        self._by_key: dict[Key, Any] = memory.states.setdefault(name, {})
        self._ttl = ttl_milliseconds

    def clear(self) -> None:
        self._by_key.pop(self._memory.key, None)

    def _entry(self, row: Row) -> _Entry:
        return _Entry(row, None if self._ttl is None else self._memory.processing_time + self._ttl)

    def _lives(self, entry: _Entry | None) -> bool:
        return entry is not None and (entry.expires is None or entry.expires > self._memory.processing_time)


class _ValueStore(_MemoryStore):
    """A row a key."""

    def get(self) -> Row | None:
        entry = self._by_key.get(self._memory.key)
        return entry.row if entry is not None and self._lives(entry) else None

    def update(self, row: Row) -> None:
        self._by_key[self._memory.key] = self._entry(row)


class _ListStore(_MemoryStore):
    """A list of rows a key."""

    def get(self) -> list[Row]:
        return [entry.row for entry in self._by_key.get(self._memory.key, ()) if self._lives(entry)]

    def put(self, rows: list[Row]) -> None:
        self._by_key[self._memory.key] = [self._entry(row) for row in rows]

    def append(self, rows: list[Row]) -> None:
        self._by_key.setdefault(self._memory.key, []).extend(self._entry(row) for row in rows)


class _MapStore(_MemoryStore):
    """A map of rows a key."""

    def get(self, key: Row) -> Row | None:
        entry = self._by_key.get(self._memory.key, {}).get(key)
        return entry.row if entry is not None and self._lives(entry) else None

    def put(self, key: Row, row: Row) -> None:
        self._by_key.setdefault(self._memory.key, {})[key] = self._entry(row)

    def remove(self, key: Row) -> None:
        self._by_key.get(self._memory.key, {}).pop(key, None)

    def items(self) -> Iterator[tuple[Row, Row]]:
        entries = self._by_key.get(self._memory.key, {})
        return iter([(key, entry.row) for key, entry in entries.items() if self._lives(entry)])

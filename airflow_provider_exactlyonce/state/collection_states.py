"""The states with many values a key: ListState, MapState."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Any, Final, Generic, TypeVar, cast

from airflow_provider_exactlyonce.exceptions import StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.base import State
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.stores import Handle, ListStore, MapStore

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_UNREAD: Final = object()
_ABSENT: Final = object()


class ListState(State, Generic[T]):
    """A list a key.

    :param type: of the elements, in Spark's DDL
    :param name: in the checkpoint; by default the attribute's
    :param ttl: how long an element stays after it was added, by processing time; None for ever
    """

    _store: ListStore
    _stored: list[T] | None
    _added: list[T]
    _replaced: bool
    _was_empty: bool

    def __init__(self, type: str, *, name: str | None = None, ttl: timedelta | None = None) -> None:
        self.state_type = StateType(type)
        super().__init__(name, ttl, self.state_type)

    def get(self) -> list[T]:
        """Return the key's list, empty when there is none; a copy, which can be changed without consequence."""
        if self._stored is None:
            unpack = self.state_type.unpack
            self._stored = [unpack(row) for row in self._store.get()]
        elements = self._stored + self._added
        return [self.state_type.coerce(element) for element in elements] if self.state_type.copies else elements

    def add(self, value: T) -> None:
        """Append an element.

        :raises StateValueError: when it is None, or does not fit the declared type
        """
        self._added.append(self._element(value))

    def add_all(self, elements: Iterable[T]) -> None:
        """Append elements.

        :raises StateValueError: when one is None, or does not fit the declared type
        """
        self._added += [self._element(element) for element in elements]

    def update(self, elements: Iterable[T]) -> None:
        """Replace the list; nothing removes it.

        :raises StateValueError: when an element is None, or does not fit the declared type
        """
        self._added = [self._element(element) for element in elements]
        if not self._replaced:
            self._was_empty = self._stored == []
        self._stored, self._replaced = [], True

    def clear(self) -> None:
        """Remove the key's list."""
        self.update(())

    def begin(self) -> None:
        """Forget what was read."""
        self._stored = None
        self._added = []
        self._replaced = False
        self._was_empty = False

    def flush(self) -> None:
        """Write what has changed."""
        rows = [self.state_type.pack(element) for element in self._added]
        if not self._replaced or self._was_empty:
            if rows:
                self._store.append(rows)  # the elements there keep their age
        elif rows:
            self._store.put(rows)
        else:
            self._store.clear()

    def _open(self, handle: Handle) -> None:
        self._store = handle.list_store(self.name, self.state_type, self.ttl_milliseconds)

    def _element(self, value: T) -> T:
        if value is None:
            raise StateValueError(f"state {self.name}: None is no element of a list")
        return cast("T", self._coerced(self.state_type, value))


class MapState(State, Generic[K, V]):
    """A map a key.

    Entries are read one by one, as they are used; :meth:`items`, :meth:`keys` and :meth:`values` read the whole map. A
    small map that is mostly used as a whole is cheaper as a ValueState of type ``MAP<…>``.

    :param key_type: of the map's own keys, in Spark's DDL
    :param type: of its values
    :param name: in the checkpoint; by default the attribute's
    :param ttl: how long an entry stays after it was last put, by processing time; None for ever
    """

    _store: MapStore
    _entries: dict[K, Any]
    _changed: dict[K, None]
    _whole: bool
    _cleared: bool

    def __init__(self, key_type: str, type: str, *, name: str | None = None, ttl: timedelta | None = None) -> None:
        self.key_type, self.state_type = StateType(key_type), StateType(type)
        super().__init__(name, ttl, self.key_type, self.state_type)
        values.check_key(self.key_type.type, f"MapState({key_type!r}, …)")

    def get(self, key: K) -> V | None:
        """Return a key's value, None when there is none."""
        value = self._find(self._key(key))
        return None if value is _ABSENT else cast("V", self.state_type.copied(value))

    def contains(self, key: K) -> bool:
        """Tell whether a key has a value."""
        return self._find(self._key(key)) is not _ABSENT

    def put(self, key: K, value: V | None) -> None:
        """Set a key's value.

        :param value: None for a null, which a type made of fields has none of: if it is there after the key's last row
            of the batch, that raises StateValueError
        :raises StateValueError: when one of them does not fit its declared type
        """
        key = self._key(key)
        self._entries[key] = self._coerced(self.state_type, value)
        self._changed[key] = None

    def put_all(self, entries: Mapping[K, V]) -> None:
        """Set the values of several keys.

        :raises StateValueError: when one of them does not fit its declared type
        """
        for key, value in entries.items():
            self.put(key, value)

    def remove(self, key: K) -> None:
        """Remove a key's entry, if there is one."""
        key = self._key(key)
        if self._entries.get(key) is not _ABSENT:
            self._entries[key] = _ABSENT
            self._changed[key] = None

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries as they are now, in no particular order."""
        self._read_all()
        copied = self.state_type.copied
        return iter([(key, copied(value)) for key, value in self._entries.items() if value is not _ABSENT])

    def keys(self) -> Iterator[K]:
        """Iterate over the keys as they are now, in no particular order."""
        return iter([key for key, _ in self.items()])

    def values(self) -> Iterator[V]:
        """Iterate over the values as they are now, in no particular order."""
        return iter([value for _, value in self.items()])

    def is_empty(self) -> bool:
        """Tell whether there is no entry."""
        return all(value is _ABSENT for value in self._entries.values()) and not any(True for _ in self.items())

    def clear(self) -> None:
        """Remove all entries."""
        self._entries, self._changed = {}, {}
        self._whole = self._cleared = True

    def begin(self) -> None:
        """Forget what was read."""
        self._entries = {}
        self._changed = {}
        self._whole = self._cleared = False

    def flush(self) -> None:
        """Write what has changed."""
        if self._cleared:
            self._store.clear()
        for key in self._changed:
            value, row = self._entries[key], self.key_type.pack(key)
            if value is not _ABSENT:
                self._store.put(row, self._row(key, value))
            elif not self._cleared:
                self._store.remove(row)

    def _open(self, handle: Handle) -> None:
        self._store = handle.map_store(self.name, self.key_type, self.state_type, self.ttl_milliseconds)

    def _row(self, key: K, value: Any) -> tuple[Any, ...]:
        if value is None and self.state_type.is_row:
            raise StateValueError(f"state {self.name}: None is no row of a map, at key {key!r}; remove the key instead")
        return self.state_type.pack(value)

    def _key(self, key: K) -> K:
        if key is None:
            raise StateValueError(f"state {self.name}: None is no key of a map")
        return cast("K", self._coerced(self.key_type, key))

    def _find(self, key: K) -> Any:
        value = self._entries.get(key, _UNREAD)
        if value is not _UNREAD:
            return value
        row = None if self._whole else self._store.get(self.key_type.pack(key))
        value = self._entries[key] = _ABSENT if row is None else self.state_type.unpack(row)
        return value

    def _read_all(self) -> None:
        if self._whole:
            return
        for key_row, row in self._store.items():
            key = self.key_type.unpack(key_row)
            if key not in self._changed:
                self._entries[key] = self.state_type.unpack(row)
        self._whole = True

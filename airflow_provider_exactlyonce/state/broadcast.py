"""State that every task has: rules from a control stream, which a function of the data reads.

The control stream is a source of the query like any other, so Spark writes its position down before a batch runs, and
the ledger has it: a batch that is run again sees the same rules. Its records go to each of a fixed number of *copies*,
which keep the rules as state; each row of the data goes to one of them. In a batch a copy sees control records first.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar, cast

from airflow_provider_exactlyonce.exceptions import RefusedError, StateValueError
from airflow_provider_exactlyonce.state import values
from airflow_provider_exactlyonce.state.base import State
from airflow_provider_exactlyonce.state.function import Context, KeyedProcessFunction, states_of
from airflow_provider_exactlyonce.state.record import record_maker
from airflow_provider_exactlyonce.state.state_type import StateType
from airflow_provider_exactlyonce.state.stores import Handle, ValueStore

K = TypeVar("K")
V = TypeVar("V")
IN = TypeVar("IN")
RULE = TypeVar("RULE")
OUT = TypeVar("OUT")

#: The first columns of the rows that a copy sees: its number, and whether the row is data; control records sort first.
COPY: Final = "_exactlyonce_copy"
IS_DATA: Final = "_exactlyonce_is_data"

_DIGEST: Final = StateType("BINARY")
#: What this process has read last, by a state's name: a digest and its entries, which are never changed.
_newest: Final[dict[str, tuple[bytes, Mapping[Any, Any]]]] = {}


class BroadcastState(State, Generic[K, V]):
    """A map that is the same in every copy; only ``process_broadcast_element`` may change it.

    Beside the map lies a digest of it, so that a worker reads a large map only when it has changed.

    :param key_type: of the map's keys, in Spark's DDL
    :param type: of its values
    :param name: in the checkpoint; by default the attribute's
    """

    _store: ValueStore
    _digest_store: ValueStore
    _entries: Mapping[K, V] | None
    #: What is to be written, the same as ``_entries``; None as long as nothing was changed.
    _new: dict[K, V] | None

    def __init__(self, key_type: str, type: str, *, name: str | None = None) -> None:
        self._key_type, self._value_type = StateType(key_type), StateType(type)
        values.check_key(self._key_type.type, f"BroadcastState({key_type!r}, …)")
        self._state_type = StateType(f"MAP<{self._key_type.type}, {self._value_type.type}>")
        super().__init__(name, None, self._state_type, _DIGEST)
        #: Whether a control record is being processed.
        self.is_writable = False

    def get(self, key: K) -> V | None:
        """Return a key's value, None when there is none."""
        return cast("V | None", self._value_type.copied(self._read().get(self._key(key))))

    def contains(self, key: K) -> bool:
        """Tell whether a key has a value."""
        return self._key(key) in self._read()

    def items(self) -> Iterator[tuple[K, V]]:
        """Iterate over the entries as they are now, in no particular order."""
        return iter([(key, self._value_type.copied(value)) for key, value in self._read().items()])

    def put(self, key: K, value: V) -> None:
        """Set a key's value.

        :raises StateValueError: when one of them does not fit its declared type
        :raises RefusedError: while a row of the data is processed
        """
        self._writable_entries()[self._key(key)] = self._coerced(self._value_type, value)

    def remove(self, key: K) -> None:
        """Remove a key's entry, if there is one.

        :raises RefusedError: while a row of the data is processed
        """
        self._writable_entries().pop(self._key(key), None)

    def clear(self) -> None:
        """Remove all entries.

        :raises RefusedError: while a row of the data is processed
        """
        self._writable_entries().clear()

    @property
    def digest_name(self) -> str:
        """The digest's name in the checkpoint."""
        return f"{self.name}.digest"

    def begin(self) -> None:
        """Forget what was read."""
        self._entries = self._new = None

    def flush(self) -> None:
        """Write what has changed."""
        if self._new is None:
            return
        if not self._new:
            self._store.clear()
            self._digest_store.clear()
            return
        # The repr of coerced values says all of them. Spark does not keep a map's order.
        entries = sorted(map(repr, self._new.items()))
        digest = hashlib.blake2b(repr(entries).encode(), digest_size=32).digest()
        self._store.update(self._state_type.pack(self._new))
        self._digest_store.update(_DIGEST.pack(digest))

    def _open(self, handle: Handle) -> None:
        self._store = handle.value_store(self.name, self._state_type, None)
        self._digest_store = handle.value_store(self.digest_name, _DIGEST, None)

    def _key(self, key: K) -> K:
        if key is None:
            raise StateValueError(f"state {self.name}: None is no key of a map")
        return cast("K", self._coerced(self._key_type, key))

    def _read(self) -> Mapping[K, V]:
        if self._entries is None:
            row = self._digest_store.get()
            self._entries = self._stored_entries() if row is None else self._entries_with(_DIGEST.unpack(row))
        return self._entries

    def _entries_with(self, digest: bytes) -> Mapping[K, V]:
        newest = _newest.get(self.name)
        if newest is None or newest[0] != digest:
            # From the store, not from flush(): every process has to see what Spark gives back.
            newest = _newest[self.name] = digest, self._stored_entries()
        return newest[1]

    def _stored_entries(self) -> Mapping[K, V]:
        row = self._store.get()
        return {} if row is None else cast("Mapping[K, V]", self._state_type.unpack(row))

    def _writable_entries(self) -> dict[K, V]:
        if not self.is_writable:
            raise RefusedError(
                f"state {self.name}: only process_broadcast_element may change it; else its copies would differ"
            )
        if self._new is None:
            self._entries = self._new = dict(self._read())
        return self._new


class BroadcastProcessFunction(ABC, Generic[IN, RULE, OUT]):
    """A function of a stream and a control stream, with states of class :class:`BroadcastState`."""

    #: What the function gives out: columns in Spark's DDL.
    output: ClassVar[str]
    #: The columns of the control stream that sort its records of a batch, nulls first.
    control_order_by: ClassVar[Sequence[str]] = ()

    def open(self) -> None:
        """Prepare resources of the calls; states can't be used yet."""

    @abstractmethod
    def process_element(self, value: IN, context: Context) -> Iterable[OUT] | None:
        """Process a row of the data; states can be read.

        :return: rows of ``output``: tuples in its order, or mappings by its names
        """

    @abstractmethod
    def process_broadcast_element(self, value: RULE, context: Context) -> None:
        """Process a control record; every copy does, so it gives nothing out, and must do the same everywhere."""

    def close(self) -> None:
        """Release the resources of :meth:`open`."""


def as_keyed(
    function: BroadcastProcessFunction[Any, Any, Any], data: Sequence[str], control: Sequence[str]
) -> KeyedProcessFunction[Any, Any]:
    """Return the keyed function that runs a broadcast one, keyed by the copy.

    Its rows have :data:`COPY`, :data:`IS_DATA`, and the columns of :func:`columns_of`.

    :param data: the columns of the data
    :param control: the columns of the control stream
    :raises RefusedError: when the function's states are no broadcast states
    """
    kind = type(function)
    states = {name: declared for name in dir(kind) if isinstance(declared := getattr(kind, name), State)}
    for name, state in states.items():
        if not isinstance(state, BroadcastState):
            raise RefusedError(f"{kind.__name__}: {name} is a {type(state).__name__}; here it must be a BroadcastState")
        if any(other.name == state.digest_name for other in states.values()):
            raise RefusedError(
                f"{kind.__name__}: {state.digest_name} is the digest of {name}; give that state another name"
            )
    unknown = [name for name in function.control_order_by if name not in control]
    if unknown:
        raise RefusedError(f"{kind.__name__}: {unknown[0]} is no column of the control stream: {', '.join(control)}")
    _, rule_names = columns_of(data, control)
    by_name = dict(zip(control, rule_names, strict=True))
    body = {
        **states,
        "output": function.output,
        "order_by": (IS_DATA, *(by_name[name] for name in function.control_order_by)),
    }
    return cast("KeyedProcessFunction[Any, Any]", type(kind.__name__, (_Broadcasting,), body)(function, data, control))


def columns_of(data: Sequence[str], control: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of the data's and the control stream's columns in the rows that a copy sees, after two of ours.

    :param data: the columns of the data
    :param control: the columns of the control stream
    """
    return (
        tuple(f"_exactlyonce_data_{position}" for position in range(len(data))),
        tuple(f"_exactlyonce_control_{position}" for position in range(len(control))),
    )


class _Broadcasting(KeyedProcessFunction[Any, Any]):
    """A broadcast function behind the interface of a keyed one; its states are its subclass's."""

    def __init__(
        self, function: BroadcastProcessFunction[Any, Any, Any], data: Sequence[str], control: Sequence[str]
    ) -> None:
        self._function = function
        self._columns = tuple(data), tuple(control)

    def open(self) -> None:
        data, control = self._columns
        self._datum, self._rule = record_maker(data), record_maker(control)
        self._control_from = 2 + len(data)
        self._states = list(states_of(self))
        for name in self._states:
            setattr(self._function, name, getattr(self, name))
        self._function.open()

    def process_element(self, value: Any, context: Context) -> Iterable[Any] | None:
        if value[1]:
            return self._function.process_element(self._datum(value[2 : self._control_from]), context)
        self._set_writable(True)
        self._function.process_broadcast_element(self._rule(value[self._control_from :]), context)
        self._set_writable(False)
        return None

    def close(self) -> None:
        self._function.close()

    def _set_writable(self, is_writable: bool) -> None:
        for name in self._states:
            getattr(self, name).is_writable = is_writable

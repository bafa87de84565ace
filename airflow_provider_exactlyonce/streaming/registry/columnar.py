"""Columns of values that are decoded: gathered from parts, converted, and named for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_exactlyonce.streaming.registry.cursors import Cursor, Rows

_DDL: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.binary(): "BINARY",
    pa.string(): "STRING",
    pa.date32(): "DATE",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
}


class SchemaMismatchError(Exception):
    """A writer's schema can't be read as the reader's; the message says where."""


class Gathered:
    """An array that is made of parts, each of which has the values of some places.

    :param count: of its places
    """

    def __init__(self, count: int) -> None:
        self._slots: Final = np.full(count, -1, np.int64)
        self._parts: Final[list[pa.Array]] = []
        self._ready = 0

    def add(self, places: NDArray[np.bool_] | NDArray[np.int64], part: pa.Array | None) -> None:
        """Take the values of some places, or of those that are true in a mask; None for values that nobody wants."""
        if part is not None:
            self._slots[places] = np.arange(self._ready, self._ready + len(part))
            self._parts.append(part)
            self._ready += len(part)

    @property
    def absent(self) -> NDArray[np.bool_]:
        """The places that no part has a value for."""
        return np.less(self._slots, 0)

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return it, null where no part has a value."""
        if len(self._parts) == 1 and len(self._parts[0]) == len(self._slots):
            return self._parts[0]
        joined = pa.concat_arrays(self._parts) if self._parts else pa.array([], kind)
        return joined.take(pa.array(np.maximum(self._slots, 0), mask=self.absent))


def cast(cursor: Cursor, rows: Rows, values: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Convert values; a record whose value would be another one in the new type does not fit."""
    if values.type == kind:
        return values
    try:
        return values.cast(kind)
    except pa.ArrowInvalid:
        wrong = np.zeros(len(values), np.bool_)
        _find_wrong(values, kind, 0, wrong)
        for row in np.flatnonzero(wrong).tolist():
            only = np.zeros(len(values), np.bool_)
            only[row] = True
            cursor.fail(rows, only, f"{named(what)} does not fit {column_type(kind)}: {values[row]}")
        return values.take(pa.array(np.arange(len(values)), mask=wrong)).cast(kind)


def _find_wrong(values: pa.Array, kind: pa.DataType, first: int, wrong: NDArray[np.bool_]) -> None:
    """Note which values can't be converted, by halves."""
    try:
        values.cast(kind)
    except pa.ArrowInvalid:
        if len(values) == 1:
            wrong[first] = True
            return
        middle = len(values) // 2
        _find_wrong(values[:middle], kind, first, wrong)
        _find_wrong(values[middle:], kind, first + middle, wrong)


def as_text(cursor: Cursor, rows: Rows, raw: pa.Array, what: str) -> pa.Array:
    """Return bytes as texts; a record whose bytes are none does not fit."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = np.array([not _is_text(value) for value in raw.to_pylist()])
        cursor.fail(rows, wrong, f"{named(what)} is not UTF-8")
        texts = raw.take(pa.array(np.arange(len(raw)), mask=wrong)).cast(pa.string())
        return texts.fill_null("")  # a map's key can't be null


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def has_key_twice(keys: pa.Array, owner: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    """Say which of some maps have a key twice; each key has the position of its map as its owner."""
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs, times = np.unique(owner * max(len(codes), 1) + codes, return_counts=True)
    has_twice = np.zeros(count, np.bool_)
    has_twice[pairs[times > 1] // max(len(codes), 1)] = True
    return has_twice


def named(what: str) -> str:
    """Return what a field is called in a reason."""
    return f"field {what}" if what else "the value"


def column_type(kind: pa.DataType) -> str:
    """Return a type in Spark's DDL."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{quoted(field.name)}: {column_type(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{column_type(kind.key_type)}, {column_type(kind.item_type)}>"
    return f"ARRAY<{column_type(kind.value_type)}>" if pa.types.is_list(kind) else _DDL[kind]


def quoted(name: str) -> str:
    """Return a column's name as DDL has it."""
    return f"`{name.replace('`', '``')}`"

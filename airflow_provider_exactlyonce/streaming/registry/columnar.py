"""Columns of values that are decoded: gathered from parts, converted, and named for people."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from airflow_provider_exactlyonce.streaming.registry.cursors import Cursor, Rows

#: By their names in Spark's DDL.
ARROW_TYPES: Final[Mapping[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "BINARY": pa.binary(),
    "STRING": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "TIMESTAMP_NTZ": pa.timestamp("us"),
}
_PLAIN: Final = r"^[-+]?(?:[0-9]+[.]?[0-9]{0,29}|[.][0-9]{1,29})$"
_NUMBER: Final = re.compile(r"[-+]?(?:[0-9]+[.]?[0-9]*|[.][0-9]+)(?:[eE][-+]?[0-9]+)?")
_SMALLEST: Final = Decimal("1e-38")  # that a decimal holds
_SHOWN_CHARACTERS: Final = 100  # the reason goes beside the value into one record of the topic for bad ones
_EXACT: Final = Context(prec=2 * 38, traps=[Inexact, InvalidOperation])
_DDL: Final = {kind: name for name, kind in ARROW_TYPES.items()}


class SchemaMismatchError(Exception):
    """A writer's schema can't be read as the reader's; the message says where."""


class Gathered:
    """An array that is made of parts; each part has the values of some places.

    :param count: of its places
    """

    def __init__(self, count: int) -> None:
        self._slots: Final = np.full(count, -1, np.int64)
        self._parts: Final[list[pa.Array]] = []
        self._value_count = 0

    def add(self, places: NDArray[np.bool_] | NDArray[np.int64], part: pa.Array | None) -> None:
        """Add the values of some places, or of the places that are true in a mask; None for unneeded values."""
        if part is not None:
            self._slots[places] = np.arange(self._value_count, self._value_count + len(part))
            self._parts.append(part)
            self._value_count += len(part)

    @property
    def absent(self) -> NDArray[np.bool_]:
        """The places that no part has a value for."""
        return np.less(self._slots, 0)

    def array(self, kind: pa.DataType) -> pa.Array:
        """Return it, null where no part has a value."""
        if len(self._parts) == 1 and np.array_equal(self._slots, np.arange(len(self._slots))):
            return self._parts[0]
        joined = pa.concat_arrays(self._parts) if self._parts else pa.array([], kind)
        return joined.take(pa.array(np.maximum(self._slots, 0), mask=self.absent))


def binary(values: pa.Array) -> pa.Array:
    """Return values as binary, whichever kind of it Spark gives."""
    return values if values.type == pa.binary() else values.cast(pa.binary())


def cast(cursor: Cursor, rows: Rows, values: pa.Array, kind: pa.DataType, what: str) -> pa.Array:
    """Convert values; a record with a value that the new type would change does not fit."""
    if values.type == kind:
        return values
    plain = _plain(values) if pa.types.is_decimal(kind) and pa.types.is_string(values.type) else values
    try:
        return _converted(plain, kind)
    except pa.ArrowInvalid:
        wrong = _inconvertible(plain, kind)
        for row in np.flatnonzero(wrong).tolist():
            mask = np.arange(len(values)) == row
            cursor.fail(rows, mask, f"{named(what)} does not fit {column_type(kind)}: {_shown(values[row])}")
        return _converted(plain.take(pa.array(np.arange(len(values)), mask=wrong)), kind)


def _plain(texts: pa.Array) -> pa.Array:
    """Return texts of numbers with no exponent, and without zeros behind the last digit.

    Arrow reads memory that is not its own for a number whose first digit is too far behind the point
    (apache/arrow#50964), and takes two signs and hexadecimal digits for an exponent. So such a text is none of a number
    any more.
    """
    if pc.all(pc.match_substring_regex(texts, _PLAIN)).as_py():
        return texts

    def plain(text: str | None) -> str | None:
        if text is None:
            return None
        if not _NUMBER.fullmatch(text):
            return "none"
        try:
            return f"{Decimal(text).quantize(_SMALLEST, context=_EXACT):f}".rstrip("0").rstrip(".")
        except (Inexact, InvalidOperation):
            return "none"

    return pa.array(map(plain, texts.to_pylist()), pa.string())


def _converted(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values as another type.

    :raises pa.ArrowInvalid: when one would become another value
    """
    if pa.types.is_decimal(kind):
        # Arrow multiplies modulo 2**128, and does not notice when it has come round to what the type holds.
        return values.cast(pa.decimal256(76, kind.scale)).cast(kind)
    if not (pa.types.is_integer(values.type) and pa.types.is_floating(kind)):
        return values.cast(kind)
    # Arrow takes an integer beyond the 53 bits of a double for lost, also one that is exact.
    floats = values.cast(kind, safe=False)
    if not floats.cast(pa.decimal128(38, 0)).equals(values.cast(pa.decimal128(38, 0))):
        raise pa.ArrowInvalid("an integer would be rounded")
    return floats


def _inconvertible(values: pa.Array, kind: pa.DataType) -> NDArray[np.bool_]:
    """Say which values can't be converted, found by halves."""
    try:
        _converted(values, kind)
    except pa.ArrowInvalid:
        if len(values) == 1:
            return np.ones(1, np.bool_)
        middle = len(values) // 2
        return np.concatenate((_inconvertible(values[:middle], kind), _inconvertible(values[middle:], kind)))
    return np.zeros(len(values), np.bool_)


def _shown(value: pa.Scalar) -> str:
    """Return a value for people: a moment that no calendar has as its number, of a long text the beginning."""
    try:
        return str(value)[:_SHOWN_CHARACTERS]
    except (ValueError, OverflowError):
        return f"{value.cast(pa.int64())} {value.type.unit}"


def as_text(cursor: Cursor, rows: Rows, raw: pa.Array, what: str) -> pa.Array:
    """Return bytes as texts; a record with bytes that are no text does not fit."""
    try:
        return raw.cast(pa.string())
    except pa.ArrowInvalid:
        wrong = _inconvertible(raw, pa.string())
        cursor.fail(rows, wrong, f"{named(what)} is not UTF-8")
        texts = raw.take(pa.array(np.arange(len(raw)), mask=wrong)).cast(pa.string())
        return texts.fill_null("")  # a map's key can't be null


def collected(
    cursor: Cursor,
    rows: Rows,
    owners: NDArray[np.int64],
    keys: pa.Array | None,
    items: pa.Array,
    kind: pa.ListType | pa.MapType,
    what: str,
) -> pa.Array:
    """Return arrays or maps of items; a record that has a key twice does not fit.

    :param owners: of each item, the position of its array or map among ``rows``
    :param keys: of a map's items, None for arrays
    """
    order, count = np.argsort(owners, kind="stable"), cursor.count(rows)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = np.cumsum(np.bincount(owners, minlength=count))
    items = items.take(pa.array(order))
    if keys is None:
        return pa.ListArray.from_arrays(pa.array(offsets), items, type=kind)
    keys = keys.take(pa.array(order))
    cursor.fail(rows, _has_key_twice(keys, owners[order], count), f"{named(what)} has a key twice")
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items, type=kind)


def _has_key_twice(keys: pa.Array, owner: NDArray[np.int64], count: int) -> NDArray[np.bool_]:
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    pairs, key_counts = np.unique(owner * max(len(codes), 1) + codes, return_counts=True)
    has_twice = np.zeros(count, np.bool_)
    has_twice[pairs[key_counts > 1] // max(len(codes), 1)] = True
    return has_twice


def named(what: str) -> str:
    """Return a field's name for a reason."""
    return f"field {what}" if what else "the value"


def column_type(kind: pa.DataType) -> str:
    """Return a type in Spark's DDL."""
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    if pa.types.is_struct(kind):
        return f"STRUCT<{', '.join(f'{_quoted(field.name)}: {column_type(field.type)}' for field in kind)}>"
    if pa.types.is_map(kind):
        return f"MAP<{column_type(kind.key_type)}, {column_type(kind.item_type)}>"
    return f"ARRAY<{column_type(kind.value_type)}>" if pa.types.is_list(kind) else _DDL[kind]


def columns_ddl(columns: Iterable[tuple[str, pa.DataType, bool]]) -> str:
    """Return columns in Spark's DDL.

    :param columns: of each its name, its type, and whether it is not null
    """
    return ", ".join(
        f"{_quoted(name)} {column_type(kind)}{' NOT NULL' if required else ''}" for name, kind, required in columns
    )


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"

"""Converts a value to the value that Spark would give back, or refuses it.

Spark stores null for a value that is not of the declared type, and rounds a decimal with too many places. And a state
that is read in the batch that wrote it is not read from the store. A value is therefore coerced when it is written:
the same value is read in that batch and in any later one, in Spark and in the harness.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import ROUND_HALF_EVEN, Context, Decimal
from typing import Any, Final

from airflow_provider_exactlyonce._moved import moved
from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state.ddl import DataType, Field

#: Returns the value as it will be read, or raises :class:`TypeMismatchError`; None stays None.
Coerce = Callable[[Any], Any]

_INTEGER_BITS: Final = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
#: Wide enough for any sum of two decimals of 38 digits.
_DECIMALS: Final = Context(prec=80, rounding=ROUND_HALF_EVEN)


__getattr__ = moved(__name__, "state.values", {"MisfitError": "TypeMismatchError"})


class TypeMismatchError(ValueError):
    """A value is not of its type. Callers add the name of the state or output."""

    def __init__(self, value: object, kind: object, why: str = "") -> None:
        super().__init__(f"{value!r} does not fit {kind}{': ' if why else ''}{why}")


def coerce(kind: DataType) -> Coerce:
    """Return a converter to a type."""
    if kind.name in _INTEGER_BITS:
        return _integer(kind)
    if kind.name == "DECIMAL":
        return _decimal(kind)
    if kind.name == "ARRAY":
        return _array(kind)
    if kind.name == "MAP":
        return _map(kind)
    if kind.name == "STRUCT":
        return _struct(kind)
    return _SIMPLE[kind.name]


def load(kind: DataType) -> Coerce | None:
    """Return a converter from Spark's stored value to the coerced one; None when the two are the same."""
    if kind.name == "TIMESTAMP":  # Spark's is without a zone, in the worker's own
        return lambda value: None if value is None else value.astimezone(dt.UTC)
    if kind.name == "BINARY":
        return lambda value: None if value is None else bytes(value)
    if kind.name == "STRUCT":
        return _loaded_struct(kind)
    if kind.name == "ARRAY" and (inner := load(kind.inner[0])):
        return lambda value: None if value is None else [inner(element) for element in value]
    if kind.name == "MAP" and any(load(part) for part in kind.inner):
        convert_key, convert_value = (load(part) or _same for part in kind.inner)
        return lambda value: (
            None
            if value is None
            else {convert_key(map_key): convert_value(map_value) for map_key, map_value in value.items()}
        )
    return None


def to_arrow(kind: DataType) -> Coerce | None:
    """Return a converter from a coerced value to Arrow's, where structs have names; None when the two are the same."""
    if kind.name == "STRUCT":
        fields = [(field.name, to_arrow(field.type) or _same) for field in kind.fields]
        return lambda value: (
            None
            if value is None
            else {name: to_item(item) for (name, to_item), item in zip(fields, value, strict=True)}
        )
    if kind.name == "ARRAY" and (inner := to_arrow(kind.inner[0])):
        return lambda value: None if value is None else [inner(element) for element in value]
    if kind.name == "MAP" and (convert := to_arrow(kind.inner[1])):
        return lambda value: None if value is None else {key: convert(item) for key, item in value.items()}
    return None


def is_mutable(kind: DataType) -> bool:
    """Tell whether a caller could change a coerced value."""
    return kind.name in ("ARRAY", "MAP") or any(is_mutable(field.type) for field in kind.fields)


def check_key(kind: DataType, whose: str) -> None:
    """Check that a type can be a map's key.

    :param whose: begins the message
    :raises RefusedError: when it can't
    """
    if is_mutable(kind):
        raise RefusedError(f"{whose}: {kind} can't be a map's key; Python can't look it up")


def _same(value: Any) -> Any:
    return value


def _integer(kind: DataType) -> Coerce:
    bits = _INTEGER_BITS[kind.name]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1

    def coerced(value: Any) -> Any:
        if value is None or (type(value) is int and low <= value <= high):
            return value
        raise TypeMismatchError(value, kind, f"{bits} bits" if type(value) is int else "")

    return coerced


def _decimal(kind: DataType) -> Coerce:
    precision, scale = kind.precision
    quantum, limit = Decimal(1).scaleb(-scale), Decimal(10) ** (precision - scale)

    def coerced(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is not Decimal:
            if type(value) is not int:
                raise TypeMismatchError(value, kind)
            value = Decimal(value)
        if not value.is_finite() or value.copy_abs() >= limit:
            raise TypeMismatchError(value, kind, f"at most {precision - scale} digits before the point")
        result = _DECIMALS.plus(value.quantize(quantum, context=_DECIMALS))  # Spark has no -0
        if result != value:
            raise TypeMismatchError(value, kind, "it would be rounded; quantize it")
        return result

    return coerced


def _instance_of(kind: type, name: str) -> Coerce:
    def coerced(value: Any) -> Any:
        if type(value) is kind or value is None:
            return value
        raise TypeMismatchError(value, name)

    return coerced


def _double(value: Any) -> Any:
    if type(value) is float or value is None:
        return value
    if type(value) is not int:
        raise TypeMismatchError(value, "DOUBLE")
    with suppress(OverflowError):  # larger than any double
        if int(float(value)) == value:
            return float(value)
    raise TypeMismatchError(value, "DOUBLE", "it would be rounded")


def _float(value: Any) -> Any:
    """Round to 32 bits, as the type FLOAT requires."""
    if value is None:
        return None
    if type(value) not in (float, int):
        raise TypeMismatchError(value, "FLOAT")
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except (OverflowError, struct.error):  # a finite one that 32 bits have no room for
        raise TypeMismatchError(value, "FLOAT", "32 bits") from None


def _binary(value: Any) -> Any:
    if isinstance(value, bytes | bytearray) or value is None:
        return None if value is None else bytes(value)
    raise TypeMismatchError(value, "BINARY")


def _timestamp(value: Any) -> Any:
    if value is None:
        return None
    if not isinstance(value, dt.datetime):
        raise TypeMismatchError(value, "TIMESTAMP")
    if value.tzinfo is None:
        raise TypeMismatchError(
            value, "TIMESTAMP", "it has no time zone; say tzinfo=datetime.UTC, or declare TIMESTAMP_NTZ"
        )
    try:
        return _exact(value.astimezone(dt.UTC), dt.UTC)
    except OverflowError as error:
        raise TypeMismatchError(value, "TIMESTAMP", "in UTC it is before the year 1 or after 9999") from error


def _exact(value: dt.datetime, zone: dt.tzinfo | None) -> dt.datetime:
    """Return the same time without the subclass and the fold, which Spark does not keep."""
    if type(value) is dt.datetime and not value.fold:
        return value
    return dt.datetime.combine(value.date(), value.time(), zone).replace(fold=0)


def _local_timestamp(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return _exact(value, None)
    raise TypeMismatchError(value, "TIMESTAMP_NTZ", "it has a time zone" if isinstance(value, dt.datetime) else "")


_SIMPLE: Final[Mapping[str, Coerce]] = {
    "BOOLEAN": _instance_of(bool, "BOOLEAN"),
    "STRING": _instance_of(str, "STRING"),
    "DATE": _instance_of(dt.date, "DATE"),
    "FLOAT": _float,
    "DOUBLE": _double,
    "BINARY": _binary,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": _local_timestamp,
}


def _array(kind: DataType) -> Coerce:
    inner = coerce(kind.inner[0])

    def coerced(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, list | tuple):
            raise TypeMismatchError(value, kind)
        return [inner(element) for element in value]

    return coerced


def _map(kind: DataType) -> Coerce:
    convert_key, convert_value = (coerce(part) for part in kind.inner)

    def coerced(value: Any) -> Any:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise TypeMismatchError(value, kind)
        if None in value:
            raise TypeMismatchError(value, kind, "None is no key")
        return {convert_key(map_key): convert_value(map_value) for map_key, map_value in value.items()}

    return coerced


def _struct(kind: DataType) -> Coerce:
    fields = [(field, coerce(field.type)) for field in kind.fields]
    count = len(fields)
    names = [field.name for field in kind.fields]

    def coerced(value: Any) -> Any:
        if value is None:
            return None
        items = value if type(value) is tuple else values_of(value, names)
        if items is None or len(items) != count:
            raise TypeMismatchError(value, kind, f"{count} fields")
        return tuple(
            [_required(field, coerce_item(item)) for (field, coerce_item), item in zip(fields, items, strict=True)]
        )

    return coerced


def values_of(value: Any, names: Sequence[str]) -> Sequence[Any] | None:
    """Return a row's values in the order of its type's fields, None when it is no row of these fields.

    A mapping, and whatever has names of its own as Spark's Row, goes by the names; a bare tuple or list goes in order.
    """
    if isinstance(value, Mapping):
        return [value[name] for name in names] if set(value) == set(names) else None
    if not isinstance(value, list | tuple):
        return None
    own_names = getattr(value, "__fields__", None) or getattr(value, "_fields", None)
    if own_names is None or list(own_names) == list(names):
        return value
    return [value[list(own_names).index(name)] for name in names] if set(own_names) == set(names) else None


def _required(field: Field, value: Any) -> Any:
    if value is None and field.required:
        raise TypeMismatchError(value, f"field {field.name}", "it is NOT NULL")
    return value


def _loaded_struct(kind: DataType) -> Coerce:
    loads = [load(field.type) or _same for field in kind.fields]

    def loaded(value: Any) -> Any:
        if value is None:
            return None
        # Spark gives a struct as a row, and as a dictionary where it comes straight out of Arrow.
        fields = value.values() if isinstance(value, dict) else value
        return tuple([convert(item) for convert, item in zip(loads, fields, strict=True)])

    return loaded

"""The defaults of an Avro schema: a reader's values of fields that the writer lacks."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.streaming.registry import avro_types
from airflow_provider_exactlyonce.streaming.registry.avro_types import AvroField, AvroType


def check(reader: AvroType) -> None:
    """Check all defaults of a reader's schema, since it may need each.

    :param reader: a type that is not recursive
    :raises RefusedError: naming the first default that is no value of its field
    """
    for field in reader.fields:
        if field.has_default:
            default_of(field)
    for part in reader.parts:
        check(part)


def default_of(field: AvroField) -> pa.Scalar:
    """Return a field's default; null for one that is nullable and has none.

    :raises RefusedError: when it is no value of the field
    """
    kind = avro_types.arrow_type(field.type)
    if not field.has_default:
        return pa.scalar(None, kind)
    try:
        return pa.scalar(_value(field.type, field.given), kind)
    except (pa.ArrowException, ValueError, TypeError, AttributeError, OverflowError):
        raise RefusedError(f"the default {field.given!r} of the Avro field {field.name} is no {field.type}") from None


def _value(kind: AvroType, given: Any) -> Any:
    """Return a value given in JSON in the form that Arrow takes.

    :raises ValueError: when it is no value of the type
    """
    value = kind.value
    if given is None or value is None:
        if given is not None or not kind.is_nullable:
            raise ValueError(given)
        return None
    if value.kind == "record":
        return {field.name: _part(field, given) for field in value.fields}
    if value.items is not None:
        item_type = value.items
        if value.kind == "array":
            return [_value(item_type, item) for item in given]
        return [(key, _value(item_type, item)) for key, item in given.items()]
    if value.kind == "enum" and given not in value.symbols:
        raise ValueError(given)
    if value.kind in ("bytes", "fixed"):
        raw = given.encode("latin-1")
        if value.logical != "decimal":
            return raw
        return decimal.Decimal(f"{int.from_bytes(raw, 'big', signed=True)}E-{value.digits[1]}")
    if value.kind in ("float", "double"):
        return float(given)
    unit = (value.logical or "").rpartition("-")[2]
    if value.kind in ("int", "long") and int(given) != given:
        raise ValueError(given)
    if unit == "nanos" and given % 1000:
        raise ValueError(given)
    return {"millis": 1000 * given, "nanos": given // 1000}[unit] if unit in ("millis", "nanos") else given


def _part(field: AvroField, given: Any) -> Any:
    """Return a field's part of a record's default."""
    if field.name in given:
        return _value(field.type, given[field.name])
    if not field.has_default:
        raise ValueError(given)
    return _value(field.type, field.given)

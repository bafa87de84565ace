"""Values as the JSON that sinks write into a database's column of JSON, and the types that have none."""

from __future__ import annotations

import base64
import datetime
import json
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_exactlyonce.exceptions import RecordRefusedError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

#: By the names of their classes in Spark.
_SCALARS: Final = {
    *("byte", "short", "integer", "long", "float", "double", "decimal", "boolean", "string", "binary", "void"),
    *("date", "time", "timestamp", "timestamp_ntz"),
}


def without_json(type_: DataType) -> DataType | None:
    """Return the first type within a type of Spark that has no JSON, None when all have it."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(type_, MapType):
        if isinstance(type_.keyType, ArrayType | StructType):
            return type_.keyType  # a name in JSON is a text
        parts = [type_.keyType, type_.valueType]
    elif isinstance(type_, ArrayType):
        parts = [type_.elementType]
    elif isinstance(type_, StructType):
        parts = [field.dataType for field in type_.fields]
    else:
        return None if type_.typeName().partition("(")[0] in _SCALARS else type_
    return next((found for found in map(without_json, parts) if found is not None), None)


def to_json(value: Any) -> str:
    """Return JSON in which decimals keep their digits, times are ISO 8601 and bytes are base64, also as keys of maps.

    :raises RecordRefusedError: for what JSON lacks, such as not-a-number and infinities
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{_name(name)}:{to_json(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(to_json, value)) + "]"
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, datetime.date | datetime.time):
        return json.dumps(value.isoformat())
    if isinstance(value, bytes):
        return json.dumps(base64.b64encode(value).decode())
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise RecordRefusedError(f"{value} has no JSON, for a column of JSON") from error


def _name(key: Any) -> str:
    text = to_json(key)
    return text if text.startswith('"') else f'"{text}"'

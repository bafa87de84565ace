"""Avro schemas: read from JSON, made from Spark's types, and converted to Spark's and Arrow's types."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state import ddl
from airflow_provider_exactlyonce.streaming.registry import columnar
from airflow_provider_exactlyonce.streaming.registry.columnar import ARROW_TYPES

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
#: Logical types that say what a value is; others are what lies below them.
_LOGICAL: Final[Mapping[str, frozenset[str]]] = {
    "decimal": frozenset({"bytes", "fixed"}),
    "date": frozenset({"int"}),
    **dict.fromkeys(
        (
            *("timestamp-millis", "timestamp-micros", "timestamp-nanos"),
            *("local-timestamp-millis", "local-timestamp-micros", "local-timestamp-nanos"),
        ),
        frozenset({"long"}),
    ),
    # Names of our own: they distinguish columns of these types from INT.
    **dict.fromkeys(("tinyint", "smallint"), frozenset({"int"})),
}
#: Those that a value does not have by itself: what has none is not read as one, nor the other way round.
MEANINGS: Final = frozenset(_LOGICAL) - {"tinyint", "smallint"}
_MISSING: Final = object()


@dataclass(frozen=True, eq=False)
class AvroType:
    """A type of an Avro schema.

    :param kind: the name of a primitive type, ``fixed``, ``enum``, ``array``, ``map``, ``record`` or ``union``
    :param logical: the logical type, None for none
    :param name: with its name space, of a named type
    :param digits: of a decimal, in all and behind the point
    :param size: of a ``fixed``
    :param symbols: of an ``enum``; ``default`` is a reader's value for any other symbol
    :param items: of an ``array`` or a ``map``
    :param branches: of a ``union``
    """

    kind: str
    logical: str | None = None
    name: str = ""
    digits: tuple[int, int] = (0, 0)
    size: int = 0
    symbols: tuple[str, ...] = ()
    default: str | None = None
    items: AvroType | None = None
    fields: list[AvroField] = field(default_factory=list)
    branches: tuple[AvroType, ...] = ()

    def __str__(self) -> str:
        if self.logical == "decimal":
            return f"decimal({self.digits[0]},{self.digits[1]})"
        if self.kind == "union":
            return " or ".join(map(str, self.branches))
        return self.logical or (f"{self.kind} {self.name}" if self.name else self.kind)

    @property
    def value(self) -> AvroType | None:
        """Its type when it is not null; None when it may be several types, or null only."""
        if self.kind != "union":
            return None if self.kind == "null" else self
        non_null = [branch for branch in self.branches if branch.kind != "null"]
        return non_null[0] if len(non_null) == 1 else None

    @property
    def parts(self) -> list[AvroType]:
        """The types that it is made of."""
        return [*self.branches, *(field.type for field in self.fields), *([self.items] if self.items else [])]

    @property
    def is_nullable(self) -> bool:
        """Whether it may be null."""
        return self.kind == "null" or any(branch.kind == "null" for branch in self.branches)


@dataclass(frozen=True, eq=False)
class AvroField:
    """A field of a record."""

    name: str
    type: AvroType
    aliases: tuple[str, ...] = ()
    given: Any = _MISSING

    @property
    def has_default(self) -> bool:
        """Whether a reader has a value for it that a writer has not written."""
        return self.given is not _MISSING


def parse(schema: str, named: Mapping[str, AvroType] | None = None) -> AvroType:
    """Return the type that a schema is.

    :param schema: JSON
    :param named: types that it refers to, by their names
    :raises RefusedError: when it is no Avro schema
    """
    try:
        return _Parser(dict(named or {})).type(json.loads(schema), "")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise RefusedError(f"{schema[:200]!r} is no Avro schema: {reason}") from error


def named_types(root: AvroType) -> dict[str, AvroType]:
    """Return the named types in a type, by their names."""
    return {avro_type.name: avro_type for avro_type in (root, *_below(root)) if avro_type.name}


def _below(root: AvroType) -> Iterator[AvroType]:
    """Yield all types that a type is made of, each once; itself, if it has itself in it."""
    waiting, seen = list(root.parts), set()
    while waiting:
        avro_type = waiting.pop()
        if avro_type not in seen:
            seen.add(avro_type)
            waiting += avro_type.parts
            yield avro_type


class _Parser:
    def __init__(self, named: dict[str, AvroType]) -> None:
        self._named = named

    def type(self, given: Any, space: str) -> AvroType:
        if isinstance(given, list):
            return AvroType("union", branches=tuple(self.type(branch, space) for branch in given))
        if isinstance(given, str):
            if given in _PRIMITIVES:
                return AvroType(given)
            name = f"{space}.{given}"
            name = name if "." not in given and name in self._named else given
            if name not in self._named:
                raise ValueError(f"there is no type {given!r}")
            return self._named[name]
        kind = given["type"]
        if isinstance(kind, dict | list):
            return self.type(kind, space)
        if kind in ("array", "map"):
            return AvroType(kind, items=self.type(given["items" if kind == "array" else "values"], space))
        if kind not in ("record", "error", "enum", "fixed"):
            inner = self.type(kind, space)
            return self._logical(AvroType(kind), given) if kind in _PRIMITIVES else inner
        return self._named_type(kind, given, space)

    def _named_type(self, kind: str, given: Mapping[str, Any], space: str) -> AvroType:
        name = given["name"]
        space = name.rpartition(".")[0] if "." in name else given.get("namespace", space)
        name = name if "." in name or not space else f"{space}.{name}"
        if kind == "enum":
            avro_type = AvroType(kind, name=name, symbols=tuple(given["symbols"]), default=given.get("default"))
        elif kind == "fixed":
            avro_type = self._logical(AvroType(kind, name=name, size=int(given["size"])), given)
        else:
            avro_type = AvroType("record", name=name)
        self._named[name] = avro_type
        if avro_type.kind == "record":  # its fields may be of its own type
            avro_type.fields.extend(self._field(field, space) for field in given["fields"])
        return avro_type

    def _field(self, given: Mapping[str, Any], space: str) -> AvroField:
        kind = self.type(given["type"], space)
        return AvroField(given["name"], kind, tuple(given.get("aliases", ())), given.get("default", _MISSING))

    def _logical(self, avro_type: AvroType, given: Mapping[str, Any]) -> AvroType:
        logical = given.get("logicalType")
        if avro_type.kind not in _LOGICAL.get(str(logical), ()):
            return avro_type
        digits = (int(given.get("precision", 0)), int(given.get("scale", 0))) if logical == "decimal" else (0, 0)
        if logical == "decimal" and not 0 <= digits[1] <= digits[0] != 0:
            return avro_type  # the specification: then it is what lies below
        return replace(avro_type, logical=logical, digits=digits)


_AVRO: Final[Mapping[str, tuple[str, str | None]]] = {
    "BOOLEAN": ("boolean", None),
    "TINYINT": ("int", "tinyint"),
    "SMALLINT": ("int", "smallint"),
    "INT": ("int", None),
    "BIGINT": ("long", None),
    "FLOAT": ("float", None),
    "DOUBLE": ("double", None),
    "BINARY": ("bytes", None),
    "STRING": ("string", None),
    "DATE": ("int", "date"),
    "TIMESTAMP": ("long", "timestamp-micros"),
    "TIMESTAMP_NTZ": ("long", "local-timestamp-micros"),
}
_ARROW: Final[Mapping[str, pa.DataType]] = {
    **{logical or primitive: ARROW_TYPES[name] for name, (primitive, logical) in _AVRO.items()},
    "fixed": pa.binary(),
    "enum": pa.string(),
    **dict.fromkeys(("timestamp-millis", "timestamp-nanos"), ARROW_TYPES["TIMESTAMP"]),
    **dict.fromkeys(("local-timestamp-millis", "local-timestamp-nanos"), ARROW_TYPES["TIMESTAMP_NTZ"]),
}


def arrow_type(given: AvroType) -> pa.DataType:
    """Return the type of a column with such values.

    :raises RefusedError: when a column can't have them
    """
    value = given.value
    if value is None:
        raise RefusedError(f"no column can have values of the Avro type {given}")
    if value.logical == "decimal":
        if value.digits[0] > 38:
            raise RefusedError(f"{value} has more than the 38 digits of a decimal column")
        return pa.decimal128(*value.digits)
    if value.kind == "record":
        if not value.fields:
            raise RefusedError(f"{value} has no fields")
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in value.fields])
    if value.items is not None:
        inner = arrow_type(value.items)
        return pa.list_(inner) if value.kind == "array" else pa.map_(pa.string(), inner)
    return _ARROW[value.logical or value.kind]


def columns_ddl(record: AvroType) -> str:
    """Return a record's fields as a table's columns, in Spark's DDL.

    :raises RefusedError: when a column can't have what a field has
    """
    if record.kind != "record":
        raise RefusedError(
            f"a stream's columns are the fields of a record, and the Avro schema is of the type {record}"
        )
    if recursive := [name for name, avro_type in named_types(record).items() if avro_type in _below(avro_type)]:
        raise RefusedError(f"the Avro type {recursive[0]} has itself in its fields, and no column can")
    return columnar.columns_ddl(
        (field.name, arrow_type(field.type), not field.type.is_nullable) for field in record.fields
    )


def schema_of_columns(columns: str, name: str, *, reading: bool = False) -> str:
    """Return the Avro schema, JSON, of a record with a table's columns as fields.

    :param columns: in Spark's DDL; a column that is not ``NOT NULL`` may be null or absent
    :param reading: distinguish ``TINYINT`` and ``SMALLINT`` from ``INT``, with logical types of this package's own
    :raises RefusedError: when Avro has no type for a column
    """
    return json.dumps(_record(ddl.parse(columns).fields, name, reading))


def _record(fields: tuple[ddl.Field, ...], name: str, reading: bool) -> dict[str, Any]:
    entries = []
    for column in fields:
        kind = _schema(column.type, f"{name}_{column.name}", reading)
        required = {"name": column.name, "type": kind}
        entries.append(required if column.required else {"name": column.name, "type": ["null", kind], "default": None})
    return {"type": "record", "name": name, "fields": entries}


def _schema(kind: ddl.DataType, name: str, reading: bool) -> Any:
    if kind.name == "DECIMAL":
        precision, scale = kind.precision
        return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}
    if kind.name == "STRUCT":
        return _record(kind.fields, name, reading)
    if kind.name == "ARRAY":
        return {"type": "array", "items": ["null", _schema(kind.inner[0], f"{name}_item", reading)]}
    if kind.name == "MAP":
        if kind.inner[0].name != "STRING":
            raise RefusedError(f"the keys of Avro's maps are texts, and a column is {kind}")
        return {"type": "map", "values": ["null", _schema(kind.inner[1], f"{name}_value", reading)]}
    primitive, logical = _AVRO[kind.name]
    if logical in ("tinyint", "smallint") and not reading:
        return primitive
    return primitive if logical is None else {"type": primitive, "logicalType": logical}

"""The columns that a reader needs of a Protobuf message, made of Spark's types or of a message's fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from airflow_provider_exactlyonce.exceptions import RefusedError
from airflow_provider_exactlyonce.state import ddl
from airflow_provider_exactlyonce.streaming.registry import columnar
from airflow_provider_exactlyonce.streaming.registry.columnar import ARROW_TYPES
from airflow_provider_exactlyonce.streaming.registry.protobuf_schemas import INSTEAD, TIMESTAMP

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

#: Messages that stand for a value that may be null.
WRAPPERS: Final = frozenset(
    f"google.protobuf.{name}Value"
    for name in ("Bool", "Bytes", "Double", "Float", "Int32", "Int64", "String", "UInt32", "UInt64")
)
_ARROW: Final[Mapping[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "bytes": pa.binary(),
    "double": pa.float64(),
    "enum": pa.string(),
    "float": pa.float32(),
    "string": pa.string(),
    **dict.fromkeys(("int32", "sint32", "sfixed32"), pa.int32()),
    **dict.fromkeys(("uint32", "fixed32", "int64", "sint64", "sfixed64"), pa.int64()),
    **dict.fromkeys(("uint64", "fixed64"), pa.decimal128(20, 0)),
}


#: What is written in a number of bytes that its type says, as numpy's types.
FIXED: Final[Mapping[str, str]] = {
    "double": "<f8",
    "fixed64": "<u8",
    "sfixed64": "<i8",
    "float": "<f4",
    "fixed32": "<u4",
    "sfixed32": "<i4",
}
#: Wire types, as in Protobuf's encoding.
VARINT, FIXED64, BYTES, GROUP, GROUP_END, FIXED32 = range(6)


@dataclass(frozen=True)
class Column:
    """A column, or a part of one.

    :param kind: its type
    :param required: it is not null
    :param number: of its field; None when a writer's field is found by the name
    :param default: its value where a writer's schema lacks the field, None for none
    :param parts: a STRUCT's fields; the items of an ARRAY; keys and values of a MAP
    """

    name: str
    kind: pa.DataType
    required: bool = False
    number: int | None = None
    default: Any = None
    parts: tuple[Column, ...] = ()


def type_name(field: FieldDescriptor) -> str:
    """Return the name of a field's type in a schema, such as ``int32``; ``message`` and ``enum`` for those two."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def wire_type(name: str) -> int:
    """Return how values of a type are written."""
    if name in FIXED:
        return FIXED64 if FIXED[name].endswith("8") else FIXED32
    return BYTES if name in ("string", "bytes", "message") else VARINT


def is_map(field: FieldDescriptor) -> bool:
    """Whether a field is a map."""
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def described(field: FieldDescriptor) -> str:
    """Return a field's type for people."""
    name = type_name(field) if field.message_type is None else field.message_type.full_name
    return "a map" if is_map(field) else f"repeated {name}" if field.is_repeated else name


def of_columns(columns: str) -> tuple[Column, ...]:
    """Return a table's columns.

    :param columns: in Spark's DDL
    :raises RefusedError: when Protobuf has no type for one
    """
    return tuple(_declared(field.name, field.type, field.required, field.name) for field in ddl.parse(columns).fields)


def _declared(name: str, kind: ddl.DataType, required: bool, path: str) -> Column:
    if kind.name == "STRUCT":
        parts = tuple(
            _declared(field.name, field.type, field.required, f"{path}.{field.name}") for field in kind.fields
        )
        return Column(name, struct_of(parts), required, parts=parts)
    if kind.inner:
        parts = tuple(_declared("", inner, False, path) for inner in kind.inner)
        kinds = [part.kind for part in parts]
        return Column(name, pa.list_(*kinds) if kind.name == "ARRAY" else pa.map_(*kinds), required, parts=parts)
    if kind.name in INSTEAD:
        raise RefusedError(
            f"ProtobufFormat: column {path} is {kind}, for which Protobuf has no type: {INSTEAD[kind.name]}"
        )
    return Column(name, pa.decimal128(*kind.precision) if kind.name == "DECIMAL" else ARROW_TYPES[kind.name], required)


def struct_of(columns: Sequence[Column]) -> pa.StructType:
    """Return the type of rows with such columns."""
    return pa.struct([pa.field(column.name, column.kind) for column in columns])


def of_message(message: Descriptor, above: tuple[str, ...] = ()) -> tuple[Column, ...]:
    """Return the columns that a message's fields are.

    :param above: the names of the messages that it is a part of
    :raises RefusedError: when a column can't have what a field has
    """
    if message.full_name in above:
        raise RefusedError(f"the Protobuf message {message.full_name} has itself in its fields, and no column can")
    if not message.fields:
        raise RefusedError(f"the Protobuf message {message.full_name} has no fields, and a column needs one")
    return tuple(_field(field, (*above, message.full_name)) for field in message.fields)


def _field(field: FieldDescriptor, above: tuple[str, ...]) -> Column:
    if is_map(field):
        key, value = (_single(field.message_type.fields_by_name[part], above) for part in ("key", "value"))
        return Column(field.name, pa.map_(key.kind, value.kind), True, field.number, (), (key, value))
    single = _single(field, above)
    if field.is_repeated:
        return Column(field.name, pa.list_(single.kind), True, field.number, (), (single,))
    return single


def _single(field: FieldDescriptor, above: tuple[str, ...]) -> Column:
    kind = type_name(field)
    parts: tuple[Column, ...] = ()
    if kind == "group":
        raise RefusedError(f"the Protobuf field {field.full_name} is a group, which no column can be")
    if kind != "message":
        arrow = _ARROW[kind]
    elif field.message_type.full_name in WRAPPERS:
        arrow = _ARROW[type_name(field.message_type.fields_by_name["value"])]
    elif field.message_type.full_name == TIMESTAMP:
        arrow = ARROW_TYPES["TIMESTAMP"]
    else:
        parts = of_message(field.message_type, above)
        arrow = struct_of(parts)
    required = not field.has_presence or field.is_required
    default = None if field.has_presence or field.is_repeated else _default(field, arrow)
    return Column(field.name, arrow, required, field.number, default, parts)


def _default(field: FieldDescriptor, kind: pa.DataType) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values_by_number[field.default_value].name
    return Decimal(field.default_value) if pa.types.is_decimal(kind) else field.default_value


def columns_ddl(message: Descriptor) -> str:
    """Return a message's fields as a table's columns, in Spark's DDL.

    :raises RefusedError: when a column can't have what a field has
    """
    return columnar.columns_ddl((column.name, column.kind, column.required) for column in of_message(message))

"""Protobuf schemas and messages of any kind, made by protobuf's own runtime; what a row of them is."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format, timestamp_pb2, wrappers_pb2
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from hypothesis import strategies as st

from airflow_provider_exactlyonce.streaming.registry import protobuf_types
from airflow_provider_exactlyonce.streaming.registry.protobuf_schemas import TIMESTAMP

FIELD = descriptor_pb2.FieldDescriptorProto
FLOAT = st.floats(width=32, allow_nan=False)
NUMBERS: Mapping[int, st.SearchStrategy[Any]] = {
    **dict.fromkeys((FIELD.TYPE_INT32, FIELD.TYPE_SINT32, FIELD.TYPE_SFIXED32), st.integers(-(2**31), 2**31 - 1)),
    **dict.fromkeys((FIELD.TYPE_INT64, FIELD.TYPE_SINT64, FIELD.TYPE_SFIXED64), st.integers(-(2**63), 2**63 - 1)),
    **dict.fromkeys((FIELD.TYPE_UINT32, FIELD.TYPE_FIXED32), st.integers(0, 2**32 - 1)),
    **dict.fromkeys((FIELD.TYPE_UINT64, FIELD.TYPE_FIXED64), st.integers(0, 2**64 - 1)),
}
VALUES: Mapping[int, st.SearchStrategy[Any]] = {
    **NUMBERS,
    FIELD.TYPE_BOOL: st.booleans(),
    FIELD.TYPE_FLOAT: FLOAT,
    FIELD.TYPE_DOUBLE: st.floats(allow_nan=False),
    FIELD.TYPE_STRING: st.text(max_size=20),
    FIELD.TYPE_BYTES: st.binary(max_size=20),
    FIELD.TYPE_ENUM: st.sampled_from([0, 1, -5]),
}
KEYS = [*NUMBERS, FIELD.TYPE_BOOL, FIELD.TYPE_STRING]
WELL_KNOWN = ("Timestamp", "StringValue", "BytesValue", "Int64Value", "UInt64Value", "BoolValue", "DoubleValue")


#: A message with a field of each kind, and one with a message in it.
SHOP = """
name: "shop.proto" package: "shop" syntax: "proto3" dependency: "google/protobuf/timestamp.proto"
message_type {
  name: "Order"
  field { name: "id" number: 1 type: TYPE_INT64 label: LABEL_OPTIONAL }
  field { name: "name" number: 2 type: TYPE_STRING label: LABEL_OPTIONAL proto3_optional: true oneof_index: 1 }
  field { name: "at" number: 3 type_name: ".google.protobuf.Timestamp" label: LABEL_OPTIONAL }
  field { name: "kind" number: 4 type_name: ".shop.Order.Kind" label: LABEL_OPTIONAL }
  field { name: "cash" number: 5 type: TYPE_INT32 label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "card" number: 6 type: TYPE_STRING label: LABEL_OPTIONAL oneof_index: 0 }
  field { name: "total" number: 7 type: TYPE_UINT64 label: LABEL_OPTIONAL }
  field { name: "parts" number: 8 type: TYPE_INT32 label: LABEL_REPEATED }
  field { name: "counts" number: 9 type_name: ".shop.Order.CountsEntry" label: LABEL_REPEATED }
  field { name: "price" number: 10 type: TYPE_STRING label: LABEL_OPTIONAL }
  field { name: "owner" number: 11 type_name: ".shop.Order.Owner" label: LABEL_OPTIONAL }
  field { name: "ratio" number: 12 type: TYPE_FLOAT label: LABEL_OPTIONAL }
  field { name: "seen" number: 13 type_name: ".shop.Order.SeenEntry" label: LABEL_REPEATED }
  oneof_decl { name: "paid" }
  oneof_decl { name: "_name" }
  enum_type { name: "Kind" value { name: "NONE" number: 0 } value { name: "SOLD" number: 1 } }
  nested_type {
    name: "CountsEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type {
    name: "SeenEntry" options { map_entry: true }
    field { name: "key" number: 1 type: TYPE_UINT64 label: LABEL_OPTIONAL }
    field { name: "value" number: 2 type: TYPE_INT32 label: LABEL_OPTIONAL }
  }
  nested_type { name: "Owner" field { name: "name" number: 1 type: TYPE_STRING label: LABEL_OPTIONAL } }
}
message_type {
  name: "Gone"
  nested_type { name: "Deep" field { name: "ok" number: 1 type: TYPE_BOOL label: LABEL_OPTIONAL } }
  field { name: "deep" number: 1 type_name: ".shop.Gone.Deep" label: LABEL_OPTIONAL }
}
"""


def message_of(file: str | descriptor_pb2.FileDescriptorProto, name: str) -> Descriptor:
    """Return a message of a file, whose descriptor may be a text."""
    pool = descriptor_pool.DescriptorPool()
    for module in (timestamp_pb2, wrappers_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(text_format.Parse(file, descriptor_pb2.FileDescriptorProto()) if isinstance(file, str) else file)
    return pool.FindMessageTypeByName(name)


@st.composite
def schemas(draw: st.DrawFn) -> Descriptor:
    """Draw a message type, with messages in it, and fields of all kinds."""
    file = descriptor_pb2.FileDescriptorProto(name="drawn.proto", package="drawn", syntax="proto3")
    file.dependency.extend(["google/protobuf/timestamp.proto", "google/protobuf/wrappers.proto"])
    kind = file.enum_type.add(name="Kind")
    for name, number in (("NONE", 0), ("SOME", 1), ("LESS", -5)):
        kind.value.add(name=name, number=number)
    _draw_message(draw, file.message_type.add(name="Root"), ".drawn.Root", 2)
    return message_of(file, "drawn.Root")


def _draw_message(draw: st.DrawFn, message: descriptor_pb2.DescriptorProto, path: str, depth: int) -> None:
    numbers = st.sampled_from([*range(1, 20), 2000, 2**29 - 1])
    for number in draw(st.lists(numbers, min_size=1, max_size=5, unique=True)):
        field = message.field.add(name=f"f{number}", number=number, label=FIELD.LABEL_OPTIONAL)
        form = draw(st.sampled_from(["plain", "optional", "repeated", "unpacked", "map", "oneof"]))
        if form == "map":
            entry = message.nested_type.add(name=f"F{number}Entry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=FIELD.LABEL_OPTIONAL, type=draw(st.sampled_from(KEYS)))
            value = entry.field.add(name="value", number=2, label=FIELD.LABEL_OPTIONAL)
            _draw_type(draw, message, value, number, path, depth)
            field.label, field.type, field.type_name = FIELD.LABEL_REPEATED, FIELD.TYPE_MESSAGE, f"{path}.{entry.name}"
            continue
        _draw_type(draw, message, field, number, path, depth)
        if form in ("repeated", "unpacked"):
            field.label = FIELD.LABEL_REPEATED
            if form == "unpacked" and field.type in (*NUMBERS, FIELD.TYPE_BOOL, FIELD.TYPE_DOUBLE, FIELD.TYPE_ENUM):
                field.options.packed = False
        elif form == "oneof":
            if not message.oneof_decl:
                message.oneof_decl.add(name="one")
            field.oneof_index = 0
    for field in message.field:  # protobuf wants the oneofs of optional fields behind all others
        if field.label == FIELD.LABEL_OPTIONAL and not field.HasField("oneof_index") and draw(st.booleans()):
            field.proto3_optional, field.oneof_index = True, len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")


def _draw_type(
    draw: st.DrawFn,
    message: descriptor_pb2.DescriptorProto,
    field: descriptor_pb2.FieldDescriptorProto,
    number: int,
    path: str,
    depth: int,
) -> None:
    chosen = draw(st.sampled_from([*VALUES, *WELL_KNOWN, *(["message"] * 3 if depth else [])]))
    if isinstance(chosen, int):
        field.type = chosen
        if chosen == FIELD.TYPE_ENUM:
            field.type_name = ".drawn.Kind"
        return
    field.type = FIELD.TYPE_MESSAGE
    if chosen in WELL_KNOWN:
        field.type_name = f".google.protobuf.{chosen}"
        return
    nested = message.nested_type.add(name=f"M{number}")
    field.type_name = f"{path}.{nested.name}"
    _draw_message(draw, nested, field.type_name, depth - 1)


@st.composite
def messages(draw: st.DrawFn, kind: Descriptor) -> Any:
    """Draw a message of a type."""
    message = message_factory.GetMessageClass(kind)()
    _fill(draw, message)
    return message


def _fill(draw: st.DrawFn, message: Any) -> None:
    if message.DESCRIPTOR.full_name == TIMESTAMP:
        moment = draw(st.datetimes(timezones=st.just(UTC)))
        message.FromDatetime(moment)
        return
    for field in message.DESCRIPTOR.fields:
        if protobuf_types.is_map(field):
            key, value = (field.message_type.fields_by_name[part] for part in ("key", "value"))
            for drawn in draw(st.lists(VALUES[key.type], max_size=3)):
                if value.message_type is not None:
                    _fill(draw, getattr(message, field.name)[drawn])
                else:
                    getattr(message, field.name)[drawn] = draw(VALUES[value.type])
        elif field.is_repeated:
            for _ in range(draw(st.integers(0, 3))):
                if field.message_type is not None:
                    _fill(draw, getattr(message, field.name).add())
                else:
                    getattr(message, field.name).append(draw(VALUES[field.type]))
        elif not draw(st.booleans()):
            continue
        elif field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(draw, getattr(message, field.name))
        else:
            setattr(message, field.name, draw(VALUES[field.type]))


def row(message: Any) -> dict[str, Any]:
    """Return what a message is as a row, by what the runtime says of it."""
    return {field.name: _cell(message, field) for field in message.DESCRIPTOR.fields}


def _cell(message: Any, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if protobuf_types.is_map(field):
        key, of = (field.message_type.fields_by_name[part] for part in ("key", "value"))
        return {_value(each, key): _value(value[each], of) for each in value}
    if field.is_repeated:
        return [_value(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _value(value, field)


def _value(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is None:
        if field.enum_type is not None:
            return field.enum_type.values_by_number[value].name
        return Decimal(value) if field.type in (FIELD.TYPE_UINT64, FIELD.TYPE_FIXED64) else value
    if field.message_type.full_name == TIMESTAMP:
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if field.message_type.full_name in protobuf_types.WRAPPERS:
        return _value(value.value, field.message_type.fields_by_name["value"])
    return row(value)


def shown(value: Any) -> str:
    """Return a text of rows that tells all apart which differ, -0.0 from 0.0 too; a map's entries have no order."""
    if isinstance(value, dict):
        return f"{{{', '.join(sorted(f'{key!r}: {shown(inner)}' for key, inner in value.items()))}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else repr(value)

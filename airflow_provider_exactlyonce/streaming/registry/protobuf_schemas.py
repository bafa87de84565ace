"""Protobuf schemas as a registry has them: compiled by protoc, their messages found, and made of a result's columns."""

from __future__ import annotations

import base64
import binascii
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from airflow_provider_exactlyonce.exceptions import BatchFailedError, RefusedError
from airflow_provider_exactlyonce.state import ddl

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

#: No schema that another one imports has this name.
_FILE: Final = "exactlyonce/value.proto"
_COMPILE_SECONDS: Final = 60
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SERIALIZED: Final = re.compile(r"[A-Za-z0-9+/\s]+={0,2}\s*")
TIMESTAMP: Final = "google.protobuf.Timestamp"
_SCALARS: Final[Mapping[str, str]] = {
    "BOOLEAN": "bool",
    "TINYINT": "int32",
    "SMALLINT": "int32",
    "INT": "int32",
    "BIGINT": "int64",
    "FLOAT": "float",
    "DOUBLE": "double",
    "DECIMAL": "string",
    "STRING": "string",
    "BINARY": "bytes",
    "TIMESTAMP": TIMESTAMP,
}
#: What to do with a column of another type.
INSTEAD: Final[Mapping[str, str]] = {
    **dict.fromkeys(("ARRAY", "MAP"), "put the inner one into a STRUCT"),
    "DATE": "make it a STRING, or a number",
    "TIMESTAMP_NTZ": "make it a TIMESTAMP",
}
_KEYS: Final = ("BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "STRING")


def check_compiler() -> None:
    """Refuse to begin where no schema could be compiled, which would say nothing of a schema.

    :raises RefusedError: when protoc is not installed
    """
    if importlib.util.find_spec("grpc_tools") is None:
        raise RefusedError(
            "the compiler of Protobuf schemas is not installed (grpc_tools is missing): install "
            "airflow-provider-exactlyonce[registry]"
        )


@functools.lru_cache
def compiled(schema: str, imports: tuple[tuple[str, str], ...] = ()) -> FileDescriptor:
    """Return the file that a schema is.

    :param schema: the text of a ``.proto`` file, or a serialized ``FileDescriptorProto`` in base64, as some serializers
        register it
    :param imports: names and texts of the schemas that it imports, and that those import; ``google/protobuf`` needs
        none
    :raises RefusedError: with protoc's words when it is no schema
    :raises BatchFailedError: when protoc does not say
    """
    from google.protobuf import descriptor_pb2, descriptor_pool

    files = descriptor_pb2.FileDescriptorSet.FromString(_protoc(schema, imports))
    pool = descriptor_pool.DescriptorPool()  # of its own: schemas with other ids have messages of the same names
    for file in files.file:
        pool.Add(file)
    return pool.FindFileByName(_FILE)


def _protoc(schema: str, imports: tuple[tuple[str, str], ...]) -> bytes:
    """Return a schema and all that it imports as a serialized ``FileDescriptorSet``, those first that others import."""
    from google.protobuf import descriptor_pb2

    serialized_files = descriptor_pb2.FileDescriptorSet()
    with tempfile.TemporaryDirectory(prefix="exactlyonce-protoc-") as folder:
        for name, text in (*imports, (_FILE, schema)):
            serialized = _serialized(text)
            if serialized is not None:
                serialized.name = name
                serialized_files.file.append(serialized)
                continue
            file = Path(folder, "texts", name).resolve()
            if Path(folder).resolve() not in file.parents:
                raise RefusedError(f"a Protobuf schema imports {name!r}, which is no name of a schema")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        Path(folder, "texts").mkdir(exist_ok=True)
        arguments = ["-I", str(Path(folder, "texts")), "--include_imports", f"--descriptor_set_out={folder}/compiled"]
        if serialized_files.file:
            Path(folder, "given").write_bytes(serialized_files.SerializeToString())
            arguments.append(f"--descriptor_set_in={folder}/given")
        try:
            protoc = subprocess.run(  # in this process it would write what is wrong past us
                [sys.executable, "-m", "grpc_tools.protoc", *arguments, _FILE],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_COMPILE_SECONDS,
            )
        except subprocess.TimeoutExpired as error:
            raise BatchFailedError(f"protoc has said nothing of a schema for {_COMPILE_SECONDS:g} s") from error
        if protoc.returncode:
            errors = [line for line in protoc.stderr.splitlines() if ".proto:" in line and "warning:" not in line]
            if not errors:
                raise BatchFailedError(
                    f"protoc ended with {protoc.returncode}, and says of no schema: {protoc.stderr[-500:]}"
                )
            reason = errors[0].rpartition(f"{_FILE}:")[2].strip()
            raise RefusedError(f"{schema[:200]!r} is no Protobuf schema: {reason}")
        return Path(folder, "compiled").read_bytes()


def _serialized(text: str) -> FileDescriptorProto | None:
    """Return the ``FileDescriptorProto`` that a text in base64 is, None for the text of a ``.proto`` file."""
    from google.protobuf import descriptor_pb2
    from google.protobuf.message import DecodeError

    if not _SERIALIZED.fullmatch(text):
        return None
    try:
        return descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text))
    except (binascii.Error, DecodeError):
        return None


def message_named(file: FileDescriptor, name: str | None) -> Descriptor:
    """Return a message of a file.

    :param name: with or without the package; None for the first one
    :raises RefusedError: when there is none
    """
    top = _messages(file)
    messages_by_name = {message.full_name: message for first in top for message in _with_nested(first)}
    if name is None and top:
        return top[0]
    found = messages_by_name.get(str(name)) or messages_by_name.get(f"{file.package}.{name}")
    if found is None:
        raise RefusedError(
            f"the Protobuf schema has no message {name or ''}; it has {', '.join(messages_by_name) or 'none'}"
        )
    return found


def message_at(file: FileDescriptor, indexes: Sequence[int]) -> Descriptor | str:
    """Return the message that indexes of the wire format lead to, or why there is none.

    The first index is of the file's messages, the next of the messages within that message, and so on. In a message,
    Java's serializer counts the messages that its text declares, others also those that protoc makes of map fields.
    """
    message: Descriptor | None = None
    for index in indexes:
        ways = (_messages(file),) * 2 if message is None else (_declared(message), list(message.nested_types))
        found = {way[index].full_name: way[index] for way in ways if 0 <= index < len(way)}
        real = [candidate for candidate in found.values() if not candidate.GetOptions().map_entry]
        if len(real) != 1:
            leads = "may mean several messages" if real else "lead to no message"
            return f"its message indexes {list(indexes)} {leads} of its schema"
        message = real[0]
    return message if message is not None else "its message indexes are empty"


def indexes_of(message: Descriptor) -> list[int]:
    """Return the indexes of the wire format that lead to a message.

    :raises RefusedError: when not all readers would find it by them
    """
    indexes: list[int] = []
    inner = message
    while (outer := inner.containing_type) is not None:
        index, other_index = (_names(way).index(inner.name) for way in (_declared(outer), outer.nested_types))
        if index != other_index:
            raise RefusedError(
                f"message {message.full_name} is declared after a map field, and readers count such messages in two "
                f"ways: declare it before, or outside of {outer.full_name}"
            )
        indexes.insert(0, index)
        inner = outer
    return [_names(_messages(message.file)).index(inner.name), *indexes]


def _messages(file: FileDescriptor) -> list[Descriptor]:
    return list(file.message_types_by_name.values())  # as they are declared


def _declared(message: Descriptor) -> list[Descriptor]:
    return [nested for nested in message.nested_types if not nested.GetOptions().map_entry]


def _names(messages: Sequence[Descriptor]) -> list[str]:
    return [message.name for message in messages]


def _with_nested(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in _declared(message):
        yield from _with_nested(nested)


def schema_of_columns(columns: str, name: str, before: Descriptor | None) -> str:
    """Return the text of a schema for a message with a table's columns as fields.

    A column keeps the number that its field had before; a number is never used for another one.

    :param columns: in Spark's DDL; a column that is not ``NOT NULL`` is ``optional``
    :param name: of the message
    :param before: the message as the subject has it, None when it has none
    :raises RefusedError: when Protobuf has no type for a column
    """
    body = _message(ddl.parse(columns).fields, name, "", before)
    imported = 'import "google/protobuf/timestamp.proto";\n\n' if f" {TIMESTAMP} " in body else ""
    return f'syntax = "proto3";\n\n{imported}{body}\n'


def _message(columns: Sequence[ddl.Field], name: str, path: str, before: Descriptor | None) -> str:
    from google.protobuf import descriptor_pb2

    previous = descriptor_pb2.DescriptorProto()
    if before is not None:
        before.CopyToProto(previous)
    numbers = {field.name: field.number for field in previous.field}
    column_names = {column.name for column in columns}
    reserved_ranges = [(numbers[field], numbers[field]) for field in numbers.keys() - column_names]
    reserved_ranges += [(reserved.start, reserved.end - 1) for reserved in previous.reserved_range]
    highest = max([*numbers.values(), *(last for _, last in reserved_ranges)], default=0)
    lines = (
        [f"  reserved {', '.join(_range(*numbers) for numbers in sorted(reserved_ranges))};"] if reserved_ranges else []
    )
    names = sorted({*previous.reserved_name, *numbers} - column_names)  # registries ask for them as well
    lines += [f"  reserved {', '.join(map(json.dumps, names))};"] if names else []
    declared = []
    for column in columns:
        if column.name not in numbers:
            highest = numbers[column.name] = _next(highest)
        field = before.fields_by_name.get(column.name) if before is not None else None
        declared.append((numbers[column.name], _field(column, f"{path}{column.name}", numbers[column.name], field)))
    for _, text in sorted(declared):
        lines += [f"  {line}" if line else line for line in text.splitlines()]
    return "\n".join([f"message {name} {{", *lines, "}"])


def _range(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _next(number: int) -> int:
    """Return the next number that a field may have; Protobuf keeps some for itself."""
    return 20_000 if number + 1 == 19_000 else number + 1


def _field(column: ddl.Field, path: str, number: int, before: FieldDescriptor | None) -> str:
    """Return the declaration of a column's field, preceded by its message, if the field has one."""
    if not _NAME.fullmatch(column.name):
        raise RefusedError(
            f"ProtobufFormat: column {path!r} can't be a field: a name is letters, digits and _, a letter first"
        )
    kind, item = column.type, column.type
    label = "" if column.required else "optional "
    inner = before.message_type if before is not None else None
    if kind.name == "ARRAY":
        label, item = "repeated ", kind.inner[0]
    elif kind.name == "MAP":
        label, item = "", kind.inner[1]
        inner = (
            inner.fields_by_name["value"].message_type if inner is not None and inner.GetOptions().map_entry else None
        )
    nested = ""
    if item.name == "STRUCT":
        type_name = "".join(part[:1].upper() + part[1:] for part in column.name.split("_"))
        nested = _message(item.fields, type_name, f"{path}.", inner) + "\n"
    elif item.name in _SCALARS:
        type_name = _SCALARS[item.name]
    else:
        raise RefusedError(
            f"ProtobufFormat: column {path} is {kind}, for which Protobuf has no type: {INSTEAD[item.name]}"
        )
    if kind.name == "MAP":
        if kind.inner[0].name not in _KEYS:
            raise RefusedError(f"ProtobufFormat: column {path} is {kind}: a map's keys are texts, integers or booleans")
        type_name = f"map<{_SCALARS[kind.inner[0].name]}, {type_name}>"
    return f"{nested}{label}{type_name} {column.name} = {number};"

"""Decodes Protobuf messages, many at a time, from the schema that they were written with to a reader's columns.

All messages are read side by side: of the fields that they have next, the one with the lowest number is read of all
that have it. Serializers write fields in the order of their numbers, so each field is read once for all messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas, protobuf_types
from airflow_provider_exactlyonce.streaming.registry.columnar import (
    Gathered,
    SchemaMismatchError,
    as_text,
    cast,
    collected,
    column_type,
    named,
)
from airflow_provider_exactlyonce.streaming.registry.cursors import ALL, Cursor, Places, from_zigzag
from airflow_provider_exactlyonce.streaming.registry.protobuf_types import (
    BYTES,
    FIXED,
    FIXED32,
    FIXED64,
    GROUP,
    GROUP_END,
    VARINT,
    Column,
    wire_type,
)

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
    from numpy.typing import NDArray

_SMALLEST_TAG: Final = 8  # of field number 1
_NO_TAG: Final = 2**32  # of a message that has ended; above all tags
_DEEPEST: Final = 100  # message indexes
_READERS_KEPT: Final = 100  # of each schema
#: The smallest and largest value, and the type, of what is written in a variable number of bytes; of 64 bits all fit.
_VARINTS: Final[dict[str, tuple[int, int, str]]] = {
    "int32": (-(2**31), 2**31 - 1, "i4"),
    "enum": (-(2**31), 2**31 - 1, "i4"),
    "uint32": (0, 2**32 - 1, "u4"),
    "sint32": (-(2**31), 2**31 - 1, "i4"),
    "bool": (0, 1, "?"),
    "int64": (-(2**63), 2**63 - 1, "i8"),
    "sint64": (-(2**63), 2**63 - 1, "i8"),
    "uint64": (-(2**63), 2**63 - 1, "u8"),  # its bits are read as those of a signed number
}
_INTEGERS: Final = frozenset(_VARINTS) - {"enum", "bool"} | {"fixed32", "fixed64", "sfixed32", "sfixed64"}
#: What a value of another type may be read as.
_READABLE: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "bool": (pa.bool_(),),
    "float": (pa.float32(), pa.float64()),
    "double": (pa.float64(),),
    "string": (pa.string(), pa.binary()),
    "bytes": (pa.binary(), pa.string()),
    "enum": (pa.string(), pa.int32(), pa.int64()),
    "group": (),
}
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)  # the years 1 to 9999, as google.protobuf.Timestamp has it
_UNSIGNED: Final = pa.decimal128(20, 0)

#: What was read of a field: the messages that it is of, and its values as they are written.
_Read = tuple[Places, Any]


class ProtobufDecoder:
    """Decodes values that were written with one schema.

    :param file: the schema
    :param columns: of the result
    :param number: the schema's id, for reasons
    """

    def __init__(self, file: FileDescriptor, columns: Sequence[Column], number: int) -> None:
        self._file: Final = file
        self._columns: Final = columns
        self._number: Final = number
        self._readers: Final[dict[tuple[int, ...], _MessageReader | str]] = {}

    def decode(self, values: pa.Array, skipped: int) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the records' columns, and {position: why the record does not fit}.

        :param values: binary, none of them null; after the skipped bytes, each has the indexes of its message
        :param skipped: bytes at the start of each
        """
        head = Cursor(values, skipped)
        paths, index = _message_indexes(head)
        begins = pc.binary_length(values).to_numpy() - head.left(ALL)
        reasons, gathered = dict(head.reasons), Gathered(len(values))
        fits = np.ones(len(values), np.bool_)
        fits[list(reasons)] = False
        for number, path in enumerate(paths):
            positions = np.flatnonzero(np.equal(index, number) & fits)
            reader = self._reader(path)
            if isinstance(reader, str):
                reasons.update(dict.fromkeys(positions.tolist(), reader))
                continue
            messages = values if len(positions) == len(values) else values.take(pa.array(positions))
            cursor = Cursor(messages, begins[positions])
            gathered.add(positions, reader.read(cursor))
            reasons.update({int(positions[position]): reason for position, reason in cursor.reasons.items()})
        return gathered.array(protobuf_types.struct_of(self._columns)), reasons

    def _reader(self, path: tuple[int, ...]) -> _MessageReader | str:
        reader = self._readers.get(path)
        if reader is None:
            message = protobuf_schemas.message_at(self._file, path)
            try:
                reader = message if isinstance(message, str) else _MessageReader(message, self._columns, "")
            except SchemaMismatchError as error:
                reader = f"schema {self._number} of the registry does not fit: {error}"
            if len(self._readers) < _READERS_KEPT:  # broken records may have any
                self._readers[path] = reader
        return reader


def _message_indexes(head: Cursor) -> tuple[list[tuple[int, ...]], Places]:
    """Read the indexes that each value begins with: the different ones, and which of them each has."""
    what = "its message indexes"
    counts = head.signed(ALL, what)
    wrong = (counts < 0) | (counts > np.minimum(head.left(ALL), _DEEPEST))
    counts[wrong] = 0
    head.fail(ALL, wrong, "its message indexes are broken")
    deepest = int(counts.max(initial=0))
    if deepest == 0:  # the short form of the first message
        return [(0,)], np.zeros(len(head), np.int64)
    steps = np.full((len(head), 1 + deepest), -1, np.int64)
    steps[:, 0] = np.maximum(counts, 1)
    steps[counts == 0, 1] = 0
    for depth in range(deepest):
        rows = np.flatnonzero(counts > depth)
        steps[rows, 1 + depth] = head.signed(rows, what)
    different, index = np.unique(steps, axis=0, return_inverse=True)
    return [tuple(path[: 1 + path[0]][1:]) for path in different.tolist()], index.reshape(-1)


class _MessageReader:
    """Reads messages of one type.

    :param message: the type
    :param columns: the columns to read
    :param path: the names that lead to it, each with a point
    """

    def __init__(self, message: Descriptor, columns: Sequence[Column], path: str) -> None:
        self._path: Final = path
        self._is_entry: Final = bool(message.GetOptions().map_entry)
        self._columns: Final = columns
        self._kind: Final = protobuf_types.struct_of(columns)
        self._wanted: Final[dict[int, _FieldReader]] = {}
        self._field_numbers: Final[dict[str, int]] = {}
        for column in columns:
            by_name, by_number = message.fields_by_name, message.fields_by_number
            field = by_name.get(column.name) if column.number is None else by_number.get(column.number)
            if field is not None:
                self._wanted[field.number] = _FieldReader(field, column, f"{path}{field.name}")
                self._field_numbers[column.name] = field.number
            elif column.required and column.default is None:
                raise SchemaMismatchError(f"the required field {path}{column.name} is missing")
        self._oneofs: Final = {
            field.number: (oneof.name, field.name)
            for oneof in message.oneofs
            if len(oneof.fields) > 1
            for field in oneof.fields
        }

    def read(self, cursor: Cursor) -> pa.StructArray:
        """Return the columns of all messages that a cursor stands before."""
        count = len(cursor)
        read_values: dict[int, list[_Read]] = {number: [] for number in self._wanted}
        chosen: dict[str, Places] = {}
        pending = np.full(count, _NO_TAG, np.int64)
        rows = np.arange(count)
        while True:
            self._next_tags(cursor, rows, pending)
            tag = int(pending.min(initial=_NO_TAG))
            if tag == _NO_TAG:
                break
            rows = np.flatnonzero(pending == tag)
            number, wire = tag >> 3, tag & 7
            if tag < _SMALLEST_TAG:
                cursor.fail(rows, None, "it is no Protobuf message: no field can have such a number")
                continue
            if number in self._oneofs:
                self._check_oneof(cursor, rows, number, chosen)
            if number in self._wanted:
                read_values[number] += self._wanted[number].read(cursor, rows, wire)
            elif self._is_entry:  # what some of Protobuf's parsers then leave out is the entry
                reason = f"{self._path}field number {number} is in a map's entry, which has key and value"
                cursor.fail(rows, None, reason)
            else:
                _skip(cursor, rows, wire, f"{self._path}field number {number}")
        arrays = [
            self._wanted[self._field_numbers[column.name]].array(cursor, read_values[self._field_numbers[column.name]])
            if column.name in self._field_numbers
            else pa.repeat(pa.scalar(column.default, column.kind), count)
            for column in self._columns
        ]
        return pa.StructArray.from_arrays(arrays, fields=list(self._kind))

    @staticmethod
    def _next_tags(cursor: Cursor, rows: Places, pending: Places) -> None:
        pending[rows] = _NO_TAG
        unfinished = rows[cursor.left(rows) > 0]
        if len(unfinished):
            tags = cursor.number(ALL if len(unfinished) == len(cursor) else unfinished, "a tag")
            pending[unfinished] = np.where((tags >= _SMALLEST_TAG) & (tags < _NO_TAG), tags, 0)

    def _check_oneof(self, cursor: Cursor, rows: Places, number: int, chosen: dict[str, Places]) -> None:
        oneof, name = self._oneofs[number]
        chosen_numbers = chosen.setdefault(oneof, np.zeros(len(cursor), np.int64))
        has_other = (chosen_numbers[rows] != 0) & (chosen_numbers[rows] != number)
        cursor.fail(rows, has_other, f"field {self._path}{name} is not the only one of its oneof {oneof}")
        chosen_numbers[rows] = number


def _skip(cursor: Cursor, rows: Places, wire: int, path: str) -> None:
    if wire == VARINT:
        cursor.number(rows, path)
    elif wire == BYTES:
        cursor.piece(rows, cursor.number(rows, path), path)
    elif wire in (FIXED32, FIXED64):
        cursor.piece(rows, 4 if wire == FIXED32 else 8, path)
    else:
        reason = "is a group" if wire in (GROUP, GROUP_END) else f"has the wire type {wire}"
        cursor.fail(rows, None, f"{path} {reason}, which can't be read")


class _FieldReader:
    """Reads one field of messages, as a column.

    :param field: as the writer has it
    :param column: as the reader has it
    :param path: the field's name, with the names that lead to it
    """

    def __init__(self, field: FieldDescriptor, column: Column, path: str) -> None:
        self._field: Final = field
        self._column: Final = column
        self._field_path: Final = path
        self._type: Final = protobuf_types.type_name(field)
        is_list = field.is_repeated and pa.types.is_list(column.kind)
        self._item: Final = column.parts[0] if is_list else column
        self._message: _MessageReader | None = None
        if protobuf_types.is_map(field):
            if not pa.types.is_map(column.kind):
                raise self._mismatch()
            self._message = _MessageReader(field.message_type, _entry(column), f"{path}.")
            return
        if field.is_repeated and not is_list:
            raise self._mismatch()
        kind = self._item.kind
        inner: tuple[Column, ...] = self._item.parts
        if self._type != "message":
            if not _is_readable(self._type, kind):
                raise self._mismatch()
            return
        name = field.message_type.full_name
        if name in protobuf_types.WRAPPERS:
            inner = (Column("value", kind, True, 1),)
        elif name == protobuf_schemas.TIMESTAMP and pa.types.is_timestamp(kind) and kind.tz is not None:
            inner = (Column("seconds", pa.int64(), True, 1), Column("nanos", pa.int32(), True, 2))
        elif not pa.types.is_struct(kind):
            raise self._mismatch()
        self._message = _MessageReader(field.message_type, inner, f"{path}{'[]' if field.is_repeated else ''}.")

    def _mismatch(self) -> SchemaMismatchError:
        kind = protobuf_types.described(self._field)
        return SchemaMismatchError(
            f"{named(self._field_path)} is {kind}, which is not {column_type(self._column.kind)}"
        )

    def read(self, cursor: Cursor, rows: Places, wire: int) -> list[_Read]:
        """Read the field of messages that stand behind its tag."""
        selection = ALL if len(rows) == len(cursor) else rows
        if wire == wire_type(self._type):
            return [(rows, self._value(cursor, selection))]
        if wire == BYTES and self._field.is_repeated:
            return self._packed(cursor, rows)
        cursor.fail(rows, None, f"{named(self._field_path)} has the wire type {wire}, which {self._type} has not")
        return []

    def _value(self, cursor: Cursor, rows: Any) -> Any:
        if self._type in _VARINTS:
            return cursor.number(rows, self._field_path)
        if self._type in FIXED:
            return cursor.fixed(rows, FIXED[self._type], self._field_path)
        return cursor.piece(rows, cursor.number(rows, self._field_path), self._field_path).array()

    def _packed(self, cursor: Cursor, rows: Places) -> list[_Read]:
        """Read the items of each that lie one after the other: the first one of all, then the second, and so on."""
        items = Cursor(cursor.piece(rows, cursor.number(rows, self._field_path), self._field_path).array(), 0)
        read: list[_Read] = []
        unfinished = np.flatnonzero(items.left(ALL) > 0)
        while len(unfinished):
            read.append((rows[unfinished], self._value(items, unfinished)))
            unfinished = unfinished[items.left(unfinished) > 0]
        _fail_owners(items, cursor, rows)
        return read

    def array(self, cursor: Cursor, read: Sequence[_Read]) -> pa.Array:
        """Return the column, made of all that was read of the field."""
        owners, values = self._joined(read)
        if self._field.is_repeated:
            return self._repeated(cursor, owners, values)
        count = len(cursor)
        counts = np.bincount(owners, minlength=count)
        if (counts > 1).any():
            cursor.fail(ALL, counts > 1, f"{named(self._field_path)} is there twice")
            owners, first = np.unique(owners, return_index=True)
            values = values.take(pa.array(first)) if isinstance(values, pa.Array) else values[first]
        absent = np.flatnonzero(counts == 0)
        in_entry = self._field.containing_type.GetOptions().map_entry
        if len(absent) and (in_entry or not self._field.has_presence):
            owners, values = self._joined([(owners, values), (absent, self._defaults(len(absent)))])
        elif len(absent) and (self._column.required or self._field.is_required):
            cursor.fail(absent, None, f"the required field {self._field_path} is missing")
        gathered = Gathered(count)
        gathered.add(owners, self._converted(cursor, owners, values))
        return gathered.array(self._item.kind)

    def _joined(self, read: Sequence[_Read]) -> _Read:
        if len(read) == 1:
            return read[0]
        owners = np.concatenate([owners for owners, _ in read]) if read else np.zeros(0, np.int64)
        parts = [values for _, values in read] or [self._defaults(0)]
        return owners, pa.concat_arrays(parts) if isinstance(parts[0], pa.Array) else np.concatenate(parts)

    def _defaults(self, count: int) -> Any:
        """Return the encoding of the default, so many times."""
        if self._type in _VARINTS:
            is_symbol = self._type == "enum" and not self._field.is_repeated
            return np.full(count, self._field.default_value if is_symbol else 0, np.int64)
        return np.zeros(count, FIXED[self._type]) if self._type in FIXED else pa.array([b""] * count, pa.binary())

    def _repeated(self, cursor: Cursor, owners: Places, values: Any) -> pa.Array:
        keys, items = None, self._converted(cursor, owners, values)
        if pa.types.is_map(self._column.kind):
            keys, items = items.flatten()
            if keys.null_count:  # a key that does not fit, of a record that has its reason
                keys = keys.fill_null(pa.scalar(0, keys.type))
        return collected(cursor, ALL, owners, keys, items, self._column.kind, self._field_path)

    def _converted(self, cursor: Cursor, owners: Places, values: Any) -> pa.Array:
        """Return values of the item's type; a message that has one which does not fit gets the reason."""
        kind = self._item.kind
        if self._message is not None:
            return self._messages(cursor, owners, values, self._message)
        if self._type == "string":
            texts = as_text(cursor, owners, values, self._field_path)
            return values if kind == pa.binary() else cast(cursor, owners, texts, kind, self._field_path)
        if self._type == "bytes":
            return as_text(cursor, owners, values, self._field_path) if kind == pa.string() else values
        if self._type in _VARINTS:
            values = self._ranged(cursor, owners, values)
        if self._type == "enum" and kind == pa.string():
            return self._symbols(cursor, owners, values)
        array = pa.array(np.ascontiguousarray(values))
        if pa.types.is_decimal(kind):
            array = array.cast(_UNSIGNED)
        return cast(cursor, owners, array, kind, self._field_path)

    def _ranged(self, cursor: Cursor, owners: Places, values: Places) -> NDArray[Any]:
        if self._type.startswith("sint"):
            values = from_zigzag(values)
        smallest, largest, dtype = _VARINTS[self._type]
        out_of_range = (values < smallest) | (values > largest)
        if out_of_range.any():
            cursor.fail(
                owners, out_of_range, f"{named(self._field_path)} is written as a number that {self._type} lacks"
            )
            values = np.where(out_of_range, 0, values)
        return values.astype(dtype)

    def _symbols(self, cursor: Cursor, owners: Places, values: NDArray[Any]) -> pa.Array:
        numbers, index = np.unique(values, return_inverse=True)
        names = {value.number: value.name for value in reversed(self._field.enum_type.values)}
        symbols = [names.get(number) for number in numbers.tolist()]
        unknown = np.array([symbol is None for symbol in symbols], np.bool_)[index]
        for number in np.unique(values[unknown]).tolist():
            enum = self._field.enum_type.name
            cursor.fail(
                owners, values == number, f"{named(self._field_path)} is {number}, which {enum} has no name for"
            )
        return pa.array(symbols, pa.string()).take(pa.array(index))

    def _messages(self, cursor: Cursor, owners: Places, values: pa.Array, reader: _MessageReader) -> pa.Array:
        inner = Cursor(values, 0)
        column = reader.read(inner)
        name = self._field.message_type.full_name
        if name == protobuf_schemas.TIMESTAMP and not pa.types.is_struct(self._item.kind):
            seconds, nanos = column.flatten()
            column = _instants(inner, seconds, nanos, self._field_path)
        elif name in protobuf_types.WRAPPERS:
            [column] = column.flatten()
        _fail_owners(inner, cursor, owners)
        return column


def _entry(column: Column) -> tuple[Column, Column]:
    """Return the columns of a map's entries."""
    key, value = column.parts
    return (
        Column("key", key.kind, True, 1, parts=key.parts),
        Column("value", value.kind, False, 2, parts=value.parts),
    )


def _fail_owners(inner: Cursor, cursor: Cursor, owners: Places) -> None:
    """Give up the messages that have a part which was given up."""
    for position, reason in inner.reasons.items():
        cursor.fail(owners[position : position + 1], None, reason)


def _instants(cursor: Cursor, seconds: pa.Array, nanos: pa.Array, path: str) -> pa.Array:
    whole = seconds.to_numpy(zero_copy_only=False).astype(np.int64)
    part = nanos.to_numpy(zero_copy_only=False).astype(np.int64)
    out_of_range = (whole < _SECONDS[0]) | (whole > _SECONDS[1]) | (part < 0) | (part >= 10**9)
    cursor.fail(ALL, out_of_range, f"{named(path)} is no time of the years 1 to 9999")
    for row in np.flatnonzero((part % 1000 != 0) & ~out_of_range).tolist():
        cursor.fail(np.array([row]), None, f"{named(path)} does not fit TIMESTAMP: {whole[row]} s and {part[row]} ns")
    return pa.array(np.where(out_of_range, 0, whole) * 10**6 + part // 1000).cast(pa.timestamp("us", "UTC"))


def _is_readable(writer: str, kind: pa.DataType) -> bool:
    if writer in _INTEGERS:
        return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))
    if writer == "string" and pa.types.is_decimal(kind):
        return True
    return bool(kind in _READABLE[writer])

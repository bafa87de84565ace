"""Encodes rows as Protobuf messages, many at a time: field by field through all rows, in the order of their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_exactlyonce.exceptions import RecordRefusedError, RefusedError
from airflow_provider_exactlyonce.streaming.registry import protobuf_schemas, protobuf_types
from airflow_provider_exactlyonce.streaming.registry.columnar import column_type
from airflow_provider_exactlyonce.streaming.registry.protobuf_types import BYTES, FIXED, VARINT, wire_type
from airflow_provider_exactlyonce.streaming.registry.wire_format import varint
from airflow_provider_exactlyonce.streaming.spark.typed_errors import mark

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FieldDescriptor
    from numpy.typing import NDArray

_VARINTS: Final[dict[str, pa.DataType]] = {
    "bool": pa.bool_(),
    "enum": pa.int32(),
    **dict.fromkeys(("int32", "sint32"), pa.int32()),
    **dict.fromkeys(("int64", "sint64"), pa.int64()),
    "uint32": pa.uint32(),
    "uint64": pa.uint64(),
}
#: The columns that a field can be written with; a number's with those of all integers that fit it.
_WRITABLE: Final[dict[str, tuple[pa.DataType, ...]]] = {
    "bool": (pa.bool_(),),
    "float": (pa.float32(),),
    "double": (pa.float32(), pa.float64()),
    "string": (pa.string(),),
    "bytes": (pa.binary(),),
    "enum": (pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
}
_SHIFTS: Final = np.arange(0, 70, 7, dtype=np.uint64)
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # the years 1 to 9999, in microseconds


class MessageWriter:
    """Writes rows as messages of one type.

    :param message: the type
    :param rows: their type; a column is the field of its name
    :param path: the names that lead to it, each with a point
    :raises RefusedError: when the columns can't be its fields
    """

    def __init__(self, message: Descriptor, rows: pa.StructType, path: str = "") -> None:
        indexes = {column.name: index for index, column in enumerate(rows)}
        unknown = [name for name in indexes if name not in message.fields_by_name]
        if unknown:
            raise RefusedError(
                f"ProtobufFormat: column {path}{unknown[0]} is no field of the message {message.full_name}"
            )
        missing = [field.name for field in message.fields if field.is_required and field.name not in indexes]
        if missing:
            raise RefusedError(f"ProtobufFormat: the required field {path}{missing[0]} has no column")
        fields = sorted((message.fields_by_name[name] for name in indexes), key=lambda field: field.number)
        self._fields: Final = [
            (indexes[field.name], _FieldWriter(field, rows.field(field.name).type, f"{path}{field.name}"))
            for field in fields
        ]
        oneofs = [[field.name for field in oneof.fields if field.name in indexes] for oneof in message.oneofs]
        self._oneofs: Final = [[indexes[name] for name in names] for names in oneofs if len(names) > 1]
        self._names: Final = [f"{path}{column.name}" for column in rows]

    def write(self, rows: pa.StructArray) -> pa.Array:
        """Return the messages, binary.

        :param rows: none of them null
        :raises RecordRefusedError: marked for the driver, when a message can't have what a row has
        """
        columns = rows.flatten()
        for oneof in self._oneofs:
            present_count = sum(
                columns[index].is_valid().to_numpy(zero_copy_only=False).astype(np.int64) for index in oneof
            )
            if (present_count > 1).any():
                names = " and ".join(self._names[index] for index in oneof)
                raise _refused(f"columns {names} are of one oneof, and at most one of them may be other than null")
        return _joined([piece for index, writer in self._fields for piece in writer.write(columns[index])])


class _FieldWriter:
    """Writes a column as a field.

    :param field: to write
    :param kind: the column's type
    :param path: the column's name, with the names that lead to it
    """

    def __init__(self, field: FieldDescriptor, kind: pa.DataType, path: str) -> None:
        self._field: Final = field
        self._path: Final = path
        self._entry: Final[list[_ValueWriter]] = []
        is_map = protobuf_types.is_map(field)
        if is_map != pa.types.is_map(kind) or (field.is_repeated and not is_map) != pa.types.is_list(kind):
            raise _mismatch(field, kind, path)
        if is_map:
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            self._entry.extend([_ValueWriter(key, kind.key_type, path), _ValueWriter(value, kind.item_type, path)])
        else:
            self._value: Final = _ValueWriter(field, kind.value_type if field.is_repeated else kind, path)
        self._tag: Final = varint(field.number << 3 | (BYTES if self._entry or field.is_packed else self._value.wire))

    def write(self, values: pa.Array) -> list[pa.Array]:
        """Return, of each row, the pieces that the field is, one after the other; they are empty where it is absent."""
        if values.null_count and (self._field.is_required or not self._field.has_presence):
            remedy = "an empty one" if self._field.is_repeated else "another value, or make the field optional"
            raise _refused(f"column {self._path} is null, and {self._field.full_name} can't be: give it {remedy}")
        if self._field.is_repeated:
            return [self._repeated(values)]
        valid = values.is_valid().to_numpy(zero_copy_only=False)
        raw = self._value.raw(values.drop_null())
        if not valid.all():
            raw = _spread(raw, valid)
        if not self._field.has_presence and not self._field.is_required:
            valid = _is_other_than_zero(raw)
        return self._value.framed(raw, self._tag, valid)

    def _repeated(self, values: pa.Array) -> pa.Array:
        offsets = values.offsets.to_numpy()
        begin, end = int(offsets[0]), int(offsets[-1])
        parts = [values.keys, values.items] if self._entry else [values.values]
        parts = [part[begin:end] for part in parts]
        if any(part.null_count for part in parts):
            raise _refused(f"column {self._path} has an item that is null, and Protobuf has no such items")
        all_present = np.ones(end - begin, np.bool_)
        if self._entry:
            pieces = [
                piece
                for number, (writer, part) in enumerate(zip(self._entry, parts, strict=True), 1)
                for piece in writer.framed(writer.raw(part), varint(number << 3 | writer.wire), all_present)
            ]
            return _grouped(_joined(_with_length(_joined(pieces), self._tag, all_present)), offsets - begin)
        raw = self._value.raw(parts[0])
        if not self._field.is_packed:
            return _grouped(_joined(self._value.framed(raw, self._tag, all_present)), offsets - begin)
        items = _grouped(_joined(self._value.framed(raw, b"", all_present)), offsets - begin)
        return _joined(_with_length(items, self._tag, np.diff(offsets) > 0))


class _ValueWriter:
    """Writes values that are not null, each as one value of a field.

    :ivar wire: the wire type
    """

    def __init__(self, field: FieldDescriptor, kind: pa.DataType, path: str) -> None:
        self._type: Final = protobuf_types.type_name(field)
        self._enum: Final = field.enum_type
        self._path: Final = path
        self._name: Final = field.message_type.full_name if field.message_type is not None else ""
        self.wire: Final = wire_type(self._type)
        rows = self._rows(kind)
        if rows is None and (self._type in ("message", "group") or not _is_writable(kind, self._type)):
            raise _mismatch(field, kind, path)
        self._message: Final = MessageWriter(field.message_type, rows, f"{path}.") if rows is not None else None

    def _rows(self, kind: pa.DataType) -> pa.StructType | None:
        """Return the rows that a message is written of, None where the field is no message."""
        if self._name in protobuf_types.WRAPPERS:
            return pa.struct([("value", kind)])
        if self._name == protobuf_schemas.TIMESTAMP and _is_instant(kind):
            return pa.struct([("seconds", pa.int64()), ("nanos", pa.int32())])
        return kind if self._type == "message" and pa.types.is_struct(kind) else None

    def raw(self, values: pa.Array) -> Any:
        """Return the encoding of each: numbers, or bytes without their length."""
        if self._message is not None:
            return self._message.write(self._messages(values))
        if self._type == "enum":
            return self._numbers(values).astype(np.int64).view(np.uint64)
        if self.wire == BYTES:
            return values.cast(pa.string() if pa.types.is_decimal(values.type) else pa.binary()).cast(pa.binary())
        if self._type in FIXED:
            dtype = np.dtype(FIXED[self._type])
            return self._cast(values, pa.from_numpy_dtype(dtype)).to_numpy(zero_copy_only=False).astype(dtype)
        numbers = self._cast(values, _VARINTS[self._type]).to_numpy(zero_copy_only=False)
        if self._type in ("bool", "uint32", "uint64"):
            return numbers.astype(np.uint64)
        numbers = numbers.astype(np.int64)
        return ((numbers << 1) ^ (numbers >> 63) if self._type.startswith("sint") else numbers).view(np.uint64)

    def framed(self, raw: Any, tag: bytes, present: NDArray[np.bool_]) -> list[pa.Array]:
        """Return the pieces of each that is present, after its tag; empty ones of the others."""
        if self.wire == BYTES:
            return _with_length(raw, tag, present)
        return [_numbers(tag, raw, present) if self.wire == VARINT else _fixed(tag, raw, present)]

    def _cast(self, values: pa.Array, kind: pa.DataType) -> pa.Array:
        try:
            return values.cast(kind)
        except pa.ArrowInvalid as error:
            raise _refused(f"column {self._path} does not fit {self._type}: {error}") from None

    def _numbers(self, values: pa.Array) -> NDArray[Any]:
        numbers_by_name = {value.name: value.number for value in self._enum.values}
        if pa.types.is_string(values.type):
            codes = values.dictionary_encode()
            names = codes.dictionary.to_pylist()
            unknown = [name for name in names if name not in numbers_by_name]
            numbers = np.array([numbers_by_name.get(name) or 0 for name in names], np.int32)
            index = codes.indices.to_numpy()
        else:
            numbers, index = np.unique(self._cast(values, pa.int32()).to_numpy(), return_inverse=True)
            unknown = [number for number in numbers.tolist() if number not in numbers_by_name.values()]
        if unknown:
            raise _refused(f"column {self._path} is {unknown[0]!r}, which the enum {self._enum.full_name} lacks")
        symbols: NDArray[np.int32] = numbers[index]
        return symbols

    def _messages(self, values: pa.Array) -> pa.StructArray:
        if self._name in protobuf_types.WRAPPERS:
            return pa.StructArray.from_arrays([values], ["value"])
        if self._name == protobuf_schemas.TIMESTAMP and _is_instant(values.type):
            moments = values.cast(pa.int64()).to_numpy()
            out_of_range = (moments < _FIRST) | (moments > _LAST)
            if out_of_range.any():
                raise _refused(
                    f"column {self._path} is no time of the years 1 to 9999: {moments[out_of_range][0]} microseconds"
                )
            seconds, part = np.divmod(moments, 10**6)
            return pa.StructArray.from_arrays([seconds, (part * 1000).astype(np.int32)], ["seconds", "nanos"])
        return values


def _is_instant(kind: pa.DataType) -> bool:
    return bool(pa.types.is_timestamp(kind) and kind.tz is not None)


def _is_writable(kind: pa.DataType, field: str) -> bool:
    if field in _WRITABLE:
        return kind in _WRITABLE[field] or (field == "string" and pa.types.is_decimal(kind))
    return bool(pa.types.is_integer(kind) or (pa.types.is_decimal(kind) and kind.scale == 0))


def _mismatch(field: FieldDescriptor, kind: pa.DataType, path: str) -> RefusedError:
    return RefusedError(
        f"ProtobufFormat: column {path} is {column_type(kind)}, and field {field.full_name} is "
        f"{protobuf_types.described(field)}"
    )


def _refused(message: str) -> RecordRefusedError:
    return RecordRefusedError(mark(RecordRefusedError, message))


def _is_other_than_zero(raw: Any) -> NDArray[np.bool_]:
    if isinstance(raw, pa.Array):
        raw = pc.binary_length(raw).to_numpy()
    is_nonzero: NDArray[np.bool_] = np.not_equal(raw.view(f"u{raw.itemsize}"), 0)  # by its bits: -0.0 is written
    return is_nonzero


def _spread(raw: Any, valid: NDArray[np.bool_]) -> Any:
    """Put values at the places that are true in a mask, and something between them."""
    if isinstance(raw, pa.Array):
        return raw.take(pa.array(np.maximum(np.cumsum(valid) - 1, 0), mask=~valid)).fill_null(b"")
    spread = np.zeros(len(valid), raw.dtype)
    spread[valid] = raw
    return spread


def _numbers(tag: bytes, numbers: NDArray[np.uint64], present: NDArray[np.bool_]) -> pa.Array:
    """Return a tag and a number of variable length, of those that are present."""
    longest = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    digits = numbers[:, None] >> _SHIFTS[:longest]
    lengths = np.maximum((digits != 0).sum(axis=1), 1)
    is_last = np.arange(1, longest + 1) >= lengths[:, None]
    content = np.empty((len(numbers), len(tag) + longest), np.uint8)
    content[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    content[:, len(tag) :] = (digits & np.uint64(0x7F)).astype(np.uint8) | np.where(is_last, 0, 0x80).astype(np.uint8)
    lengths = np.where(present, lengths + len(tag), 0)
    return _binary(lengths, content[np.arange(content.shape[1]) < lengths[:, None]])


def _fixed(tag: bytes, values: NDArray[Any], present: NDArray[np.bool_]) -> pa.Array:
    content = np.empty((len(values), len(tag) + values.itemsize), np.uint8)
    content[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    content[:, len(tag) :] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), values.itemsize)
    return _binary(np.where(present, content.shape[1], 0), content[present].reshape(-1))


def _binary(lengths: NDArray[np.int64], content: NDArray[np.uint8]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(content))]
    return pa.Array.from_buffers(pa.binary(), len(lengths), buffers)


def _with_length(contents: pa.Array, tag: bytes, present: NDArray[np.bool_]) -> list[pa.Array]:
    return [_numbers(tag, pc.binary_length(contents).to_numpy().astype(np.uint64), present), contents]


def _joined(pieces: Sequence[pa.Array]) -> pa.Array:
    return pieces[0] if len(pieces) == 1 else pc.binary_join_element_wise(*pieces, b"")


def _grouped(items: pa.Array, offsets: NDArray[np.int32]) -> pa.Array:
    """Join the items that lie one after the other.

    :param offsets: of the first item of each group, and of the end
    """
    if not len(items):
        return pa.array([b""] * (len(offsets) - 1), pa.binary())
    _, item_offsets, content = items.buffers()
    bounds = np.frombuffer(item_offsets, np.int32, len(items) + 1, items.offset * 4)
    buffers = [None, pa.py_buffer(np.ascontiguousarray(bounds[offsets])), content]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers)

"""Decodes Avro records, many at a time, from the writer's schema to a reader's."""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from airflow_provider_exactlyonce.streaming.registry import avro_defaults, avro_types
from airflow_provider_exactlyonce.streaming.registry.avro_types import AvroField, AvroType
from airflow_provider_exactlyonce.streaming.registry.columnar import (
    Gathered,
    SchemaMismatchError,
    as_text,
    cast,
    collected,
    named,
)
from airflow_provider_exactlyonce.streaming.registry.cursors import ALL, Cursor, Rows

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Reads one value of each of some records: an array of the reader's type, None where the reader has no use for it.
Read = Callable[[Cursor, Rows], pa.Array | None]

_UNITS: Final = {"millis": "ms", "micros": "us", "nanos": "ns"}
_INT: Final = (-(2**31), 2**31 - 1)
_MOST_DIGITS: Final = 38  # of a decimal
_DEEPEST: Final = 100  # of nested records that are skipped: each takes some of Python's stack
#: What a value of one type may be read as, besides itself.
_PROMOTIONS: Final = {
    "int": frozenset({"int", "long", "float", "double", "tinyint", "smallint"}),
    "long": frozenset({"long", "float", "double"}),
    "float": frozenset({"float", "double"}),
    "bytes": frozenset({"bytes", "string"}),
    "string": frozenset({"bytes", "string"}),
    "fixed": frozenset({"fixed", "bytes"}),
    "enum": frozenset({"enum", "string"}),
}


class AvroDecoder:
    """Decodes values that were written with one schema.

    :param writer: of the records, a record
    :param reader: of the result, a record
    :raises SchemaMismatchError: when no record of the writer's can be read as the reader's
    """

    def __init__(self, writer: AvroType, reader: AvroType) -> None:
        self._read: Final = _Reader().of(writer, reader, "")

    def decode(self, values: pa.Array, skipped: int) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the records' fields, and {position: why the record does not fit}.

        :param values: binary, none of them null
        :param skipped: bytes at the start of each that are not Avro
        """
        cursor = Cursor(values, skipped)
        records = self._read(cursor, ALL)
        cursor.finish()
        return records, cursor.reasons


class _Reader:
    """Makes the readers of types; a recursive type that is not in the result has a reader of its own."""

    def __init__(self) -> None:
        self._skipping: dict[int, list[Read]] = {}

    def of(self, writer: AvroType, reader: AvroType | None, path: str) -> Read:
        """Return the reader of a value as another type, None to skip it; ``path`` names it in messages."""
        if writer.kind == "union":
            return self._union(writer, reader, path)
        value = reader.value if reader is not None else None
        if reader is not None and writer.kind == "null":
            if not reader.is_nullable:
                raise SchemaMismatchError(f"the required field {path} is always null")
            kind = avro_types.arrow_type(reader)
            return lambda cursor, rows: pa.nulls(cursor.count(rows), kind)
        if writer.kind == "null":
            return lambda cursor, rows: None
        if writer.kind == "record":
            return self._skipped_record(writer, path) if reader is None else self._record(writer, value, path)
        if writer.kind in ("array", "map"):
            return self._repeated(writer, value, reader is not None, path)
        if reader is not None and not _is_readable(writer, value):
            raise SchemaMismatchError(f"{named(path)} is {writer}, which is not {reader}")
        return _primitive(writer, value, path)

    def _union(self, writer: AvroType, reader: AvroType | None, path: str) -> Read:
        branches = [self._branch(branch, reader, path) for branch in writer.branches]
        if reader is not None and not any(callable(branch) for branch in branches):
            reasons = [branch for branch in branches if isinstance(branch, str)]
            if reasons or not reader.is_nullable:
                raise SchemaMismatchError(reasons[0] if reasons else f"the required field {path} is always null")
        kind = avro_types.arrow_type(reader) if reader is not None else None
        required = f"the required field {path} is null" if reader is not None and not reader.is_nullable else None

        def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
            index = cursor.signed(rows, path)
            cursor.fail(rows, (index < 0) | (index >= len(branches)), f"{named(path)} has a type that its union lacks")
            gathered = Gathered(len(index))
            for number, branch in enumerate(branches):
                chosen = index == number
                if isinstance(branch, str):
                    cursor.fail(rows, chosen, branch)
                elif branch is not None and chosen.any():
                    gathered.add(chosen, branch(cursor, rows if chosen.all() else cursor.chosen(rows, chosen)))
            if kind is None:
                return None
            if required is not None:
                cursor.fail(rows, gathered.absent, required)
            return gathered.array(kind)

        return read

    def _branch(self, branch: AvroType, reader: AvroType | None, path: str) -> Read | str | None:
        """Return the reader of a union's branch, the reason why it can't be read, or None for the null branch."""
        if branch.kind == "null":
            return None
        try:
            return self.of(branch, reader, path)
        except SchemaMismatchError as error:
            return str(error)

    def _record(self, writer: AvroType, reader: AvroType | None, path: str) -> Read:
        if reader is None or reader.kind != "record":
            raise SchemaMismatchError(f"{named(path)} is {writer}, which is not {reader}")
        wanted = _wanted(reader, {field.name for field in writer.fields})
        parts = []
        for field in writer.fields:
            target = wanted.get(field.name)
            field_path = f"{path}.{field.name}" if path else field.name
            parts.append(
                (target.name if target else None, self.of(field.type, target.type if target else None, field_path))
            )
        written = {name for name, _ in parts}
        absent = {field.name: _default(field, path) for field in reader.fields if field.name not in written}
        kind = avro_types.arrow_type(reader)

        def read(cursor: Cursor, rows: Rows) -> pa.Array:
            columns = {name: part(cursor, rows) for name, part in parts}
            count = cursor.count(rows)
            arrays = [
                pa.repeat(absent[field.name], count) if field.name in absent else columns[field.name]
                for field in reader.fields
            ]
            return pa.StructArray.from_arrays(arrays, fields=list(kind))

        return read

    def _skipped_record(self, writer: AvroType, path: str) -> Read:
        parts = self._skipping.get(id(writer))
        if parts is None:
            parts = self._skipping[id(writer)] = []
            parts += [self.of(field.type, None, f"{path}.{field.name}") for field in writer.fields]

        def skip(cursor: Cursor, rows: Rows) -> None:
            count = cursor.count(rows)
            if cursor.depth == _DEEPEST:
                cursor.fail(rows, np.ones(count, np.bool_), f"{named(path)} is nested deeper than {_DEEPEST}")
            elif count:
                cursor.depth += 1
                for part in parts:
                    part(cursor, rows)
                cursor.depth -= 1

        return skip

    def _repeated(self, writer: AvroType, reader: AvroType | None, is_wanted: bool, path: str) -> Read:
        if is_wanted and (reader is None or reader.kind != writer.kind):
            raise SchemaMismatchError(f"{named(path)} is {writer}, which is not {reader}")
        items, wanted = writer.items, reader.items if reader is not None else None
        if items is None:
            raise SchemaMismatchError(f"{named(path)} has no items")
        read_item = self.of(items, wanted, f"{path}[]")
        kind = avro_types.arrow_type(reader) if reader is not None else None
        is_map = writer.kind == "map"

        def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
            keys, values, owners = _rounds(cursor, rows, read_item, is_map, path)
            if kind is None:
                return None
            owner = np.concatenate([np.array([], np.int64), *owners])
            listed = pa.concat_arrays([pa.array([], kind.item_type if is_map else kind.value_type), *values])
            texts = pa.concat_arrays([pa.array([], pa.string()), *keys]) if is_map else None
            return collected(cursor, rows, owner, texts, listed, kind, path)

        return read


def _rounds(
    cursor: Cursor, rows: Rows, read_item: Read, is_map: bool, path: str
) -> tuple[list[pa.Array], list[pa.Array], list[NDArray[np.int64]]]:
    """Read the items of arrays or maps: the first one of each, then the second of those that have two, and so on."""
    positions = np.arange(cursor.count(rows)) if isinstance(rows, slice) else rows
    remaining = np.zeros(len(positions), np.int64)
    unfinished = np.arange(len(positions))
    keys, values, owners = [], [], []
    while len(unfinished):
        ended = unfinished[remaining[unfinished] == 0]
        if len(ended):
            counts = cursor.signed(positions[ended], path)
            sized = np.flatnonzero(counts < 0)
            if len(sized):
                cursor.signed(positions[ended[sized]], path)  # how many bytes the block has
                counts[sized] = -counts[sized]
            out_of_range = (counts < 0) | (counts > cursor.left(positions[ended]))
            counts[out_of_range] = 0
            cursor.fail(positions[ended], out_of_range, f"{named(path)} has more items than bytes")
            remaining[ended] = counts
            unfinished = unfinished[remaining[unfinished] > 0]
        if not len(unfinished):
            break
        if is_map:
            keys.append(_text(cursor, positions[unfinished], path))
        value = read_item(cursor, positions[unfinished])
        if value is not None:
            values.append(value)
            owners.append(unfinished)
        remaining[unfinished] -= 1
    return keys, values, owners


def _is_readable(writer: AvroType, reader: AvroType | None) -> bool:
    if reader is None:
        return False
    if writer.logical or reader.logical in avro_types.MEANINGS:
        family = (writer.logical or "").rpartition("-")[0] or writer.logical
        return family == ((reader.logical or "").rpartition("-")[0] or reader.logical)
    if writer.kind == reader.kind == "fixed":
        return writer.size == reader.size
    return (reader.logical or reader.kind) in _PROMOTIONS.get(writer.kind, {writer.kind})


def _primitive(writer: AvroType, reader: AvroType | None, path: str) -> Read:
    kind = avro_types.arrow_type(reader) if reader is not None else None
    if writer.logical == "decimal":
        return _decimals(writer, kind, path)
    if writer.kind in ("bytes", "string", "fixed"):
        return _pieces(writer, kind, path)
    if writer.kind == "enum":
        return _symbols(writer, reader, path)
    natural = _natural(writer)

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        numbers = _numbers(cursor, rows, writer.kind, path)
        return None if kind is None else cast(cursor, rows, pa.array(numbers).cast(natural), kind, path)

    return read


def _natural(writer: AvroType) -> pa.DataType:
    logical = writer.logical or ""
    if logical.endswith(("-millis", "-micros", "-nanos")):
        return pa.timestamp(_UNITS[logical.rpartition("-")[2]], None if logical.startswith("local") else "UTC")
    return avro_types.arrow_type(writer)


def _numbers(cursor: Cursor, rows: Rows, kind: str, path: str) -> NDArray[Any]:
    if kind in ("float", "double"):
        return cursor.fixed(rows, "<f4" if kind == "float" else "<f8", path)
    if kind == "boolean":
        values = cursor.fixed(rows, "u1", path)
        cursor.fail(rows, values > 1, f"{named(path)} is neither true nor false")
        return values.astype(np.bool_)
    numbers = cursor.signed(rows, path)
    if kind == "long":
        return numbers
    out_of_range = (numbers < _INT[0]) | (numbers > _INT[1])
    cursor.fail(rows, out_of_range, f"{named(path)} has more than the 32 bits of an int")
    return np.where(out_of_range, 0, numbers).astype(np.int32)


def _pieces(writer: AvroType, kind: pa.DataType | None, path: str) -> Read:
    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        piece = cursor.piece(rows, writer.size if writer.kind == "fixed" else cursor.signed(rows, path), path)
        if kind is None and writer.kind != "string":
            return None
        raw = piece.array()
        texts = as_text(cursor, rows, raw, path) if writer.kind == "string" or kind == pa.string() else raw
        return None if kind is None else (raw if kind == pa.binary() else texts)

    return read


def _text(cursor: Cursor, rows: Rows, path: str) -> pa.Array:
    return as_text(cursor, rows, cursor.piece(rows, cursor.signed(rows, path), path).array(), path)


def _symbols(writer: AvroType, reader: AvroType | None, path: str) -> Read:
    accepted = reader.symbols if reader is not None and reader.kind == "enum" else writer.symbols
    default = reader.default if reader is not None else None
    mapped = [symbol if symbol in accepted else default for symbol in writer.symbols]
    symbols = pa.array([*mapped, None], pa.string())
    unread = np.array([symbol is None for symbol in mapped], np.bool_)

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        index = cursor.signed(rows, path)
        out_of_range = (index < 0) | (index >= len(mapped))
        cursor.fail(rows, out_of_range, f"{named(path)} is none of its enum's symbols")
        if reader is None:
            return None
        index = np.where(out_of_range, len(mapped), index)
        cursor.fail(
            rows, ~out_of_range & np.append(unread, True)[index], f"{named(path)} is a symbol that {reader} lacks"
        )
        return symbols.take(pa.array(index))

    return read


def _decimals(writer: AvroType, kind: pa.DataType | None, path: str) -> Read:
    _, scale = writer.digits
    if scale > _MOST_DIGITS and kind is not None:
        raise SchemaMismatchError(f"{named(path)} is {writer}, and a decimal column has {_MOST_DIGITS} digits")

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        piece = cursor.piece(rows, writer.size if writer.kind == "fixed" else cursor.signed(rows, path), path)
        if kind is None:
            return None
        words, larger = piece.integers()
        cursor.fail(rows, larger, f"{named(path)} has more digits than a decimal column")
        words[larger] = 0
        buffers = [None, pa.py_buffer(np.ascontiguousarray(words))]
        decimals = pa.Array.from_buffers(pa.decimal128(_MOST_DIGITS, scale), len(words), buffers)
        return cast(cursor, rows, decimals, kind, path)

    return read


def _wanted(reader: AvroType, names: Set[str]) -> dict[str, AvroField]:
    """Return a reader's fields by the names that a writer has for them: their own before their aliases.

    :param names: of the writer's fields
    """
    wanted = {field.name: field for field in reader.fields if field.name in names}
    for field in reader.fields:
        alias = next((alias for alias in field.aliases if alias in names - wanted.keys()), None)
        if alias is not None and field.name not in names:
            wanted[alias] = field
    return wanted


def _default(field: AvroField, path: str) -> pa.Scalar:
    """Return the reader's value where the writer has no such field."""
    if not field.has_default and not field.type.is_nullable:
        raise SchemaMismatchError(f"the required field {path + '.' if path else ''}{field.name} is missing")
    return avro_defaults.default_of(field)

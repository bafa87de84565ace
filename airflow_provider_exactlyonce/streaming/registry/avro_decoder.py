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

    def of(self, writer: AvroType, reader: AvroType | None, what: str) -> Read:
        """Return the reader of a value as another type, None to skip it; ``what`` names it in messages."""
        if writer.kind == "union":
            return self._union(writer, reader, what)
        value = reader.value if reader is not None else None
        if reader is not None and writer.kind == "null":
            if not reader.is_nullable:
                raise SchemaMismatchError(f"the required field {what} is always null")
            kind = avro_types.arrow_type(reader)
            return lambda cursor, rows: pa.nulls(cursor.count(rows), kind)
        if writer.kind == "null":
            return lambda cursor, rows: None
        if writer.kind == "record":
            return self._skipped_record(writer, what) if reader is None else self._record(writer, value, what)
        if writer.kind in ("array", "map"):
            return self._repeated(writer, value, reader is not None, what)
        if reader is not None and not _is_readable(writer, value):
            raise SchemaMismatchError(f"{named(what)} is {writer}, which is not {reader}")
        return _primitive(writer, value, what)

    def _union(self, writer: AvroType, reader: AvroType | None, what: str) -> Read:
        branches = [self._branch(branch, reader, what) for branch in writer.branches]
        if reader is not None and not any(callable(branch) for branch in branches):
            reasons = [branch for branch in branches if isinstance(branch, str)]
            if reasons or not reader.is_nullable:
                raise SchemaMismatchError(reasons[0] if reasons else f"the required field {what} is always null")
        kind = avro_types.arrow_type(reader) if reader is not None else None
        required = f"the required field {what} is null" if reader is not None and not reader.is_nullable else None

        def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
            index = cursor.signed(rows, what)
            cursor.fail(rows, (index < 0) | (index >= len(branches)), f"{named(what)} has a type that its union lacks")
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

    def _branch(self, branch: AvroType, reader: AvroType | None, what: str) -> Read | str | None:
        """Return the reader of a union's branch, the reason why it can't be read, or None for the null branch."""
        if branch.kind == "null":
            return None
        try:
            return self.of(branch, reader, what)
        except SchemaMismatchError as error:
            return str(error)

    def _record(self, writer: AvroType, reader: AvroType | None, what: str) -> Read:
        if reader is None or reader.kind != "record":
            raise SchemaMismatchError(f"{named(what)} is {writer}, which is not {reader}")
        wanted = _wanted(reader, {field.name for field in writer.fields})
        parts = []
        for field in writer.fields:
            target = wanted.get(field.name)
            path = f"{what}.{field.name}" if what else field.name
            parts.append((target.name if target else None, self.of(field.type, target.type if target else None, path)))
        written = {name for name, _ in parts}
        absent = {field.name: _default(field, what) for field in reader.fields if field.name not in written}
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

    def _skipped_record(self, writer: AvroType, what: str) -> Read:
        known = self._skipping.get(id(writer))
        if known is None:
            known = self._skipping[id(writer)] = []
            known += [self.of(field.type, None, f"{what}.{field.name}") for field in writer.fields]

        def skip(cursor: Cursor, rows: Rows) -> None:
            count = cursor.count(rows)
            if cursor.depth == _DEEPEST:
                cursor.fail(rows, np.ones(count, np.bool_), f"{named(what)} is nested deeper than {_DEEPEST}")
            elif count:
                cursor.depth += 1
                for part in known:
                    part(cursor, rows)
                cursor.depth -= 1

        return skip

    def _repeated(self, writer: AvroType, reader: AvroType | None, is_wanted: bool, what: str) -> Read:
        if is_wanted and (reader is None or reader.kind != writer.kind):
            raise SchemaMismatchError(f"{named(what)} is {writer}, which is not {reader}")
        items, wanted = writer.items, reader.items if reader is not None else None
        if items is None:
            raise SchemaMismatchError(f"{named(what)} has no items")
        read_item = self.of(items, wanted, f"{what}[]")
        kind = avro_types.arrow_type(reader) if reader is not None else None
        is_map = writer.kind == "map"

        def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
            keys, values, owners = _rounds(cursor, rows, read_item, is_map, what)
            if kind is None:
                return None
            owner = np.concatenate([np.array([], np.int64), *owners])
            listed = pa.concat_arrays([pa.array([], kind.item_type if is_map else kind.value_type), *values])
            texts = pa.concat_arrays([pa.array([], pa.string()), *keys]) if is_map else None
            return collected(cursor, rows, owner, texts, listed, kind, what)

        return read


def _rounds(
    cursor: Cursor, rows: Rows, read_item: Read, is_map: bool, what: str
) -> tuple[list[pa.Array], list[pa.Array], list[NDArray[np.int64]]]:
    """Read the items of arrays or maps: the first one of each, then the second of those that have two, and so on."""
    places = np.arange(cursor.count(rows)) if isinstance(rows, slice) else rows
    left = np.zeros(len(places), np.int64)
    unfinished = np.arange(len(places))
    keys, values, owners = [], [], []
    while len(unfinished):
        ended = unfinished[left[unfinished] == 0]
        if len(ended):
            counts = cursor.signed(places[ended], what)
            sized = np.flatnonzero(counts < 0)
            if len(sized):
                cursor.signed(places[ended[sized]], what)  # how many bytes the block has
                counts[sized] = -counts[sized]
            beyond = (counts < 0) | (counts > cursor.left(places[ended]))
            counts[beyond] = 0
            cursor.fail(places[ended], beyond, f"{named(what)} has more items than bytes")
            left[ended] = counts
            unfinished = unfinished[left[unfinished] > 0]
        if not len(unfinished):
            break
        if is_map:
            keys.append(_text(cursor, places[unfinished], what))
        value = read_item(cursor, places[unfinished])
        if value is not None:
            values.append(value)
            owners.append(unfinished)
        left[unfinished] -= 1
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


def _primitive(writer: AvroType, reader: AvroType | None, what: str) -> Read:
    kind = avro_types.arrow_type(reader) if reader is not None else None
    if writer.logical == "decimal":
        return _decimals(writer, kind, what)
    if writer.kind in ("bytes", "string", "fixed"):
        return _pieces(writer, kind, what)
    if writer.kind == "enum":
        return _symbols(writer, reader, what)
    natural = _natural(writer)

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        numbers = _numbers(cursor, rows, writer.kind, what)
        return None if kind is None else cast(cursor, rows, pa.array(numbers).cast(natural), kind, what)

    return read


def _natural(writer: AvroType) -> pa.DataType:
    logical = writer.logical or ""
    if logical.endswith(("-millis", "-micros", "-nanos")):
        return pa.timestamp(_UNITS[logical.rpartition("-")[2]], None if logical.startswith("local") else "UTC")
    return avro_types.arrow_type(writer)


def _numbers(cursor: Cursor, rows: Rows, kind: str, what: str) -> NDArray[Any]:
    if kind in ("float", "double"):
        return cursor.fixed(rows, "<f4" if kind == "float" else "<f8", what)
    if kind == "boolean":
        values = cursor.fixed(rows, "u1", what)
        cursor.fail(rows, values > 1, f"{named(what)} is neither true nor false")
        return values.astype(np.bool_)
    numbers = cursor.signed(rows, what)
    if kind == "long":
        return numbers
    beyond = (numbers < _INT[0]) | (numbers > _INT[1])
    cursor.fail(rows, beyond, f"{named(what)} has more than the 32 bits of an int")
    return np.where(beyond, 0, numbers).astype(np.int32)


def _pieces(writer: AvroType, kind: pa.DataType | None, what: str) -> Read:
    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        piece = cursor.piece(rows, writer.size if writer.kind == "fixed" else cursor.signed(rows, what), what)
        if kind is None and writer.kind != "string":
            return None
        raw = piece.array()
        texts = as_text(cursor, rows, raw, what) if writer.kind == "string" or kind == pa.string() else raw
        return None if kind is None else (raw if kind == pa.binary() else texts)

    return read


def _text(cursor: Cursor, rows: Rows, what: str) -> pa.Array:
    return as_text(cursor, rows, cursor.piece(rows, cursor.signed(rows, what), what).array(), what)


def _symbols(writer: AvroType, reader: AvroType | None, what: str) -> Read:
    accepted = reader.symbols if reader is not None and reader.kind == "enum" else writer.symbols
    default = reader.default if reader is not None else None
    known = [symbol if symbol in accepted else default for symbol in writer.symbols]
    symbols = pa.array([*known, None], pa.string())
    unread = np.array([symbol is None for symbol in known], np.bool_)

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        index = cursor.signed(rows, what)
        beyond = (index < 0) | (index >= len(known))
        cursor.fail(rows, beyond, f"{named(what)} is none of its enum's symbols")
        if reader is None:
            return None
        index = np.where(beyond, len(known), index)
        cursor.fail(rows, ~beyond & np.append(unread, True)[index], f"{named(what)} is a symbol that {reader} lacks")
        return symbols.take(pa.array(index))

    return read


def _decimals(writer: AvroType, kind: pa.DataType | None, what: str) -> Read:
    _, scale = writer.digits
    if scale > _MOST_DIGITS and kind is not None:
        raise SchemaMismatchError(f"{named(what)} is {writer}, and a decimal column has {_MOST_DIGITS} digits")

    def read(cursor: Cursor, rows: Rows) -> pa.Array | None:
        piece = cursor.piece(rows, writer.size if writer.kind == "fixed" else cursor.signed(rows, what), what)
        if kind is None:
            return None
        words, larger = piece.integers()
        cursor.fail(rows, larger, f"{named(what)} has more digits than a decimal column")
        words[larger] = 0
        buffers = [None, pa.py_buffer(np.ascontiguousarray(words))]
        decimals = pa.Array.from_buffers(pa.decimal128(_MOST_DIGITS, scale), len(words), buffers)
        return cast(cursor, rows, decimals, kind, what)

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


def _default(field: AvroField, what: str) -> pa.Scalar:
    """Return the reader's value where the writer has no such field."""
    if not field.has_default and not field.type.is_nullable:
        raise SchemaMismatchError(f"the required field {what + '.' if what else ''}{field.name} is missing")
    return avro_defaults.default_of(field)

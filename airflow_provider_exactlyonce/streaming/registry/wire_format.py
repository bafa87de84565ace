"""The wire format of schema registries: a zero byte, the schema's id in four bytes, the encoded value.

Before a Protobuf value stands, too, which message of the schema it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from airflow_provider_exactlyonce.streaming.registry.columnar import Gathered, SchemaMismatchError

MAGIC_BYTE: Final = 0
HEAD_BYTES: Final = 5
_LARGEST_ID: Final = 2**31 - 1
#: A registry of several servers may tell of a schema that one of them has not got yet; so it is asked twice about one
#: that it does not have. After that the schema is taken for absent for a while, so that garbage costs no pauses.
_LAG_SECONDS: Final = 1.0
_ABSENT_SECONDS: Final = 60.0


def head(schema_id: int) -> bytes:
    """Return the bytes before a value that was written with a schema."""
    return bytes([MAGIC_BYTE]) + schema_id.to_bytes(4, "big")


def message_indexes(indexes: Sequence[int]) -> bytes:
    """Return the bytes before a Protobuf message: its indexes in the schema; a zero byte for the first message."""
    numbers = [] if list(indexes) == [0] else indexes
    return b"".join(varint(number << 1) for number in (len(numbers), *numbers))


def varint(number: int) -> bytes:
    """Return a number, not negative, in the variable length of Avro and Protobuf."""
    digits = [number >> shift & 0x7F for shift in range(0, max(number.bit_length(), 1), 7)]
    return bytes([*(digit | 0x80 for digit in digits[:-1]), digits[-1]])


class Decoder(Protocol):
    """Decodes values that were written with one schema."""

    def decode(self, values: pa.Array, skipped: int) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the values' fields, and {position: why the value does not fit}.

        :param values: binary, none of them null
        :param skipped: bytes at the start of each that are not part of the encoding
        """


#: Returns what decodes the values of a schema's id, or why none of them fits; None when there is no such schema.
FindDecoder = Callable[[int], Decoder | str | None]


class WireDecoder:
    """Decodes values of any schemas, each by the one that it names.

    :param kind: of the result
    :param find: asked once for each id that there is a schema for
    """

    def __init__(self, kind: pa.StructType, find: FindDecoder) -> None:
        self._kind: Final = kind
        self._find: Final = find
        self._known: Final[dict[bytes, Decoder]] = {}
        self._absent_until: dict[bytes, float] = {}

    def decode(self, values: pa.Array) -> tuple[pa.StructArray, dict[int, str]]:
        """Return the values' fields, null for one that does not fit, and {position: why it does not}.

        :param values: binary
        """
        reasons: dict[int, str] = {}
        heads = pc.binary_slice(values, 0, HEAD_BYTES).dictionary_encode(null_encoding="encode")
        index = heads.indices.to_numpy(zero_copy_only=False)
        gathered = Gathered(len(values))
        for number, decoder in enumerate(self._decoders(heads.dictionary.to_pylist())):
            chosen = np.equal(index, number)
            positions = np.flatnonzero(chosen)
            if isinstance(decoder, str):
                reasons.update(dict.fromkeys(positions.tolist(), decoder))
                continue
            selected = values if len(positions) == len(values) else values.take(pa.array(positions))
            records, misfits = decoder.decode(selected, HEAD_BYTES)
            reasons.update({int(positions[position]): reason for position, reason in misfits.items()})
            gathered.add(chosen, records)
        return gathered.array(self._kind), reasons

    def _decoders(self, starts: Iterable[bytes | None]) -> list[Decoder | str]:
        """Return what decodes the values with each of these heads, or why they do not fit."""
        decoders = {start: self._decoder(start) for start in starts}
        now = time.monotonic()
        self._absent_until = {start: expiry for start, expiry in self._absent_until.items() if expiry > now}
        absent = [start for start, decoder in decoders.items() if decoder is None]
        if asked_again := [start for start in absent if start not in self._absent_until]:
            time.sleep(_LAG_SECONDS)
            decoders |= {start: self._decoder(start) for start in asked_again}
            expiry = time.monotonic() + _ABSENT_SECONDS
            self._absent_until |= {start: expiry for start in asked_again if start and decoders[start] is None}
        return [
            f"the schema registry has no schema {_id_in(start or b'')}" if decoder is None else decoder
            for start, decoder in decoders.items()
        ]

    def _decoder(self, start: bytes | None) -> Decoder | str | None:
        if start is None:
            return "it has no value (a tombstone)"
        known = self._known.get(start)
        if known is not None:
            return known
        if len(start) < HEAD_BYTES:
            return f"it is not in a schema registry's wire format: {len(start)} bytes"
        if start[0] != MAGIC_BYTE:
            return f"it is not in a schema registry's wire format: its first byte is 0x{start[0]:02x}, not 0x00"
        number = _id_in(start)
        if number > _LARGEST_ID:  # a registry need not have an answer about it
            return f"it is not in a schema registry's wire format: {number} is no schema's id"
        try:
            decoder = self._find(number)
        except SchemaMismatchError as error:
            return f"schema {number} of the registry does not fit: {error}"
        if decoder is not None and not isinstance(decoder, str):
            self._known[start] = decoder
        return decoder


def _id_in(start: bytes) -> int:
    return int.from_bytes(start[1:], "big")
